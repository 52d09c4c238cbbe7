"""Which slots of a usage region count, by made-up /proc trees. Real processes: tests/system/test_memory_used.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vgpu.config import usage
from vgpu.config.usage import Owner
from vgpu.node.daemon.slot_owners import ended

REGION = 77
TICKS = os.sysconf("SC_CLK_TCK")


class Proc:
    """A /proc in which a namespace is a file, by name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.process("self")

    def namespace(self, name: str) -> Path:
        file = self.path / f"namespace-{name}"
        file.touch()
        return file

    def process(
        self,
        name: str,
        inside: int = 0,
        pid: str = "c",
        time: str = "host",
        boot: str = "0 0",
        maps: int | None = REGION,
    ) -> None:
        directory = self.path / name
        (directory / "ns").mkdir(parents=True)
        (directory / "task").mkdir()
        for kind, which in (("pid", pid), ("time", time), ("mnt", "m")):
            (directory / "ns" / kind).symlink_to(self.namespace(f"{kind}-{which}"))
        (directory / "status").write_text(f"Name:\tx\nNSpid:\t{name}\t{inside}\n")
        (directory / "timens_offsets").write_text(f"monotonic 0 0\nboottime {boot}\n")
        line = f"7f0-7f1 rw-s 00000000 00:31 {maps}   /usr/local/vgpu/usage/usage\n" if maps else ""
        (directory / "maps").write_text("400-401 r-xp 00000000 08:01 5   /bin/x\n" + line)

    def inode(self, name: str) -> int:
        return self.namespace(name).stat().st_ino

    def owner(self, slot: int, pid: int, start: int, pid_namespace: str = "c", time: str = "host") -> Owner:
        namespaces = self.inode(f"time-{time}") << 32 | self.inode(f"pid-{pid_namespace}")
        return Owner(slot, start << usage.PID_BITS | pid, namespaces)

    def ended(self, owner: Owner, *processes: tuple[int, int]) -> bool:
        return ended([owner], list(processes), REGION, str(self.path)) == {owner.slot}


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def test_a_process_is_its_pid_inside_with_its_start_time(proc: Proc) -> None:
    proc.process("4007", 7)
    assert not proc.ended(proc.owner(3, 7, 500), (4007, 500))
    assert proc.ended(proc.owner(3, 7, 500))
    assert proc.ended(proc.owner(3, 7, 500), (4007, 501)), "the pid was reused"
    assert proc.ended(proc.owner(3, 8, 500), (4007, 500))
    assert proc.ended(proc.owner(3, 7, 500, pid_namespace="nested"), (4007, 500))


def test_the_same_pid_in_two_namespaces(proc: Proc) -> None:
    proc.process("4001", 1)
    proc.process("4009", 1, pid="nested")
    processes = ((4001, 100), (4009, 900))
    assert not proc.ended(proc.owner(0, 1, 100), *processes)
    assert not proc.ended(proc.owner(0, 1, 900, pid_namespace="nested"), *processes)
    assert proc.ended(proc.owner(0, 1, 900), *processes)


def test_a_time_namespace_shifts_the_start_time(proc: Proc) -> None:
    proc.process("4007", 7, time="shifted", boot="3600 7000000")
    for start in (500 + 3600 * TICKS, 500 + 3600 * TICKS + 1):
        assert not proc.ended(proc.owner(0, 7, start, time="shifted"), (4007, 500))
    for start in (500, 500 + 3600 * TICKS + 2):
        assert proc.ended(proc.owner(0, 7, start, time="shifted"), (4007, 500))
    (proc.path / "4007/timens_offsets").write_text("")
    assert not proc.ended(proc.owner(0, 7, 500, time="shifted"), (4007, 500)), "its first thread has ended"


def test_a_process_that_executed_another_program_holds_nothing(proc: Proc) -> None:
    proc.process("4007", 7, maps=None)
    assert proc.ended(proc.owner(0, 7, 500), (4007, 500))
    os.unlink(proc.path / "4007/maps")
    assert not proc.ended(proc.owner(0, 7, 500), (4007, 500)), "in doubt it counts"


def test_a_process_without_its_first_thread(proc: Proc) -> None:
    proc.process("4007", 7, maps=None)
    for name in ("mnt", "time"):
        os.unlink(proc.path / "4007/ns" / name)
    proc.process("4007/task/4008", 8)
    assert not proc.ended(proc.owner(0, 7, 500), (4007, 500))


def test_what_an_owner_does_not_say_does_not_clear_its_slot(proc: Proc) -> None:
    """Without a usable /proc in the container, the slot has a pid only."""
    proc.process("4007", 7)
    for namespaces in (0, usage.UNKNOWN_NAMESPACES):
        assert not proc.ended(Owner(0, 7, namespaces), (4007, 500))
        assert proc.ended(Owner(0, 8, namespaces), (4007, 500))


def test_a_slot_that_another_process_clears_counts_no_more(proc: Proc) -> None:
    proc.process("4007", 7)
    assert proc.ended(Owner(0, usage.REAPING | 500 << usage.PID_BITS | 7, 0), (4007, 500))
