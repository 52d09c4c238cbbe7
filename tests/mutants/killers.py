"""Which tests may find a fault in a source file, the cheapest first.

Belongs here: the map of folders to test files.
"""

from __future__ import annotations

from pathlib import Path

LIBVCUDA = "component/libvcuda"
MEMORY = (
    "limit", "kinds", "on_sim", "contexts", "shared_memory", "virtual_memory", "newer_kinds", "graph_memory",
    "memory_sequences",
)  # fmt: skip
RACES = ("halted_calls", "processes", "host_figure", "races", "nvml", "video", "bad_input", "lifecycle")
SHARES = ("cores_calls", "late_launches", "on_sim", "time_slices_borrowed", "change_cost")
MORE_SHARES = (
    "cores_live", "cores_cases", "time_slices", "time_slices_processes", "time_slices_pauses",
    "time_slices_forged", "cores", "bad_input", "lifecycle",
)  # fmt: skip
#: Folder -> files of the first and of the second stage.
C = {
    "libvcuda/src/memory": (MEMORY, RACES),
    "libvcuda/src/compute": (SHARES, MORE_SHARES),
    "libvcuda/src/hooks/nvml": (("nvml", "on_sim"), ("video", "host_figure", "bad_input", "lifecycle")),
    "libvcuda/src/hooks": (
        ("proc_address", "recorded_drivers", "cores_calls", "late_launches", *MEMORY),
        ("cores", *RACES),
    ),
    "libvcuda/src": (("proc_address", "nvml", *SHARES, *MEMORY[:5]), (*MEMORY[5:], *RACES, *MORE_SHARES)),
}
#: Tests with processes, for what no unit test finds. One pattern or more, below tests/.
PYTHON = {
    "config": ("component/config/test_*.py", "component/hook/test_placement.py"),
    "hook/devices": (
        "component/hook/test_bpf_program.py", "component/hook/test_systemd.py", "system/test_device_cgroup.py",
    ),
    "hook/formats": ("component/hook/test_elf.py", "component/hook/test_ldcache.py", "system/test_loader_cache.py"),
    "hook/inject": ("system/test_execute.py", "system/test_overlay.py", "system/test_inspect.py"),
    "hook/ledger": (
        "component/hook/test_ledger*.py", "component/hook/test_lock.py", "system/test_presence.py",
    ),
    "hook/linux": ("component/hook/test_dbus.py", "component/hook/test_systemd.py", "system/test_execute.py"),
    "hook/placement": ("component/hook/test_placement.py",),
    "hook/request": ("component/hook/test_pod_record.py", "system/test_pod_identity.py"),
    "hook": ("component/gate/test_hook_handover.py",),
    "node/ctl": ("component/node/test_ctl_*.py",),
    "node/daemon": (
        "component/node/test_server.py", "component/node/test_reader.py", "component/node/test_region_readers.py",
        "component/node/test_daemon_rounds.py", "component/node/test_killed_writers.py",
    ),
    "node/doctor": ("component/node/test_doctor*.py",),
    "node/driver": (
        "component/node/test_discover.py", "component/node/test_library_copies.py",
        "component/node/test_elf_symbols.py",
    ),
    "node/runtimes": ("component/node/test_programs.py", "system/test_runtimes.py"),
    "node/service": ("component/plugin/test_kubelet_resources.py", "component/plugin/test_main.py"),
    "plugin/apiserver": ("component/plugin/test_agent.py",),
    "plugin/cards": ("component/plugin/test_health_*.py",),
    "plugin/exporter": ("component/plugin/test_exporter.py",),
    "plugin/kubelet": (
        "component/plugin/test_server.py", "component/plugin/test_registration.py", "component/plugin/test_grant_*.py",
    ),
    "plugin/scheduler": ("component/plugin/test_scheduler.py",),
    "plugin": (
        "component/plugin/test_main.py", "component/plugin/test_background.py", "component/plugin/test_probes.py",
    ),
}  # fmt: skip


Stages = tuple[list[str], list[str]]


def of_c(file: str, tests: Path) -> Stages:
    stages = next(stages for start, stages in C.items() if file.startswith(start))
    first, second = ([f"{LIBVCUDA}/test_{stem}.py" for stem in stems] for stems in stages)
    return [name for name in first if (tests / name).exists()], [name for name in second if (tests / name).exists()]


def of_python(file: str, tests: Path, elsewhere: dict[str, str]) -> Stages:
    """Unit tests of the module, and tests with processes."""
    module = file.partition("/vgpu/")[2][: -len(".py")]
    folder, _, stem = module.rpartition("/")
    patterns = next((patterns for start, patterns in PYTHON.items() if f"{module}/".startswith(f"{start}/")), ())
    found = [elsewhere[module]] if module in elsewhere else []
    for pattern in (f"unit/{folder}/test_{stem}*.py", *patterns):
        found += [str(path.relative_to(tests)) for path in sorted(tests.glob(pattern))]
    unit = [name for name in found if name.startswith("unit/")]
    return list(dict.fromkeys(unit)), list(dict.fromkeys(name for name in found if name not in unit))
