"""Launches take time, streams are queues, and contexts of several processes share a card by time slices."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from checkout import DATA

PROGRAM = DATA / "sim/work_client.py"
NOT_READY = 600


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

    def result(self) -> dict[str, Any]:
        out, _ = self.process.communicate(timeout=120)
        assert self.process.returncode == 0
        answer: dict[str, Any] = json.loads(out)
        return answer


@pytest.mark.parametrize(
    ("kernel", "launches", "environment", "milliseconds"),
    [
        ("spin_50ms", 1, {}, 50),
        ("spin_200us", 100, {}, 20),
        ("anything", 1000, {}, 10),
        ("anything", 10, {"VGPU_SIM_KERNEL_NS": "1000000"}, 10),
    ],
)
def test_how_long_kernels_take(
    node: Any, kernel: str, launches: int, environment: dict[str, str], milliseconds: float
) -> None:
    seen = Worker(node, kernel, launches, 1, 0, 0, **environment).begin().result()
    assert milliseconds * 0.999 <= seen["ms"] <= milliseconds * 1.5 + 20  # submitting takes real time
    assert seen["total"] >= milliseconds / 1000
    assert node.card()["busy_ns"] == pytest.approx(milliseconds * 1e6, rel=0.01, abs=1e5)


def test_launches_run_ahead(node: Any) -> None:
    seen = Worker(node, "spin_1ms", 100, 1, 0, 0).begin().result()
    assert seen["submitted"] < 0.1
    assert seen["query"] == NOT_READY
    assert seen["ms"] >= 99.9


def test_run_ahead_ends(node: Any) -> None:
    """1,024 launches are queued; the next call blocks."""
    seen = Worker(node, "spin_100us", 2048, 1, 0, 0).begin().result()
    assert 0.09 < seen["submitted"] < seen["total"] - 0.05


def test_whole_cards_worth_of_kernels_do_not_overlap(node: Any) -> None:
    seen = Worker(node, "spin_1ms", 10, 4, 1, 0).begin().result()
    assert seen["total"] >= 0.04
    assert node.card()["busy_ns"] == pytest.approx(40e6, rel=0.05)


def test_processes_share_by_time_slices(node: Any) -> None:
    """Two processes that always have work get half each, whatever the length of their kernels."""
    short, long = Worker(node, "spin_100us", 100, 1, 1, 0.5), Worker(node, "spin_3ms", 4, 1, 1, 0.5)
    short.begin()
    long.begin()
    seen = [short.result(), long.result()]
    busy = [seen[0]["count"] * 0.1, seen[1]["count"] * 3]
    assert busy[0] == pytest.approx(busy[1], rel=0.5)
    assert node.card()["switches"] > 100


def test_an_idle_context_yields_at_once(node: Any) -> None:
    """A process without work delays no other, although it has a context."""
    idle = node.client().start()
    seen = Worker(node, "spin_1ms", 50, 1, 0, 0).begin().result()
    assert 49.9 <= seen["ms"] < 120
    assert idle("info")[0] == 0


def test_a_killed_process_does_not_keep_the_card(node: Any) -> None:
    hog = Worker(node, "spin_60000ms", 1, 1, 0, 0).begin()
    quick = Worker(node, "spin_1ms", 10, 1, 0, 0)
    hog.process.kill()
    hog.process.communicate()
    assert quick.begin().result()["total"] < 1


def test_slices_are_the_profiles(make_node: Callable[..., Any], simctl: Any) -> None:
    profile = {**simctl.load_profile("t4x1"), "timing": {"slice_us": 10000, "switch_us": 50, "kernel_us": 10}}
    node = make_node(profile)
    workers = [Worker(node, "spin_5ms", 20, 1, 0, 0) for _ in range(2)]
    for worker in workers:
        worker.begin()
    for worker in workers:
        worker.result()
    assert 10 <= node.card()["switches"] <= 30


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
    assert Worker(node, "spin_1ms", 10, 1, 0, 0).begin().result()["ms"] < 100
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
