"""Containers that share a simulated card and visit it one at a time, by the wall's clock; what they tell each other.

Belongs here: boxes with one presence file, their limits and pages, and what the file's locks say (presence.c). Not what
is to be expected of them: test_time_slices.py.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from struct import Struct

from vcuda_boxes import CHECKOUT, INCLUDE, SOURCES, SimBox, compile_c

from vgpu.config import core_schedule, limits, usage

LOAD = CHECKOUT / "tests/bench/cores_load"
FLOCK = Struct("=hh4xqqi4x")
F_OFD_GETLK, F_OFD_SETLK = 36, 37
OWN_BITS, TIME_SHIFT = 38, 16
VISIT = Struct("=QQ")
VISIT_OFFSET = 16  #: in the usage region: until, waiting_since
USED = 8  #: in struct vgpu_usage_time
MS, SECOND = 1_000_000, 1_000_000_000
PATIENCE = 20  #: seconds, for what would otherwise hang
PRESENCE_SIZE = 4096


def card_offset(uuid: str) -> int:
    """Where the bytes of a card begin."""
    value = 0xCBF29CE484222325
    for byte in limits.uuid_bytes(uuid):
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return value >> 40 << (OWN_BITS + 1)


def line_offset(uuid: str, since: int = 0) -> int:
    """The byte of those who stand in line since that time of the host."""
    return card_offset(uuid) + (1 << OWN_BITS) + (since >> TIME_SHIFT) % (1 << OWN_BITS)


def patience(shares: Sequence[int]) -> float:
    """Seconds for which one waits for another that does not go: visit.c."""
    return 2 * core_schedule.period_of(list(shares)) / 1e9 + 0.1


class Locks:
    """The presence file, as somebody of no container sees it."""

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def has(self, start: int, length: int = 1) -> bool:
        flock = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
        return FLOCK.unpack(fcntl.fcntl(self.fd, F_OFD_GETLK, flock))[0] != fcntl.F_UNLCK

    def set(self, kind: int, start: int, length: int = 1) -> None:
        fcntl.fcntl(self.fd, F_OFD_SETLK, FLOCK.pack(kind, os.SEEK_SET, start, length, 0))

    def close(self) -> None:
        os.close(self.fd)


class Visitor:
    """One container and its programs."""

    def __init__(self, box: SimBox, programs: Path, locks: Locks) -> None:
        self.box = box
        self.programs = programs
        self.locks = locks
        self.processes: list[subprocess.Popen[bytes]] = []

    # ---- what it is told ----

    def limit(self, cores: int, cards: Sequence[int] = (0,)) -> None:
        entries = [limits.CardLimit(uuid, limits.UNLIMITED, cores, cores) for uuid in map(self.uuid, cards)]
        (self.box.path / "limits").write_bytes(limits.encode("box", entries))

    def pages(self, pages: list[core_schedule.CoreSchedule]) -> None:
        (self.box.path / "cards").write_bytes(core_schedule.encode(pages))

    def uuid(self, card: int = 0) -> str:
        return str(self.box.cards()[card]["uuid"])

    # ---- its programs ----

    def popen(self, *words: str) -> subprocess.Popen[bytes]:
        environment = {**self.box.environment, "VGPU_LOG_LEVEL": "warning"}
        with (self.box.path / "log").open("ab") as log:
            process = subprocess.Popen(
                self.box.command(*words), env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log
            )
        self.processes.append(process)
        return process

    def flood(self, **options: object) -> subprocess.Popen[bytes]:
        words = {"kernel": "fixed:1000000", "wait": 0, "end": 60 * SECOND, **options}
        return self.popen(str(self.programs / "cores_load"), *(f"{name}={value}" for name, value in words.items()))

    def start(self, *case: str) -> subprocess.Popen[bytes]:
        process = self.popen(str(self.programs / "time_slice_cases"), *case)
        assert self.says(process) == "ready", self.log
        return process

    def says(self, process: subprocess.Popen[bytes]) -> str:
        assert process.stdout
        return process.stdout.readline().decode().strip()

    def stop_at_work(self, process: subprocess.Popen[bytes]) -> None:
        """Stopped by itself while it says that it is at work (case "stop")."""
        for _ in range(50):
            process.send_signal(signal.SIGUSR1)
            until(lambda: is_stopped(process.pid))
            if self.is_at_work():
                return
            process.send_signal(signal.SIGCONT)
            time.sleep(0.01)
        raise AssertionError("never stopped at work")

    def stop_in_line(self, process: subprocess.Popen[bytes]) -> None:
        for _ in range(50):
            until(self.is_in_line)
            process.send_signal(signal.SIGSTOP)
            until(lambda: is_stopped(process.pid))
            if self.is_in_line() and not self.is_at_work():
                return
            process.send_signal(signal.SIGCONT)
            time.sleep(0.01)
        raise AssertionError("never stopped in line")

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            assert process.stdout
            process.stdout.close()

    # ---- what it says and does ----

    def own_byte(self, card: int = 0) -> int:
        return card_offset(self.uuid(card)) + (self.box.path / "limits").stat().st_ino % (1 << OWN_BITS)

    def is_at_work(self, card: int = 0) -> bool:
        return self.locks.has(self.own_byte(card))

    def is_in_line(self) -> bool:
        since = VISIT.unpack_from((self.box.path / "usage/usage").read_bytes(), VISIT_OFFSET)[1]
        return bool(since) and self.locks.has(line_offset(self.box.uuid, since))

    def busy(self, card: int = 0) -> int:
        """ns that its programs had of the card, by the card; those that ended are not forgotten."""
        pids = {process.pid for process in self.processes}
        known = self.box.cards()[card]["processes"]
        return sum(int(process["busy_ns"]) for process in known if process["pid"] in pids)

    def used(self, card: int = 0) -> int:
        """ns that it was charged."""
        data = (self.box.path / "usage/usage").read_bytes()
        place = usage.places(data[: usage.CARDS_END])[self.uuid(card)]
        return int(usage.TIME.unpack_from(data, usage.TIMES_OFFSET + place * usage.TIME.size)[USED])

    def goes_on(self) -> float:
        """Seconds until it has done a little more."""
        began, busy = time.monotonic(), self.busy()
        until(lambda: self.busy() - busy > 3 * MS)
        return time.monotonic() - began

    @property
    def log(self) -> str:
        return self.box.log


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it hangs"
        time.sleep(0.002)


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


class Node:
    """Makes the containers of a node, and looks at what the card gives each of them."""

    def __init__(self, make_box: Callable[[str], SimBox], directory: Path) -> None:
        self.make_box = make_box
        self.directory = directory
        self.presence = directory / "presence"
        self.presence.write_bytes(bytes(PRESENCE_SIZE))
        self.locks = Locks(self.presence)
        self.sharing_containers: list[Visitor] = []
        libraries = ["-ldl", "-lm", "-lpthread"]
        compile_c(directory / "time_slice_cases", SOURCES / "time_slice_cases.c", *libraries)
        others = [str(LOAD / name) for name in ("peers.c", "lies.c")]
        compile_c(directory / "cores_load", LOAD / "load.c", *others, *libraries, f"-I{INCLUDE}")

    def visitor(self, profile: str = "t4x1") -> Visitor:
        made = Visitor(self.make_box(profile), self.directory, self.locks)
        os.link(self.presence, made.box.path / "presence")
        self.sharing_containers.append(made)
        return made

    def share_out(self, *shares: int) -> list[Visitor]:
        """A container for each share of the one card."""
        made = [self.visitor() for _ in shares]
        for visitor, share, page in zip(made, shares, core_schedule.schedule(made[0].uuid(), list(shares))):
            visitor.limit(share)
            visitor.pages([page])
        return made

    def shares(self, *of: Visitor, seconds: float = 0.5, card: int = 0) -> list[float]:
        """Percent of the card's time from now on."""
        began, before = time.monotonic(), [visitor.busy(card) for visitor in of]
        time.sleep(seconds)
        took = (time.monotonic() - began) * 1e9
        return [(visitor.busy(card) - busy) / took * 100 for visitor, busy in zip(of, before)]

    def close(self) -> None:
        for visitor in self.sharing_containers:
            visitor.close()
        self.locks.close()
