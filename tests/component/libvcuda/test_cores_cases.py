"""The core share of programs with unusual behaviour (tests/data/cuda/cores_cases.c), in real time."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

import pytest
from vcuda_boxes import SOURCES, SimBox, compile_c

from vgpu.config import core_schedule, limits, usage

pytestmark = pytest.mark.flaky(reruns=1)  # real time: other programs of the machine may delay a measurement

MS = 1_000_000
USED = 8  #: in struct vgpu_usage_time
SETTLE = 0.2
PATIENCE = 15  #: seconds, after which a test takes a program for hung


class Cases:
    """Runs cases in a box. Reads the card's ledger and the container's usage region."""

    def __init__(self, box: SimBox, program: Path) -> None:
        self.box = box
        self.program = program
        self.processes: list[subprocess.Popen[bytes]] = []

    def limit(self, cores: int) -> None:
        cards = [limits.CardLimit(card["uuid"], limits.UNLIMITED, cores, cores) for card in self.box.cards()]
        (self.box.path / "limits").write_bytes(limits.encode("box", cards))

    def popen(self, case: str) -> subprocess.Popen[bytes]:
        with (self.box.path / "log").open("ab") as log:
            process = subprocess.Popen(
                self.box.command(str(self.program), case),
                env=self.box.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self.processes.append(process)
        return process

    def start(self, case: str) -> subprocess.Popen[bytes]:
        process = self.popen(case)
        assert process.stdout and process.stdout.readline() == b"ready\n", self.box.log
        return process

    def finish(self, case: str) -> None:
        process = self.popen(case)
        assert process.wait(PATIENCE) == 0, self.box.log

    def busy(self, card: int = 0) -> int:
        return int(self.box.cards()[card]["busy_ns"])

    def share(self, card: int = 0, seconds: float = 0.6) -> float:
        began, busy = time.monotonic(), self.busy(card)
        time.sleep(seconds)
        return (self.busy(card) - busy) / 1e9 / (time.monotonic() - began)

    def shares(self, enough: float) -> list[float]:
        """Percent, measured until it is `enough`, as a busy machine delays the programs' launches."""
        got = [100 * self.share()]
        while got[-1] < enough and len(got) < 8:
            got.append(100 * self.share())
        return got

    def words(self, card: int = 0) -> tuple[int, ...]:
        """The fields level, stamp, holder, ... of the card: struct vgpu_usage_time."""
        data = (self.box.path / "usage/usage").read_bytes()
        place = usage.places(data[: usage.CARDS_END])[self.box.cards()[card]["uuid"]]
        return usage.TIME.unpack_from(data, usage.TIMES_OFFSET + place * usage.TIME.size)

    def in_flight(self, card: int = 0) -> int:
        """The work in flight of all processes of the container."""
        data = (self.box.path / "usage/usage").read_bytes()
        place = usage.places(data[: usage.CARDS_END])[self.box.cards()[card]["uuid"]]
        flights = data[usage.FLIGHTS_OFFSET + place * usage.SLOTS * usage.FLIGHT.size :][
            : usage.SLOTS * usage.FLIGHT.size
        ]
        return sum(in_flight for in_flight, _ in usage.FLIGHT.iter_unpack(flights))

    def holder(self) -> int:
        """The pid of the process that has the time slice, or waits for it with work in flight."""
        data = (self.box.path / "usage/usage").read_bytes()
        owners = [
            slot[0] & ((1 << 22) - 1) for slot in usage.SLOT.iter_unpack(data[usage.CARDS_END : usage.CHARGES_OFFSET])
        ]
        deadline = time.monotonic() + 5
        while not (slot := self.words()[2]) and time.monotonic() < deadline:
            time.sleep(0.0005)
        return owners[slot - 1]

    def lives(self) -> bool:
        return all(process.poll() is None for process in self.processes)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            assert process.stdin and process.stdout
            process.stdin.close()
            process.stdout.close()


