"""Processes and threads race for one limit by pools, graphs and plain allocations. No byte is exceeded or lost.

The held bytes are those of the simulated card's ledger, read as often as possible during the race.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from vcuda_boxes import Compiled, SimBox

MIB = 1 << 20
LIMIT = 256 * MIB
PATIENCE = 240


@pytest.fixture
def racers(t4: SimBox, compiled: Compiled) -> Iterator[Racers]:
    racers = Racers(t4, compiled("pool_race.c", "-ldl", "-lpthread"))
    yield racers
    racers.close()


class Racers:
    def __init__(self, box: SimBox, program: Path) -> None:
        self.box = box
        self.program = program
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, processes: int, threads: int, rounds: int) -> None:
        for seed in range(processes):
            command = self.box.command(str(self.program), str(threads), str(rounds), str(2 * MIB), str(seed))
            with (self.box.path / "log").open("ab") as log:
                self.processes.append(
                    subprocess.Popen(
                        command,
                        env=self.box.environment,
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=log,
                        text=True,
                    )
                )
        for process in self.processes:
            assert process.stdout and process.stdout.readline() == "ready\n", self.box.log

    def begin(self) -> None:
        for process in self.processes:
            assert process.stdin
            process.stdin.write("go\n")
            process.stdin.flush()

    def answers(self) -> Iterator[list[int]]:
        for process in self.processes:
            assert process.stdout
            yield [int(word) for word in process.stdout.readline().split()]

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.communicate()


def watched(racers: Racers) -> tuple[list[list[int]], int]:
    """The racers' reports, and the most bytes that the card's ledger had for them without their contexts."""
    box, most, over = racers.box, 0, threading.Event()
    contexts = len(racers.processes) * box.context

    def look() -> None:
        nonlocal most
        while not over.is_set():
            most = max(most, box.cards()[0]["used"] - contexts)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        racers.begin()
        answers = list(racers.answers())
    finally:
        over.set()
        watcher.join()
    return answers, most


@pytest.mark.parametrize(("processes", "threads", "rounds"), [(8, 8, 300), (64, 4, 60)])
def test_racing_for_pools_and_graphs_never_exceeds_the_limit_and_loses_no_byte(
    t4: SimBox, racers: Racers, processes: int, threads: int, rounds: int
) -> None:
    t4.limit(LIMIT)
    racers.start(processes, threads, rounds)
    answers, most = watched(racers)
    granted, refused, failed = (sum(column) for column in zip(*answers))
    assert (len(answers), failed) == (processes, 0)
    assert granted > 0
    assert refused > 0
    assert LIMIT // 4 < most <= LIMIT
    assert t4.held() == 0
    assert t4.caller().left() == LIMIT
    assert t4.usage()[1:] == (0, 0)
