"""Containers that share a simulated card by time slices, in virtual time, and the locks by which they see each other.

Belongs here: boxes with one presence file for each card, their limits and core schedules, and the locks on these files
(compute/presence.c). What the tests expect of them is in test_time_slices.py and test_cores_live.py.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from struct import Struct

from checkout import LOAD_SOURCES
from vcuda_boxes import INCLUDE, SOURCES, SimBox, compile_c
from virtual_director import MS, SECOND, Director, wait_for

from vgpu.config import core_schedule, limits, usage

FLOCK = Struct("=hh4xqqi4x")
F_OFD_GETLK, F_OFD_SETLK = 36, 37
OWN_BITS, TIME_SHIFT = 38, 16
SLICE = Struct("=QQ")
SLICE_OFFSET = 16  #: in the usage region: until, waiting_since
USED = 8  #: in struct vgpu_usage_time
ENDS = 3600 * SECOND  #: when a program ends that is not killed


def card_offset(uuid: str) -> int:
    """Where the bytes of a card begin."""
    value = 0xCBF29CE484222325
    for byte in limits.uuid_bytes(uuid):
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return value >> 40 << (OWN_BITS + 1)


def queue_offset(uuid: str, since: int = 0) -> int:
    """The byte that a container locks which has waited in the queue since that time of the host."""
    return card_offset(uuid) + (1 << OWN_BITS) + (since >> TIME_SHIFT) % (1 << OWN_BITS)


def patience(shares: Sequence[int]) -> int:
    """ns for which a container waits for one that does not leave, and has no lease: compute/neighbours.c."""
    return 2 * core_schedule.period_of(list(shares)) + 100 * MS


class Locks:
    """Presence files, as a process outside all containers sees their locks."""

    def __init__(self, *paths: Path) -> None:
        self.open: list[int] = []
        for path in paths:
            self.add(path)

    def add(self, path: Path) -> None:
        self.open.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def has(self, start: int, length: int = 1) -> bool:
        flock = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
        found = [FLOCK.unpack(fcntl.fcntl(fd, F_OFD_GETLK, flock))[0] for fd in self.open]
        return any(kind != fcntl.F_UNLCK for kind in found)

    def set(self, kind: int, start: int, length: int = 1) -> None:
        for fd in self.open:
            fcntl.fcntl(fd, F_OFD_SETLK, FLOCK.pack(kind, os.SEEK_SET, start, length, 0))

    def close(self) -> None:
        for fd in self.open:
            os.close(fd)


class Container:
    """One container and its programs."""

    def __init__(self, box: SimBox, programs: Path, locks: Locks, director: Director | None) -> None:
        self.box = box
        self.begin = director.started if director else subprocess.Popen
        self.director: Director = director  # type: ignore[assignment]
        self.programs = programs
        self.locks = locks
        self.processes: list[subprocess.Popen[bytes]] = []

    # ---- its limits and schedules ----

    def limit(self, cores: int, cards: Sequence[int] = (0,), core_limit: int = 0) -> None:
        most = max(cores, core_limit)
        entries = [limits.CardLimit(uuid, limits.UNLIMITED, cores, most) for uuid in map(self.uuid, cards)]
        (self.box.path / "limits").write_bytes(limits.encode("box", entries))

    def write_schedules(self, schedules: list[core_schedule.CoreSchedule], **options: int) -> None:
        (self.box.path / "cards").write_bytes(core_schedule.encode(schedules, **options))

    def uuid(self, card: int = 0) -> str:
        return str(self.box.cards()[card]["uuid"])

    def presence_file(self, card: int = 0) -> Path:
        return self.box.path / "presence" / core_schedule.presence_name(self.uuid(card))

    # ---- its programs ----

    def popen(self, *words: str) -> subprocess.Popen[bytes]:
        environment = {**self.box.environment, "VGPU_LOG_LEVEL": "warning"}
        with (self.box.path / "log").open("ab") as log:
            process = self.begin(
                self.box.command(*words), env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log
            )
        self.processes.append(process)
        return process

    def flood(self, **options: object) -> subprocess.Popen[bytes]:
        words = {"kernel": "fixed:1000000", "wait": 0, "end": ENDS, **options}
        return self.popen(str(self.programs / "cores_load"), *(f"{name}={value}" for name, value in words.items()))

    def start(self, *case: str, program: str = "time_slice_cases", programs: int = 1) -> subprocess.Popen[bytes]:
        """Start a case, which becomes so many programs."""
        already = self.director.clock()["processes"]
        process = self.popen(str(self.programs / program), *case)
        wait_for(lambda: self.director.clock()["processes"] >= already + programs or process.poll() is not None)
        assert self.read_line(process) == "ready", self.log
        return process

    def read_line(self, process: subprocess.Popen[bytes]) -> str:
        assert process.stdout
        self.director.until(lambda: select.select([process.stdout], [], [], 0)[0])
        return process.stdout.readline().decode().strip()

    def stop_while_working(self, process: subprocess.Popen[bytes]) -> None:
        """Make the program of case "stop" stop itself while its container is marked as working."""
        for _ in self.director.steps(SECOND, 10 * MS):
            process.send_signal(signal.SIGUSR1)
            self.director.until(lambda: is_stopped(process.pid), step=MS // 5)
            if self.is_working():
                return
            self.director.go_on(process)
        raise AssertionError("never stopped while working")

    def stop_while_queued(self, process: subprocess.Popen[bytes]) -> None:
        self.director.until(lambda: self.is_queued() and not self.is_working(), step=MS // 5)
        process.send_signal(signal.SIGSTOP)
        wait_for(lambda: is_stopped(process.pid))

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            assert process.stdout
            process.stdout.close()

    # ---- what it locks and uses ----

    def working_byte(self, card: int = 0) -> int:
        return card_offset(self.uuid(card)) + (self.box.path / "limits").stat().st_ino % (1 << OWN_BITS)

    def is_working(self, card: int = 0) -> bool:
        return self.locks.has(self.working_byte(card))

    def is_queued(self) -> bool:
        since = SLICE.unpack_from((self.box.path / "usage/usage").read_bytes(), SLICE_OFFSET)[1]
        return bool(since) and self.locks.has(queue_offset(self.box.uuid, since))

    def busy(self, card: int = 0) -> int:
        """ns that its programs used of the card, by the simulator's ledger; programs that ended count too."""
        pids = {process.pid for process in self.processes}
        processes = self.box.cards()[card]["processes"]
        return sum(int(process["busy_ns"]) for process in processes if process["pid"] in pids)

    def words(self, card: int = 0) -> tuple[int, ...]:
        """The fields level, stamp, holder, ... of the card: struct vgpu_usage_time."""
        data = (self.box.path / "usage/usage").read_bytes()
        place = usage.places(data[: usage.CARDS_END])[self.uuid(card)]
        return usage.TIME.unpack_from(data, usage.TIMES_OFFSET + place * usage.TIME.size)

    def used(self, card: int = 0) -> int:
        """ns that libvcuda charged it."""
        return self.words(card)[USED]

    def in_flight(self) -> int:
        """ns of work of all its processes that has not finished, on the first card."""
        data = (self.box.path / "usage/usage").read_bytes()
        begin = (
            usage.FLIGHTS_OFFSET + usage.places(data[: usage.CARDS_END])[self.uuid()] * usage.SLOTS * usage.FLIGHT.size
        )
        flights = usage.FLIGHT.iter_unpack(data[begin : begin + usage.SLOTS * usage.FLIGHT.size])
        return sum(in_flight for in_flight, _ in flights)

    def lives(self) -> bool:
        return all(process.poll() is None for process in self.processes)

    def time_to_progress(self) -> int:
        """ns until it has used 3 ms more of the card."""
        busy = self.busy()
        return self.director.until(lambda: self.busy() - busy > 3 * MS)

    @property
    def log(self) -> str:
        return self.box.log


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def compiled(directory: Path) -> Path:
    """A directory with the programs that containers run."""
    libraries = ["-ldl", "-lm", "-lpthread"]
    for name in ("time_slice_cases", "cores_cases"):
        compile_c(directory / name, SOURCES / f"{name}.c", *libraries)
    first, *others = LOAD_SOURCES
    compile_c(directory / "cores_load", Path(first), *others, *libraries, f"-I{INCLUDE}")
    return directory


