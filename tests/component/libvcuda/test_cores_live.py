"""The core share while kills, loans, leases and damage happen, on the simulator in real time, with generous ratios."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Callable

import pytest
from checkout import LOAD_SOURCES
from vcuda_boxes import INCLUDE, SimBox, compile_c

from vgpu.config import core_schedule, limits, usage

pytestmark = pytest.mark.flaky(reruns=1)  # real time: other programs of the machine may delay a measurement

MS, SECOND = 1_000_000, 1_000_000_000
SETTLE = 0.4
F_OFD_SETLK = 37


class Loads:
    """Programs of a container that always want more of the card."""

    def __init__(self, box: SimBox, program: Path) -> None:
        self.box = box
        self.program = program
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, **options: object) -> subprocess.Popen[bytes]:
        words = {"kernel": "fixed:1000000", "wait": 0, "end": 60 * SECOND, **options}
        command = self.box.command(str(self.program), *(f"{name}={value}" for name, value in words.items()))
        process = subprocess.Popen(command, env=self.box.environment, stdout=subprocess.DEVNULL)
        self.processes.append(process)
        return process

    def limit(self, cores: int, core_limit: int = 0) -> None:
        card = limits.CardLimit(self.box.uuid, limits.UNLIMITED, cores, max(cores, core_limit))
        (self.box.path / "limits").write_bytes(limits.encode("box", [card]))

    def share(self, seconds: float = 1.0) -> float:
        """The part of the card's time that the container uses from now on."""
        began, busy = time.monotonic(), self.busy()
        time.sleep(seconds)
        return (self.busy() - busy) / 1e9 / (time.monotonic() - began)

    def has(self, share: float) -> bool:
        """Assert that it gets its share or a little less, as a busy machine delays its programs' launches."""
        return 0.6 * share < self.share() < 1.1 * share

    def busy(self) -> int:
        return int(self.box.cards()[0]["busy_ns"])

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def loads(t4: SimBox, tmp_path: Path) -> Iterator[Loads]:
    first, *others = LOAD_SOURCES
    program = compile_c(tmp_path / "load", Path(first), *others, f"-I{INCLUDE}", "-ldl", "-lm", "-lpthread")
    running = Loads(t4, program)
    yield running
    running.close()


def test_a_killed_process_leaves_no_debt_and_no_time_slice(loads: Loads) -> None:
    loads.limit(40)
    victims = [loads.start() for _ in range(3)]
    loads.start()
    time.sleep(SETTLE)
    for victim in victims:
        victim.kill()
        victim.wait()
    time.sleep(SETTLE)
    assert loads.has(0.4)


def test_lent_time_is_used_and_given_back(loads: Loads) -> None:
    loads.limit(20, 80)
    path = loads.box.path / "cards"
    forever = time.monotonic_ns() + 60 * SECOND
    path.write_bytes(
        core_schedule.encode([core_schedule.CoreSchedule(loads.box.uuid, lent_until=forever, lent_rate=100, tenants=2)])
    )
    loads.start()
    time.sleep(SETTLE)
    assert loads.has(0.8), "never more than the core limit"
    core_schedule.update(str(path), core_schedule.CoreSchedule(loads.box.uuid, tenants=2))
    time.sleep(0.2)
    assert loads.has(0.2)


def test_a_lease_ends_by_itself(loads: Loads) -> None:
    loads.limit(20, 80)
    lease = time.monotonic_ns() + 300 * MS
    page = core_schedule.CoreSchedule(loads.box.uuid, lent_until=lease, lent_rate=80, tenants=2)
    (loads.box.path / "cards").write_bytes(core_schedule.encode([page]))
    loads.start()
    time.sleep(2 * SETTLE)
    assert loads.has(0.2)


@pytest.mark.parametrize("period", [1, 1 << 63, 2**64 - 1])
def test_a_nonsensical_period_is_ignored(loads: Loads, period: int) -> None:
    loads.limit(50)
    page = core_schedule.CoreSchedule(loads.box.uuid, period, tenants=1, share=2**32 - 1)
    (loads.box.path / "cards").write_bytes(core_schedule.encode([page]))
    loads.start()
    time.sleep(SETTLE)
    assert loads.has(0.5)


@pytest.mark.parametrize(("offset", "until", "share"), [(3600, 60, 0.2), (-3600, -60, 0.8)], ids=["ahead", "behind"])
def test_a_time_namespaces_clock_is_set_right(loads: Loads, offset: int, until: int, share: float) -> None:
    """A lease ends by the host's clock, which is ahead of the container's."""
    loads.limit(20, 80)
    lease = time.monotonic_ns() + until * SECOND
    page = core_schedule.CoreSchedule(loads.box.uuid, lent_until=lease, lent_rate=80, tenants=1)
    (loads.box.path / "cards").write_bytes(core_schedule.encode([page], clock_offset=offset * SECOND))
    loads.start()
    time.sleep(SETTLE)
    assert loads.has(share)


