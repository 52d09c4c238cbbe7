"""Containers that visit a card in turn, while things happen to them; by the wall's clock, so with generous ratios."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

import pytest
from vcuda_boxes import SimBox
from sharing_containers import MS, Locks, Node, Visitor, card_offset, patience, until

from vgpu.config import core_schedule

SETTLE = 0.25
WHOLE_FILE = 1 << 62


@pytest.fixture
def node(sim_box: Callable[..., SimBox], tmp_path: Path) -> Iterator[Node]:
    made = Node(sim_box, tmp_path)
    yield made
    made.close()


def assert_shares(node: Node, wanted: dict[Visitor, int], card: int = 0) -> None:
    """Looks again while a busy machine keeps programs from asking in time; more than the share is never right."""
    for _ in range(6):
        before = [(visitor.used(card), visitor.busy(card)) for visitor in wanted]
        got = node.shares(*wanted, card=card)
        assert all(one < 1.3 * share for one, share in zip(got, wanted.values())), got
        if all(one > 0.65 * share for one, share in zip(got, wanted.values())):
            for visitor, (used, busy) in zip(wanted, before):
                assert visitor.used(card) - used < 1.4 * (visitor.busy(card) - busy) + 20 * MS
            return
    raise AssertionError(got)


def both_at_work(one: Visitor, other: Visitor, seconds: float = 0.4) -> float:
    """The part of the time in which both say so."""
    ends, seen = time.monotonic() + seconds, []
    while time.monotonic() < ends:
        seen.append(one.is_at_work() and other.is_at_work())
        time.sleep(0.001)
    return sum(seen) / len(seen)


# ---- stopped and killed ----


def test_one_that_is_stopped_at_work(node: Node) -> None:
    """The other waits as long as a long kernel may take, once; then it goes on as if it were alone."""
    stopped, other = node.share_out(50, 50)
    process = stopped.start("stop")
    other.flood()
    time.sleep(SETTLE)
    until(other.is_in_line)
    stopped.stop_at_work(process)
    waited = other.goes_on()
    assert waited < 3 * patience((50, 50))
    assert stopped.is_at_work(), "it was in the way"
    assert_shares(node, {other: 50})
    process.send_signal(signal.SIGCONT)
    assert_shares(node, {stopped: 50, other: 50})
    assert both_at_work(stopped, other) < 0.2


def test_one_that_is_stopped_in_line(node: Node) -> None:
    stopped, other = node.share_out(50, 50)
    process = stopped.flood()
    other.flood()
    time.sleep(SETTLE)
    stopped.stop_in_line(process)
    assert other.goes_on() < 0.7 * patience((50, 50)), "who does not take its turn is not waited for so long"
    assert_shares(node, {other: 50})
    process.send_signal(signal.SIGCONT)
    time.sleep(SETTLE)
    assert_shares(node, {stopped: 50, other: 50})


@pytest.mark.parametrize("place", ["at work", "in line"])
def test_one_that_is_killed(node: Node, place: str) -> None:
    """Its locks go with it: nobody waits."""
    killed, other = node.share_out(50, 50)
    process = killed.flood()
    other.flood()
    time.sleep(SETTLE)
    until(killed.is_at_work if place == "at work" else killed.is_in_line)
    process.kill()
    process.wait()
    assert not killed.is_at_work() and not killed.is_in_line()
    assert other.goes_on() < patience((50, 50))
    assert_shares(node, {other: 50})
    killed.flood()
    time.sleep(SETTLE)
    assert_shares(node, {killed: 50, other: 50})


# ---- files ----


def test_one_that_closes_its_files_and_opens_others(node: Node, tmp_path: Path) -> None:
    """As daemons do. What has the number now is never locked, nor unlocked."""
    strange = tmp_path / "strange"
    strange.write_bytes(b"\0" * 100)
    locks = Locks(strange)
    closing, other = node.share_out(50, 50)
    process = closing.start("close", str(strange.resolve()))
    other.flood()
    time.sleep(SETTLE)
    for is_locked in (True, False) * 3:
        until(closing.is_at_work)
        process.send_signal(signal.SIGUSR1)
        assert closing.says(process) == "done"
        until(lambda: not closing.is_at_work())
        until(closing.is_in_line)
        assert locks.has(closing.own_byte()) == is_locked, "nor takes one away"
        assert locks.has(0, WHOLE_FILE) == is_locked
    assert_shares(node, {closing: 50, other: 50})
    assert both_at_work(closing, other) < 0.2
    assert not locks.has(0, WHOLE_FILE)
    locks.close()


def test_a_child_does_not_keep_up_what_its_parent_says(node: Node) -> None:
    parent, other = node.share_out(50, 50)
    process = parent.start("child")
    other.flood()
    time.sleep(SETTLE)
    process.send_signal(signal.SIGUSR1)
    child = int(parent.says(process))
    try:
        assert both_at_work(parent, other) < 0.2, "nor does it take that away"
        until(parent.is_at_work)
        process.kill()
        process.wait()
        assert not parent.is_at_work()
        assert other.goes_on() < patience((50, 50))
        assert_shares(node, {other: 50})
    finally:
        os.kill(child, signal.SIGKILL)


def test_children_that_come_and_go(node: Node) -> None:
    parent, other = node.share_out(50, 50)
    parent.start("children")
    other.flood()
    time.sleep(SETTLE)
    assert_shares(node, {parent: 50, other: 50})
    assert both_at_work(parent, other) < 0.2


def test_an_exec_ends_the_visit(node: Node) -> None:
    one, other = node.share_out(50, 50)
    process = one.start("exec")
    other.flood()
    time.sleep(SETTLE)
    process.send_signal(signal.SIGUSR1)
    assert one.says(process) == "ready"
    assert other.goes_on() < patience((50, 50))
    assert_shares(node, {one: 50, other: 50})


# ---- processes, threads, cards ----


def test_processes_and_threads_share_their_containers_visit(node: Node) -> None:
    many, other = node.share_out(50, 50)
    processes = [many.flood(threads=2) for _ in range(3)]
    other.flood()
    time.sleep(SETTLE)
    assert_shares(node, {many: 50, other: 50})
    assert both_at_work(many, other) < 0.2
    busy = {process["pid"]: process["busy_ns"] for process in many.box.cards()[0]["processes"]}
    assert all(busy[process.pid] > 20 * MS for process in processes)


def test_the_last_process_that_ends_gives_the_visit_up(node: Node) -> None:
    many, other = node.share_out(50, 50)
    processes = [many.start("end") for _ in range(2)]
    other.flood()
    time.sleep(SETTLE)
    for process in processes:
        until(many.is_at_work)
        process.send_signal(signal.SIGUSR1)
        assert process.wait(10) == 0, many.log
        assert other.goes_on() < patience((50, 50))
    assert not many.is_at_work()
    assert_shares(node, {other: 50})


def cards_of(node: Node, both: int, shares: tuple[int, int]) -> tuple[list[Visitor], Visitor, Visitor]:
    """Containers on two cards together, and one on each of them besides; both have the same shares on either."""
    wide = [node.visitor("a100x2") for _ in range(both)]
    narrow = [node.visitor("a100x2") for _ in range(2)]
    for card in range(2):
        narrow[card].limit(shares[1], [card])
        pages = core_schedule.schedule(wide[0].uuid(card), [shares[0]] * both + [shares[1]])
        narrow[card].pages([pages[-1]])
    for index, visitor in enumerate(wide):
        visitor.limit(shares[0], [0, 1])
        every = [core_schedule.schedule(visitor.uuid(card), [shares[0]] * both + [shares[1]]) for card in range(2)]
        visitor.pages([pages[index] for pages in every])
    return wide, narrow[0], narrow[1]


def test_a_container_on_two_cards_beside_one_on_each(node: Node) -> None:
    (wide,), *narrow = cards_of(node, 1, (50, 50))
    wide.flood(cards=2, streams=2)
    for card, visitor in enumerate(narrow):
        visitor.flood(card=card)
    time.sleep(2 * SETTLE)
    for card, visitor in enumerate(narrow):
        assert_shares(node, {wide: 50, visitor: 50}, card)


def test_two_containers_on_two_cards_crosswise(node: Node) -> None:
    """Kernels that wait for each other across the cards, of two containers that begin with different ones: none waits
    for ever. How much of its share each has depends on whether their visits get mixed (docs/compute-limit.md).
    """
    one, other = (node.visitor("a100x2") for _ in range(2))
    for index, visitor in enumerate((one, other)):
        visitor.limit(50, [0, 1])
        visitor.pages([core_schedule.schedule(visitor.uuid(card), [50, 50])[index] for card in range(2)])
    for index, visitor in enumerate((one, other)):
        for card in (index, 1 - index):
            visitor.flood(card=card, meet=7 + index, parties=2)
    time.sleep(2 * SETTLE)
    for card in range(2):
        got = node.shares(one, other, seconds=1, card=card)
        assert all(share > 12 for share in got), got


# ---- the file itself ----


def absent(path: Path) -> None:
    path.unlink()


def other_size(size: int) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.unlink()
        path.write_bytes(bytes(size))

    return write


def no_file(path: Path) -> None:
    path.unlink()
    path.mkdir()


def other_contents(path: Path) -> None:
    path.unlink()
    path.write_bytes(b"\xff" * 4096)


@pytest.mark.parametrize(
    "change",
    [absent, other_size(0), other_size(3), other_size(1 << 20), no_file, other_contents],
    ids=["absent", "empty", "too short", "long", "a directory", "other contents"],
)
def test_a_presence_file_that_is_none(node: Node, change: Callable[[Path], None]) -> None:
    """Then it goes on as one whose work mixes with others', and says so once at most."""
    without, other = node.share_out(40, 40)
    change(without.box.path / "presence")
    process = without.flood()
    other.flood()
    time.sleep(SETTLE)
    began = cpu(process)
    got = node.shares(without, other, seconds=1)
    assert all(12 < share < 52 for share in got), got
    assert cpu(process) - began < 0.5, "it does not spin"
    assert len(without.log.splitlines()) <= 1, without.log


def cpu(process: subprocess.Popen[bytes]) -> float:
    """Seconds."""
    words = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def test_a_card_offset_is_the_cards(node: Node) -> None:
    """Two cards' bytes do not meet."""
    visitor = node.visitor("a100x2")
    assert abs(card_offset(visitor.uuid(0)) - card_offset(visitor.uuid(1))) >= 1 << 39