class Node:
    """Makes the containers of a node, and measures each one's share of the card. The wall clock has no director."""

    def __init__(self, make_box: Callable[..., SimBox], directory: Path, programs: Path, clock: str) -> None:
        self.make_box = make_box
        self.directory = directory
        self.clock = clock
        self.director: Director = None  # type: ignore[assignment]
        self.programs = programs
        self.presence: dict[str, Path] = {}  # by card uuid
        self.locks = Locks()
        self.containers: list[Container] = []

    def container(self, profile: str = "t4x1", **options: bool) -> Container:
        box = self.make_box(profile, clock=self.clock, **options)
        if self.clock == "virtual" and not self.director:
            self.director = Director(
                box.simctl, Path(box.environment["VGPU_SIM_DIR"]), box.path / "driver/libcuda.so.1"
            )
        made = Container(box, self.programs, self.locks, self.director)
        (made.box.path / "presence").mkdir()
        for number, card in enumerate(box.cards()):
            os.link(self._presence_of(str(card["uuid"])), made.presence_file(number))
        self.containers.append(made)
        return made

    def _presence_of(self, uuid: str) -> Path:
        if uuid not in self.presence:
            path = self.presence[uuid] = self.directory / core_schedule.presence_name(uuid)
            path.write_bytes(bytes(core_schedule.PRESENCE_SIZE))
            self.locks.add(path)
        return self.presence[uuid]

    def share_out(self, *shares: int, **options: bool) -> list[Container]:
        """Make a container for each share of one card."""
        made = [self.container(**options) for _ in shares]
        for container, share, schedule in zip(made, shares, core_schedule.schedule(made[0].uuid(), list(shares))):
            container.limit(share)
            container.write_schedules([schedule])
        return made

    def shares(self, *of: Container, within: int = SECOND, card: int = 0) -> list[float]:
        """Percent of the card's time that each container uses from now on."""
        before = [container.busy(card) for container in of]
        self.director.run(within)
        return [(container.busy(card) - busy) / within * 100 for container, busy in zip(of, before)]

    def close(self) -> None:
        for container in self.containers:
            container.close()
        if self.director:
            self.director.close()
        self.locks.close()
