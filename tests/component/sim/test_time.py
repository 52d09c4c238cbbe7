"""How long kernels take, by their names, and what happens to a card whose users are killed. test_timing.py has more."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from typing import Any

import pytest
from checkout import DATA

PROGRAM = DATA / "sim/work_client.py"
MS = 1_000_000
LAUNCH, SWITCH = 4_000, 50_000


class Worker:
    """work_client.py, which waits for the command to begin."""

    def __init__(self, node: Any, *arguments: Any, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), *map(str, arguments)],
            env=node.environment(**environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout and self.process.stdout.readline() == "ready\n"

    def begin(self) -> Worker:
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self

    def end(self) -> None:
        self.process.communicate(timeout=300)
        assert self.process.returncode == 0


@pytest.mark.parametrize(
    ("kernel", "launches", "environment", "total"),
    [
        ("spin_50ms", 1, {}, 50 * MS),
        ("spin_200us", 100, {}, 20 * MS),
        ("anything", 100, {}, MS),
        ("anything", 10, {"VGPU_SIM_KERNEL_NS": "1000000"}, 10 * MS),
    ],
)
def test_how_long_kernels_take(line: Any, kernel: str, launches: int, environment: dict[str, str], total: int) -> None:
    node = line(1)
    code = f"spin = named({kernel!r})\nfor _ in range({launches}): launch(0, kernel=spin)\nsync(); say(t())"
    assert node.said(node.start(code, **environment)) == pytest.approx(total, abs=SWITCH + launches * LAUNCH)
    assert node.node.card()["busy_ns"] == total


def test_a_killed_process_does_not_keep_the_card(line: Any) -> None:
    node = line(2)
    hog = node.start("launch(60_000 * MS); say(1); sync()")
    wait = "until(10 * MS); clock.hold(1); say(1); sys.stdin.readline(); clock.hold(0)"
    quick = node.start(f"{wait}\nfor _ in range(10): launch(MS)\nsync(); say(t())")
    assert hog.stdout.readline() == quick.stdout.readline() == "1\n"
    hog.kill()
    hog.wait()
    quick.stdin.write("\n")
    assert node.said(quick) < 100 * MS


def test_killed_at_random(node: Any, pytestconfig: pytest.Config) -> None:
    """Whether the dead process held the card or was queued, the others go on and none is charged for it."""
    dice = random.Random(4)
    for _ in range(100 if pytestconfig.getoption("--long") else 3):
        workers = [Worker(node, "spin_1ms", 10, 2, 1, 30).begin() for _ in range(4)]
        for worker in workers:
            time.sleep(dice.random() / 20)
            worker.process.kill()
        for worker in workers:
            worker.process.communicate()
    Worker(node, "spin_1ms", 10, 1, 0, 0).begin().end()
    assert node.card()["used"] == 0


@pytest.mark.parametrize("wanted", ["0", "1"])
def test_the_cards_threads_are_in_real_time_on_request(line: Any, wanted: str) -> None:
    """A CPU quota stops no such thread, so that the card of all goes on. The program itself stays as it was."""
    code = """
launch(MS); sync()
tasks = {open(f"/proc/self/task/{task}/comm").read().strip(): int(task) for task in os.listdir("/proc/self/task")}
say([os.sched_getscheduler(tasks["vgpu-sim"]), os.sched_getscheduler(0)])
"""
    wall = line(1, clock="wall")
    expected = [os.SCHED_FIFO if wanted == "1" else os.SCHED_OTHER, os.SCHED_OTHER]
    assert wall.said(wall.start(code, VGPU_SIM_REALTIME=wanted)) == expected
