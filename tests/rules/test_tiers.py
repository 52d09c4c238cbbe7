"""The tiers of tests: tests/unit mirrors the source, each module has a file there, is imported by a test, or is listed
with the file that tests it, and unit tests use doubles and no beds.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from checkout import CHECKOUT

TESTS = CHECKOUT / "tests"
PARTS = ("config", "hook", "plugin")
#: Modules without a file in tests/unit that no test imports, and the file below tests/ that tests each of them.
ELSEWHERE = {
    "config/fields": "unit/config/test_claims.py",
    "hook/devices/access_check": "system/test_device_cgroup.py",
    "hook/ledger/living_claims": "component/hook/test_ledger.py",
    "hook/ledger/prepared_budgets": "component/hook/test_prepared_claims.py",
    "hook/ledger/totals": "component/hook/test_ledger.py",
    "node/ctl/explain": "component/node/test_ctl_explain.py",
    "node/ctl/gc": "component/node/test_ctl_gc.py",
    "node/ctl/health": "system/test_daemon.py",
    "node/ctl/pod_manifest": "component/node/test_ctl_explain.py",
    "node/cards/nvml_probe": "component/node/test_health_monitor.py",
    "node/cards/probe_process": "component/node/test_health_monitor.py",
    "node/ctl/selftest": "system/test_selftest.py",
    "node/daemon/command": "rules/test_loaded_modules.py",
    "node/daemon/hook_lines": "unit/node/daemon/test_hook_counts.py",
    "node/doctor/repairs": "component/node/test_doctor_fix.py",
    "node/selftest/bare": "component/node/test_selftest_bare.py",
    "node/selftest/clients": "system/test_selftest.py",
    "node/selftest/container": "system/test_selftest.py",
    "node/selftest/way": "system/test_selftest.py",
    "node/service/file_signature": "component/plugin/test_registration.py",
    "node/service/forked": "component/node/test_reader.py",
    "node/service/installation": "system/test_carried_python.py",
    "node/service/single_instance": "component/plugin/test_main.py",
    "plugin/apiserver/handover": "component/plugin/test_agent.py",
    "plugin/apiserver/node_annotations": "component/plugin/test_agent.py",
    "plugin/apiserver/node_condition": "component/plugin/test_agent.py",
    "plugin/apiserver/pods": "component/plugin/test_agent.py",
    "plugin/cards/health": "component/plugin/test_health_at_kubelet.py",
    "plugin/command": "rules/test_loaded_modules.py",
    "plugin/exporter/main": "component/plugin/test_exporter.py",
    "plugin/kubelet/proto/messages": "unit/plugin/kubelet/proto/test_generate.py",
    "plugin/release/node_object": "system/test_plugin_cluster_node.py",
    "plugin/scheduler/metrics": "component/plugin/test_scheduler.py",
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
    has |= {name.removeprefix("vgpu.").replace(".", "/") for path in TESTS.rglob("*.py") for name in imported(path)}
    assert sorted(known - has) == sorted(ELSEWHERE)


@pytest.mark.parametrize("file", sorted(set(ELSEWHERE.values())))
def test_the_listed_files_exist(file: str) -> None:
    assert (TESTS / file).is_file()


def imported(path: Path) -> set[str]:
    """What a file imports: of `from a import b` both a and a.b."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.update([node.module, *(f"{node.module}.{alias.name}" for alias in node.names)])
    return found


def test_unit_tests_use_doubles_and_no_beds() -> None:
    beds = {path.stem for path in (TESTS / "beds").glob("*.py")} - {"checkout"}
    assert "nodes" in beds
    assert [str(path) for path in (TESTS / "unit").rglob("*.py") if imported(path) & beds] == []


def test_doubles_beds_and_data_hold_no_tests() -> None:
    assert not [path for folder in ("doubles", "beds", "data") for path in (TESTS / folder).rglob("test_*")]