def first_byte(uuid: str) -> int:
    """The first byte of the presence file that containers of the card lock."""
    mixed = 0xCBF29CE484222325
    for byte in limits.uuid_bytes(uuid):
        mixed = (mixed ^ byte) * 0x100000001B3 % 2**64
    return mixed >> 40 << 39


def lock(file: IO[bytes], kind: int, start: int, length: int) -> None:
    fcntl.fcntl(file, F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, start, length, 0))


@pytest.mark.long
@pytest.mark.parametrize("moves", [False, True], ids=["everywhere at once", "ever elsewhere"])
def test_a_permanent_forged_lock_is_ignored_soon(loads: Loads, moves: bool) -> None:
    """It locks the whole file, or one byte after the other, each before it unlocks the last."""
    loads.limit(50)
    path = loads.box.path / "presence"
    path.write_bytes(bytes(4096))
    (loads.box.path / "cards").write_bytes(
        core_schedule.encode([core_schedule.CoreSchedule(loads.box.uuid, 50 * MS, tenants=2)])
    )
    start = first_byte(loads.box.uuid)
    with path.open("rb") as first, path.open("rb") as second:
        lock(first, fcntl.F_RDLCK, start, 1 if moves else 0)
        loads.start()
        for number in range(1, 160):
            time.sleep(0.05)
            if moves:
                lock(second if number % 2 else first, fcntl.F_RDLCK, start + number, 1)
                lock(first if number % 2 else second, fcntl.F_UNLCK, 0, 0)
            if loads.busy() > 200 * MS:
                break
        assert loads.busy() > 200 * MS, "it works though the other is still there"


def test_the_host_reads_the_containers_figures(loads: Loads) -> None:
    loads.limit(30)
    loads.start()
    time.sleep(2 * SETTLE)
    data = (loads.box.path / "usage/usage").read_bytes()
    times = data[usage.TIMES_OFFSET : usage.FLIGHTS_OFFSET]
    said = usage.time_at(times, usage.places(data[: usage.CARDS_END])[loads.box.uuid])
    assert said.used == pytest.approx(loads.busy(), rel=0.2)
    assert time.monotonic_ns() - said.wanted < SECOND
    assert said.longest >= 0.5 * MS
    assert usage.has_counts(data[: usage.CARDS_END])
    assert sum(said.waits) > 0
    assert said.throttled > 0.3 * SETTLE * SECOND, "with a share of 30 a flood waits for most of the time"


def test_garbage_in_the_usage_region_has_a_bounded_effect(loads: Loads) -> None:
    """A container that overwrites its own fields is throttled for a while only, and is held to its share again."""
    loads.limit(50)
    loads.start()
    time.sleep(SETTLE)
    with (loads.box.path / "usage/usage").open("r+b") as file:
        file.seek(usage.TIMES_OFFSET)
        file.write(b"\xff" * usage.TIME.size)
        file.seek(usage.TIMES_OFFSET)
        file.write((-(1 << 62)).to_bytes(8, "little", signed=True))
    time.sleep(SETTLE)
    assert loads.has(0.5)


def test_a_reservation_that_was_too_large_is_returned(loads: Loads) -> None:
    """Between bursts of short kernels, whose launches reserve more than they use, no work is in flight."""
    loads.limit(50)
    loads.start(kernel="fixed:20000", launches=40, wait=1, gap=100 * MS)
    time.sleep(SETTLE)
    reserved = []
    for _ in range(60):
        data = (loads.box.path / "usage/usage").read_bytes()
        flights = data[usage.FLIGHTS_OFFSET :][: usage.SLOTS * usage.FLIGHT.size]
        reserved.append(sum(in_flight for in_flight, _ in usage.FLIGHT.iter_unpack(flights)))
        time.sleep(0.01)
    assert reserved.count(0) > len(reserved) / 2


def test_an_exclusive_card_is_not_slowed(loads: Loads) -> None:
    loads.limit(100)
    loads.start()
    time.sleep(SETTLE)
    assert loads.share() > 0.9


def test_two_containers_are_charged_separately(sim_box: Callable[..., SimBox], loads: Loads) -> None:
    other = Loads(sim_box("t4x1"), loads.program)
    try:
        pages = core_schedule.schedule(loads.box.uuid, [60, 30])
        for one, cores, page in ((loads, 60, pages[0]), (other, 30, pages[1])):
            one.limit(cores)
            (one.box.path / "cards").write_bytes(core_schedule.encode([page]))
            one.start()
        time.sleep(SETTLE)
        assert loads.has(0.9)
        loads.close()
        time.sleep(SETTLE)
        assert loads.has(0.3), "a hard share does not grow"
    finally:
        other.close()
