"""Options and skips of the whole test run. A test that this machine cannot run is skipped with the reason."""

from __future__ import annotations

import functools
import inspect
import os
import random
import shutil
from collections import defaultdict
from pathlib import Path

import click.testing
import hypothesis
import pytest
from checkout import BUILD, CHECKOUT

# Before grpc is loaded. Its handler would start threads in every forked child of the test process; a child with threads
# cannot enter a mount namespace (setns: EINVAL).
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

# Tables fit this many columns. A parallel run of pytest sets it.
os.environ.pop("COLUMNS", None)

# click 8.1, the last one for Python 3.9, mixes what a verb prints to stderr into its output.
if "mix_stderr" in inspect.signature(click.testing.CliRunner).parameters:
    click.testing.CliRunner = functools.partial(click.testing.CliRunner, mix_stderr=False)  # type: ignore[misc]


# The machine's load decides no test.
hypothesis.settings.register_profile("vgpu", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("vgpu")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--strict-skips", action="store_true", help="a skipped test fails the run")
    parser.addoption("--long", action="store_true", help="full counts instead of sampled rounds")


def pytest_configure(config: pytest.Config) -> None:
    """The processes of a parallel run draw the same cases."""
    os.environ.setdefault("VGPU_SAMPLE", str(random.randrange(1 << 20)))


#: The files that take longest begin first, so that those that run at the same time end at about the same time.
LONGEST = (
    "test_daemon.py", "test_fresh_machine.py", "test_time_slices_pauses.py", "test_upgrade.py",
    "test_open_slices.py", "test_runtime_contract.py", "test_plugin_containerd.py", "test_bad_input.py",
    "test_arm64.py", "test_usage_audit.py", "test_attack_node.py", "test_sanitizers.py", "test_sites.py",
    "test_metrics_faults.py", "test_release.py", "test_hook_marker.py", "test_cores.py", "test_docs_commands.py",
    "test_pod_rights.py", "test_blocked_readers.py", "test_time_slices_forged.py", "test_attack_requests.py",
    "test_scheduler.py", "test_main.py", "test_images.py", "test_driver_upgrade.py", "test_memory_sequences.py",
    "test_cgroup_matrix.py", "test_runtimes.py", "test_deb.py",
)  # fmt: skip


#: The programs of the mark `program`, and whether only long tests run them: Debian 11 has no rpmlint, and Ubuntu's
#: chromium is a snap.
NOT_EVERYWHERE = {"rpmlint": False, "chromium": True}


@pytest.hookimpl(trylast=True)  # of what -k and -m have left
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    missing = {program for program in NOT_EVERYWHERE if not shutil.which(program)}
    items[:] = [
        item for item in items if not missing & {name for mark in item.iter_markers("program") for name in mark.args}
    ]
    if not config.getoption("--long") and not any("[" in argument for argument in config.args):
        left = left_out(items, os.environ["VGPU_SAMPLE"])
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left])
        items[:] = [item for item in items if item.nodeid not in left]
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))
    if os.geteuid() == 0:
        return
    for item in items:
        if "root" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="needs root"))


def left_out(items: list[pytest.Item], seed: str) -> set[str]:
    """The ids of the cases that the mark `sample` leaves out. The seed "all" leaves out none."""
    cases: dict[tuple[str, int], list[str]] = defaultdict(list)
    for item in items:
        for mark in item.iter_markers("sample"):
            cases[item.nodeid.partition("[")[0], mark.args[0]].append(item.nodeid)
    left: set[str] = set()
    for (test, count), ids in cases.items() if seed != "all" else ():
        left.update(random.Random(f"{seed} {test}").sample(ids, max(len(ids) - count, 0)))
    return left


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if terminalreporter.stats.get("failed"):
        terminalreporter.write_line(
            f"the cases of tests with the mark `sample` are those of VGPU_SAMPLE={os.environ['VGPU_SAMPLE']}"
        )
    if not config.getoption("--strict-skips"):
        return
    for program, is_long in NOT_EVERYWHERE.items():
        if not shutil.which(program) and is_long <= config.getoption("--long"):
            terminalreporter.write_line(f"without the tests that run {program}, which is missing here")
    skipped = terminalreporter.stats.get("skipped", [])
    if skipped:
        terminalreporter.section("unexpected skips")
        for report in skipped:
            terminalreporter.write_line(f"{report.nodeid}: {report.longrepr}")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    reporter = session.config.pluginmanager.getplugin("terminalreporter")
    if session.config.getoption("--strict-skips") and reporter.stats.get("skipped") and exitstatus == 0:
        session.exitstatus = 1


@pytest.fixture(scope="session")
def build() -> Path:
    """The directory of the C build's products."""
    return BUILD


@pytest.fixture(scope="session")
def repository() -> Path:
    return CHECKOUT