@pytest.fixture
def make(sim_box: Callable[..., SimBox], tmp_path: Path) -> Iterator[Callable[[str], Cases]]:
    """Makes boxes that share one compiled program."""
    made: list[Cases] = []

    def one(profile: str = "t4x1") -> Cases:
        if not made:
            compile_c(tmp_path / "cases", SOURCES / "cores_cases.c", "-ldl", "-lpthread")
        made.append(Cases(sim_box(profile), tmp_path / "cases"))
        return made[-1]

    yield one
    for cases in made:
        cases.close()


@pytest.mark.parametrize(
    ("case", "share", "least", "most"),
    [
        ("fork early", 30, 0.6, 1.5),
        ("captures", 30, 0.4, 1.5),  # an event cannot be recorded while another thread captures: estimates are charged
        ("host functions", 10, 0.6, 1.5),
        ("priorities", 5, 0.6, 1.5),
        ("short threads", 10, 0.6, 4),  # on a busy machine, the threads' starts delay each record of a begin or end
        ("green", 30, 0.6, 1.5),
    ],
)
def test_the_share_holds(make: Callable[[], Cases], case: str, share: int, least: float, most: float) -> None:
    """A program gets at least `least` of its share. On a busy machine it is charged at most `most` times its use."""
    cases = make()
    cases.limit(share)
    cases.start(case)
    time.sleep(SETTLE)
    used, busy = cases.words()[USED], cases.busy()
    got = cases.shares(least * share)
    assert cases.lives(), cases.box.log
    assert max(got) < 1.2 * share
    assert max(got) > least * share or cases.words()[USED] - used < most * (cases.busy() - busy) + 20 * MS


@pytest.mark.parametrize("case", ["fork late", "waiting function", "end early"])
def test_it_comes_to_an_end(make: Callable[[], Cases], case: str) -> None:
    cases = make()
    cases.limit(30)
    cases.finish(case)
    cases.finish(case)


def test_a_context_that_ends_leaves_no_work_in_flight(make: Callable[[], Cases]) -> None:
    cases = make()
    cases.limit(30)
    process = cases.start("destroy")
    assert cases.in_flight() == 0
    assert cases.words()[0] > -200 * MS
    assert process.stdin
    process.stdin.write(b"go\n")
    process.stdin.flush()
    time.sleep(SETTLE)
    assert 20 < max(cases.shares(20)) < 36


def test_groups_and_neighbours_progress(make: Callable[[str], Cases]) -> None:
    """A launch on two cards together, while another container uses both."""
    ours, other = make("a100x2"), make("a100x2")
    uuids = [card["uuid"] for card in ours.box.cards()]
    for index, cases in enumerate((ours, other)):
        cases.limit(50)
        (cases.box.path / "cards").write_bytes(
            core_schedule.encode([core_schedule.schedule(one, [50, 50])[index] for one in uuids])
        )
    ours.start("group")
    alone = ours.share()
    other.start("fork early")
    time.sleep(SETTLE)
    before = {process["pid"]: process["busy_ns"] for process in ours.box.cards()[1]["processes"]}
    ours.share()
    after = {process["pid"]: process["busy_ns"] for process in ours.box.cards()[1]["processes"]}
    assert alone > 0.2
    assert ours.lives() and other.lives(), ours.box.log + other.box.log
    assert sum(after.values()) > sum(before.values())


def test_a_process_that_is_killed_in_its_time_slice_blocks_no_other(make: Callable[[], Cases]) -> None:
    """After each kill the container's other processes go on, and together they get its share."""
    cases = make()
    cases.limit(40)
    for _ in range(4):
        cases.start("fork early")
    time.sleep(SETTLE)
    for _ in range(3):
        victim = cases.holder()
        os.kill(victim, signal.SIGKILL)
        killed, busy = time.monotonic(), cases.busy()
        while cases.busy() - busy < 12 * MS and time.monotonic() - killed < 5:  # more than the work in flight
            time.sleep(0.002)
        assert time.monotonic() - killed < 1  # 30 ms at 40 percent
    time.sleep(SETTLE)
    assert 24 < max(cases.shares(24)) < 48
