"""The tiers of tests: tests/unit mirrors the source, each module has a file there or is listed with the file that tests
it, and unit tests use doubles and no beds.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from checkout import CHECKOUT

TESTS = CHECKOUT / "tests"
PARTS = ("config", "hook", "plugin")
#: Modules without a file in tests/unit, and the file below tests/ that tests each of them.
ELSEWHERE = {
    "config/compiled": "unit/config/test_compiler.py",
    "config/errors": "unit/config/test_compiler.py",
    "config/fields": "unit/config/test_claims.py",
    "config/foreign": "unit/node/daemon/test_foreign_processes.py",
    "config/health": "unit/node/daemon/test_round_record.py",
    "config/inventory": "component/node/test_discover.py",
    "hook/devices/access_check": "system/test_device_cgroup.py",
    "hook/devices/cgroup_v1": "system/test_device_cgroup.py",
    "hook/devices/cgroup_v2": "system/test_device_cgroup.py",
    "hook/inject/execute": "system/test_hook_runc.py",
    "hook/inject/mounts": "system/test_hook_runc.py",
    "hook/inject/operations": "unit/hook/inject/test_plan.py",
    "hook/ledger/core_schedules": "unit/node/daemon/test_lender.py",
    "hook/linux/bpf": "system/test_device_cgroup.py",
    "hook/linux/syscalls": "unit/hook/linux/test_rootfs.py",
    "hook/placement/allocation": "unit/hook/request/test_resolve_grants.py",
    "hook/request/authorization": "unit/hook/test_main.py",
    "node/ctl/explain": "component/node/test_ctl_explain.py",
    "node/ctl/gc": "component/node/test_ctl_gc.py",
    "node/ctl/health": "system/test_daemon.py",
    "node/ctl/inventory": "component/node/test_ctl_inventory.py",
    "node/ctl/main": "unit/node/ctl/test_config.py",
    "node/ctl/pod_manifest": "component/node/test_ctl_explain.py",
    "node/ctl/set": "component/libvcuda/test_ctl_set.py",
    "node/ctl/snapshot": "unit/node/ctl/test_status.py",
    "node/daemon/client": "component/node/test_server.py",
    "node/daemon/command": "rules/test_loaded_modules.py",
    "node/daemon/main": "system/test_daemon.py",
    "node/daemon/reader": "component/node/test_reader.py",
    "node/daemon/region_readers": "component/node/test_region_readers.py",
    "node/daemon/server": "component/node/test_server.py",
    "node/daemon/usage_regions": "unit/node/ctl/test_status.py",
    "node/daemon/worker": "component/node/test_server.py",
    "node/doctor/coexistence": "unit/node/ctl/test_doctor.py",
    "node/doctor/findings": "unit/node/ctl/test_doctor.py",
    "node/doctor/host": "unit/node/ctl/test_doctor.py",
    "node/doctor/repairs": "component/node/test_doctor_fix.py",
    "node/doctor/runtimes": "unit/node/ctl/test_doctor.py",
    "node/driver/discover": "component/node/test_discover.py",
    "node/driver/elf_symbols": "component/node/test_elf_symbols.py",
    "node/driver/hide_symbols": "component/node/test_library_copies.py",
    "node/driver/library_copies": "component/node/test_library_copies.py",
    "node/driver/unknown_functions": "component/libvcuda/test_unknown_functions.py",
    "node/service/file_signature": "component/plugin/test_registration.py",
    "node/service/log": "unit/node/daemon/test_device_monitor.py",
    "node/service/sd_notify": "component/plugin/test_main.py",
    "node/service/single_instance": "component/plugin/test_main.py",
    "plugin/apiserver/agent": "component/plugin/test_agent.py",
    "plugin/apiserver/client": "component/plugin/test_agent.py",
    "plugin/apiserver/handover": "component/plugin/test_agent.py",
    "plugin/apiserver/node_annotations": "component/plugin/test_agent.py",
    "plugin/apiserver/pods": "component/plugin/test_agent.py",
    "plugin/apiserver/scheduler_protocols": "component/plugin/test_agent.py",
    "plugin/background": "component/plugin/test_background.py",
    "plugin/cards/health_monitor": "component/plugin/test_health_monitor.py",
    "plugin/cards/nvml_probe": "component/plugin/test_health_monitor.py",
    "plugin/command": "rules/test_loaded_modules.py",
    "plugin/exporter/command": "component/plugin/test_exporter.py",
    "plugin/exporter/exposition": "unit/plugin/exporter/test_families.py",
    "plugin/exporter/main": "component/plugin/test_exporter.py",
    "plugin/exporter/server": "component/plugin/test_exporter.py",
    "plugin/exporter/service": "component/plugin/test_background.py",
    "plugin/exporter/snapshot": "unit/plugin/exporter/test_families.py",
    "plugin/kubelet/checkpoint": "unit/plugin/kubelet/test_grant_gc.py",
    "plugin/kubelet/delete_grants": "unit/plugin/kubelet/test_grant_gc.py",
    "plugin/kubelet/pod_resources": "unit/plugin/kubelet/test_grant_gc.py",
    "plugin/kubelet/proto/messages": "unit/plugin/kubelet/proto/test_generate.py",
    "plugin/kubelet/proto/services": "component/plugin/test_server.py",
    "plugin/kubelet/registration": "component/plugin/test_registration.py",
    "plugin/kubelet/server": "component/plugin/test_server.py",
    "plugin/main": "component/plugin/test_main.py",
    "plugin/probes": "component/plugin/test_probes.py",
    "plugin/scheduler/main": "component/plugin/test_scheduler.py",
    "plugin/scheduler/metrics": "component/plugin/test_scheduler.py",
    "plugin/scheduler/node_cards": "unit/plugin/scheduler/test_cluster.py",
    "plugin/scheduler/server": "component/plugin/test_scheduler.py",
}


def modules() -> set[str]:
    """hook/linux/cgroup and so on: modules with code of their own, without packages' __init__ and generated files."""
    found = set()
    for part in PARTS:
        for path in (CHECKOUT / part / "vgpu").rglob("*.py"):
            if path.stem != "__init__" and not path.stem.endswith("_pb2"):
                found.add(str(path.relative_to(CHECKOUT / part / "vgpu").with_suffix("")))
    return found


