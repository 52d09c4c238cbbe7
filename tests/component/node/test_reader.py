"""Readers: processes that read what a container may block, and that nobody waits for."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from daemons import wait_for

from vgpu.config.errors import VgpuError
from vgpu.node.daemon import reader
from vgpu.node.daemon.reader import BATCH, Reader

Start = Callable[[Callable[[object], object]], Reader]
NEVER = 600.0
LONG = 60.0
SHORT = 0.3


def echo(request: object) -> object:
    return request


def sleep_at_2(request: object) -> object:
    if request == 2:
        time.sleep(NEVER)
    return request


def busy_at_2(request: object) -> object:
    end = time.monotonic() + NEVER
    while request == 2 and time.monotonic() < end:
        pass
    return request


def fail_at_2(request: object) -> object:
    if request == 2:
        raise OSError("no")
    if request == 3:
        raise VgpuError("it", expected="so", found="not so")
    return request


def die_at_2(request: object) -> object:
    if request == 2:
        os._exit(1)
    return request


@pytest.fixture
def start() -> Iterator[Start]:
    made: list[Reader] = []

    def one(answer: Callable[[object], object]) -> Reader:
        made.append(Reader(answer))
        return made[-1]

    yield one
    for item in made:
        item.stop()
        wait_for(item.gone)


def test_answers_come_in_the_order_of_the_requests(start: Start) -> None:
    one = start(echo)
    many = list(range(3 * BATCH + 1))
    assert one.ask(many, LONG, LONG) == many
    assert one.ask([[1, {"a": None}], "b"], LONG, LONG) == [[1, {"a": None}], "b"]
    assert not one.stuck


def test_a_request_that_fails_has_no_answer(start: Start) -> None:
    assert start(fail_at_2).ask([1, 2, 3, 4], LONG, LONG) == [1, None, None, 4]


@pytest.mark.parametrize("answer", [sleep_at_2, die_at_2])
def test_a_request_without_an_answer_ends_the_list(start: Start, answer: Callable[[object], object]) -> None:
    one = start(answer)
    assert one.ask([0, 1, 2, 3], SHORT, LONG) == [0, 1]
    assert one.stuck
    assert one.blocked


def test_a_reader_that_is_slow_but_not_blocked_has_until_the_end(start: Start) -> None:
    one = start(busy_at_2)
    began = time.monotonic()
    assert one.ask([0, 1, 2], 0.1, 1.0) == [0, 1]
    assert time.monotonic() - began >= 1.0
    assert one.stuck


@pytest.mark.parametrize(("worked", "blocked"), [(0.05, False), (0.2, True)])
def test_a_reader_that_gets_no_processor_is_not_blocked(
    start: Start, monkeypatch: pytest.MonkeyPatch, worked: float, blocked: bool
) -> None:
    one, states = start(sleep_at_2), [(True, 1.0)]
    monkeypatch.setattr(one, "_state", lambda: states.pop() if states else (True, 1.0 + worked))
    assert one.ask([0, 1, 2], 0.1, 0.6) == [0, 1]
    assert (one.stuck, one.blocked) == (True, blocked)


def test_nobody_waits_for_a_readers_end(start: Start) -> None:
    one = start(sleep_at_2)
    one.begin(2)
    assert not one.poll()
    one.stop()
    wait_for(one.gone)


def test_a_probe_is_polled(start: Start) -> None:
    one = start(echo)
    one.begin(1)
    wait_for(one.poll)


def test_each_goes_on_with_another_reader_until_the_time_is_over() -> None:
    found = reader.each(5, sleep_at_2, SHORT, LONG)
    assert (found.answers, found.silent) == ({0: 0, 1: 1, 3: 3, 4: 4}, [2])
    found = reader.each(5, lambda index: time.sleep(NEVER) if index else 0, 5.0, 1.0)
    assert (found.answers, found.silent) == ({0: 0}, [1, 2, 3, 4])


def test_a_reader_that_is_left_behind_holds_no_pipe_of_the_caller(tmp_path: Path) -> None:
    """Else whoever reads the output of vgpuctl would wait for the container that blocks its reader."""
    script = """
import os, time
from vgpu.node.daemon.reader import Reader
one = Reader(lambda request: time.sleep(600))
one.begin(1)
print(one.pid, sorted(os.readlink(f"/proc/{one.pid}/fd/{fd}") for fd in (0, 1, 2)), flush=True)
time.sleep(600)
"""
    program = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert program.stdout is not None
        pid = int(program.stdout.readline().split()[0])
        kept = wait_for(lambda: _descriptors(pid), what="it kept pipes and /dev/null alone")
        assert os.readlink(f"/proc/{program.pid}/fd/1") not in kept
    finally:
        program.kill()
        program.communicate()
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), what="it died with its parent")


def _descriptors(pid: int) -> list[str]:
    """The reader's descriptors, once they are pipes and /dev/null at 0, 1 and 2: it replaces one after the other."""
    found = []
    with contextlib.suppress(OSError):
        found = [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
    return found if [target for target in found if not target.startswith("pipe:")] == ["/dev/null"] * 3 else []
