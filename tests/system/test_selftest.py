"""`vgpuctl selftest` by containers on the simulated driver, in virtual time: healthy, with each of ten faults, ended.

A self-test that cannot fail is none: selftest_faults.py has the faults, each with the row that has to fail.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import selftest_bed
from daemons import wait_for
from selftest_bed import Node, failed
from selftest_faults import FAULTS, Fault

pytestmark = pytest.mark.root
RUNS = 5  #: of each fault, with --long
HEALTHY = 50
#: What finds no fault on a healthy node, whatever the way.
OTHER_VERDICTS = ("info", "not applicable")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path / "node", "a100x2")
    yield made
    assert made.left() == []


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_a_healthy_node_passes_in_a_root_with_the_program_alone(node: Node, runtime: str) -> None:
    report = node.report("--runtime", runtime)
    assert (report["way"], report["result"], failed(report)) == (runtime, "pass", [])
    assert len(report["rows"]) == 23
    assert {row["verdict"] for row in report["rows"]} <= {"pass", *OTHER_VERDICTS}
    assert report["seconds"] <= 60  # of virtual time
    assert str(node.directory) not in json.dumps(report)


@pytest.mark.long
@pytest.mark.parametrize("profile", ["t4x1", "harsh", "h100x1", "a100x2"])
def test_every_row_on_every_card(tmp_path: Path, profile: str) -> None:
    node = Node(tmp_path / "node", profile)
    report = node.report("--full")
    assert (report["result"], failed(report)) == ("pass", [])
    assert report["seconds"] <= 900  # of virtual time


def found_by(fault: Fault, directory: Path) -> list[str]:
    """The rows that fail where a node has the fault."""
    node = Node(
        directory / "node", "a100x2", fault.libraries(directory), fault.programs(directory), memory=fault.memory
    )
    return failed(node.report("--row", fault.row))


def test_one_of_the_ten_faults_is_found(tmp_path: Path) -> None:
    fault = random.choice(FAULTS)
    assert fault.row in found_by(fault, tmp_path), fault.name


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_each_fault_is_found_each_time(tmp_path: Path, fault: Fault) -> None:
    for number in range(RUNS):
        (tmp_path / str(number)).mkdir()
        assert fault.row in found_by(fault, tmp_path / str(number))


@pytest.mark.long
def test_a_healthy_node_never_fails_beside_busy_processors(tmp_path: Path) -> None:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        for number in range(HEALTHY):
            report = Node(tmp_path / "node", "t4x1").report("--bare" if number % 2 else "--quick")
            assert (number, failed(report), report["result"]) == (number, [], "pass")
            shutil.rmtree(tmp_path / "node")
    finally:
        for process in busy:
            process.kill()
            process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_ended_leaves_no_container_and_no_claim(node: Node, number: int) -> None:
    process = node.start()
    assert process.stderr
    wait_for(lambda: "memory.device" in process.stderr.readline(), selftest_bed.PATIENCE)
    process.send_signal(number)
    process.communicate(timeout=selftest_bed.PATIENCE)
    if number == signal.SIGKILL:
        node.report("--row", "totals")
    else:
        assert process.returncode == 3


def test_nothing_is_judged_beside_a_container_or_without_a_runtime(node: Node) -> None:
    held = node.hold_cards("train")
    done = node.selftest()
    assert (done.returncode, done.stdout) == (3, "")
    (line,) = done.stderr.splitlines()
    assert "is held by container train" in line
    held()
    for words, found in (
        (("--runtime", "containerd"), "expected runc or crun, found containerd"),
        (("--card", "GPU-00"), "--card: expected the beginning of a UUID of this node"),
    ):
        done = node.selftest(*words)
        assert (done.returncode, done.stdout) == (3, "")
        assert found in done.stderr
    done = node.selftest(prefix=node.as_nobody())
    assert done.returncode == 3
    assert "expected root, found uid 65534; run as root, or --bare" in done.stderr