def unit_files() -> list[str]:
    return [str(path.relative_to(TESTS / "unit").with_suffix("")) for path in (TESTS / "unit").rglob("test_*.py")]


def modules_of(file: str, known: set[str]) -> set[str]:
    """The modules whose tests `file` may have: hook/linux/test_cgroup or hook/linux/test_cgroup_<aspect>."""
    folder, _, name = file.rpartition("/")
    stem = name[len("test_") :]
    return {f"{folder}/{stem[:end]}" for end in range(1, len(stem) + 1) if stem[end : end + 1] in ("", "_")} & known


def test_every_unit_test_is_at_its_modules_place() -> None:
    known = modules()
    assert len(known) > 100
    assert [file for file in unit_files() if not modules_of(file, known)] == []


def test_every_module_has_a_unit_test_or_is_tested_elsewhere() -> None:
    known = modules()
    has = {module for file in unit_files() for module in modules_of(file, known)}
    assert sorted(known - has) == sorted(ELSEWHERE)


@pytest.mark.parametrize("file", sorted(set(ELSEWHERE.values())))
def test_the_listed_files_exist(file: str) -> None:
    assert (TESTS / file).is_file()


def imported(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}


def test_unit_tests_use_doubles_and_no_beds() -> None:
    beds = {path.stem for path in (TESTS / "beds").glob("*.py")} - {"checkout"}
    assert "nodes" in beds
    assert [str(path) for path in (TESTS / "unit").rglob("*.py") if imported(path) & beds] == []


def test_doubles_beds_and_data_hold_no_tests() -> None:
    assert not [path for folder in ("doubles", "beds", "data") for path in (TESTS / folder).rglob("test_*")]
