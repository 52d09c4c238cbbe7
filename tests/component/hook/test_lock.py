"""The ledger's lock with real processes: they get it one at a time, in order of arrival, although some die or stop."""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from daemons import wait_for

from vgpu.hook.ledger import lock as lock_module
from vgpu.hook.ledger.lock import Lock, first_ticket

WAIT = 120.0


class Queue:
    """Children that queue for the lock in `directory`. Each writes its number when it has the lock."""

    def __init__(self, directory: Path) -> None:
        self.directory = str(directory)
        self.fd = os.open(directory / "ledger.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        self.read, self.write = os.pipe()
        self.children: dict[int, int] = {}

    def join(self, number: int, hold: Callable[[], None] = lambda: None) -> int:
        """Start a child that waits. It has its ticket when this returns."""
        before = len(self.tickets())
        child = os.fork()
        if child == 0:
            os._exit(self._wait(number, hold))
        self.children[number] = child
        wait_for(lambda: len(self.tickets()) > before)
        return child

    def _wait(self, number: int, hold: Callable[[], None]) -> int:
        os.closerange(3, self.write)  # the lock that the parent holds among them: it would be held by all
        os.closerange(self.write + 1, 256)
        signal.alarm(int(WAIT))
        try:
            with Lock(self.directory):
                os.write(self.write, b"%c" % number)
                hold()
        except BaseException:  # a child must never come back into pytest
            traceback.print_exc()
            return 1
        return 0

    def tickets(self) -> list[int]:
        """All tickets that are held, in the order of their numbers."""
        found: list[int] = []
        spans = [(0, lock_module._NO_END)]
        while spans:
            low, high = spans.pop()
            ticket = first_ticket(self.fd, low, high)
            if ticket >= 0:
                found.append(ticket)
                spans += [(low, ticket), (ticket + 1, high)]
        return sorted(found)

    def order(self, count: int) -> list[int]:
        """The numbers of the children that had the lock, as soon as there are `count`."""
        had = b""
        while len(had) < count:
            assert select.select([self.read], [], [], WAIT)[0], f"{list(had)} alone had the lock"
            had += os.read(self.read, 1)
        return list(had)

    def kill(self, number: int) -> None:
        child = self.children.pop(number)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

    def ended(self) -> list[int]:
        return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in self.children.values()]

    def close(self) -> None:
        for child in self.children.values():
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
        for fd in (self.fd, self.read, self.write):
            os.close(fd)


@pytest.fixture
def line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    """In which nobody is passed, however slow the machine is."""
    monkeypatch.setattr(lock_module, "STALL", WAIT)
    monkeypatch.setattr(lock_module, "TIMEOUT", WAIT)
    made = Queue(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("seed", range(3))
def test_survivors_get_the_lock_in_the_order_of_arrival(line: Queue, seed: int) -> None:
    """Thirty wait. The first and a third of the others are killed, before the lock is free or while they hold it."""
    chance = random.Random(seed)
    with Lock(line.directory):
        for number in range(30):
            line.join(number)
        killed = {0, *chance.sample(range(1, 30), 9)}
        for number in killed:
            line.kill(number)
        assert len(line.tickets()) == 20
    left = [number for number in range(30) if number not in killed]
    assert line.order(len(left)) == left
    assert set(line.ended()) == {0}
    assert line.tickets() == []


def test_a_holder_that_is_killed_leaves_the_lock_to_the_next(line: Queue) -> None:
    with Lock(line.directory):
        line.join(0, hold=signal.pause)
        for number in range(1, 6):
            line.join(number)
    assert line.order(1) == [0]
    line.kill(0)
    assert line.order(5) == [1, 2, 3, 4, 5]


def test_a_newcomer_does_not_overtake_waiting_processes(line: Queue) -> None:
    """The lock is free for a moment, but a process that waits has a right to it."""
    with Lock(line.directory):
        first = line.join(0)
        os.kill(first, signal.SIGSTOP)
    line.join(1)  # it draws a ticket: the lock is free, but 0 was there before
    os.kill(first, signal.SIGCONT)
    assert line.order(2) == [0, 1]


def test_a_stopped_process_is_skipped_and_the_others_stay_in_order(line: Queue, monkeypatch) -> None:
    monkeypatch.setattr(lock_module, "STALL", 3.0)  # the others wake sooner on any machine
    with Lock(line.directory):
        for number in range(6):
            line.join(number)
        for number in (0, 2):
            os.kill(line.children[number], signal.SIGSTOP)
    assert line.order(4) == [1, 3, 4, 5]
    for number in (0, 2):
        os.kill(line.children[number], signal.SIGCONT)
    assert sorted(line.order(2)) == [0, 2]


def test_patience_restarts_while_a_slow_queue_moves(line: Queue, monkeypatch) -> None:
    """The last process waits for longer than TIMEOUT in all, and no holder keeps the lock for that long. Each takes
    longer than STALL, so that those behind pass it: the queue moves all the same."""
    monkeypatch.setattr(lock_module, "STALL", 0.1)
    monkeypatch.setattr(lock_module, "TIMEOUT", 6.0)  # a busy machine may take seconds to wake the next process
    with Lock(line.directory):
        for number in range(14):
            line.join(number, hold=lambda: time.sleep(0.5))
    assert sorted(line.order(14)) == list(range(14))
    assert set(line.ended()) == {0}


def test_a_process_that_does_not_wait_does_not_queue(line: Queue) -> None:
    with Lock(line.directory):
        child = line.join(0)
        os.kill(child, signal.SIGSTOP)
    with Lock(line.directory, wait=False):
        assert len(line.tickets()) == 1
    os.kill(child, signal.SIGCONT)
    assert line.order(1) == [0]
