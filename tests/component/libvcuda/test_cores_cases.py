"""The core share of programs with unusual behaviour (tests/data/cuda/cores_cases.c), in virtual time."""

from __future__ import annotations

import os
import random
import signal

import pytest
from sharing_containers import MS, SECOND, Container, Node
from virtual_director import wait_for

from vgpu.config import core_schedule, usage

SETTLE = 1200 * MS  # after a second alone a program may launch far ahead
LEVEL, HOLDER, USED = 0, 2, 8  #: in struct vgpu_usage_time


def total(container: Container, card: int = 0) -> int:
    """ns for which all programs kept the card busy, children too."""
    return int(container.box.cards()[card]["busy_ns"])


def share(container: Container, card: int = 0, within: int = SECOND) -> float:
    before = total(container, card)
    container.director.run(within)
    return (total(container, card) - before) / within * 100


@pytest.mark.parametrize(
    ("case", "percent", "processes", "most"),
    [
        ("fork early", 30, 2, 1.05),
        ("captures", 30, 1, 1.5),  # an event cannot be recorded while another thread captures: estimates are charged
        ("host functions", 10, 1, 1.05),
        ("priorities", 5, 1, 1.05),
        ("short threads", 10, 1, 1.1),
        ("green", 30, 1, 1.05),
        ("many contexts", 30, 1, 1.05),
    ],
)
def test_the_share_holds(node: Node, case: str, percent: int, processes: int, most: float) -> None:
    """A program is charged what it uses, or at most `most` times that, and gets accordingly less."""
    container = node.container()
    container.limit(percent)
    container.start(case, program="cores_cases", programs=processes)
    container.director.run(SETTLE)
    used, busy = container.words()[USED], total(container)
    got = share(container)
    charged = (container.words()[USED] - used) / (total(container) - busy)
    assert container.lives(), container.log
    assert 0.95 < charged < most
    assert 0.95 * percent < got * charged < 1.05 * percent


@pytest.mark.parametrize(("case", "least"), [("captures", 25), ("short threads", 1)])
def test_the_poller_leaves_captured_and_destroyed_streams_alone(node: Node, case: str, least: int) -> None:
    """Beside others it puts events behind quiet work. In a capture one would make that invalid. Beside the short
    threads the neighbour had 57 to 70.
    """
    ours, other = node.share_out(30, 70)
    ours.start(case, program="cores_cases")
    other.flood()
    node.director.run(SETTLE)
    got, rest = node.shares(ours, other)
    assert ours.lives(), ours.log
    assert least < got < 32  # a quota or two may be carried into the window
    assert rest > 50


def test_launches_that_are_held_back_in_their_streams(node: Node) -> None:
    """A program that has left the card idle launches ahead of its slices. All of its work ends, whatever it does
    meanwhile: waits, polls, forks, failing launches, streams and contexts that end. It is charged what it uses.
    """
    seed = int(os.environ.get("VGPU_SEED") or random.randrange(1 << 30))
    print(f"VGPU_SEED={seed}")
    ours, other = node.share_out(30, 70)
    process = ours.start("held back", str(seed), program="cores_cases")
    other.flood()
    lines = [ours.read_line(process) for _ in range(4)]
    used, busy, rest = ours.words()[USED], ours.busy(), other.busy()
    lines += [ours.read_line(process) for _ in range(12)]
    assert "ahead" in lines, ours.log  # mostly ten of sixteen; none where its threads wait
    assert 0.95 < (ours.words()[USED] - used) / (ours.busy() - busy) < 1.1
    assert other.busy() - rest > 2 * (ours.busy() - busy)


@pytest.mark.parametrize("case", ["fork late", "waiting function", "end early"])
def test_it_comes_to_an_end(real_node: Node, case: str) -> None:
    """In real time, as what the threads do meanwhile is left to chance."""
    container = real_node.container()
    container.limit(30)
    for _ in range(2):
        process = container.popen(str(container.programs / "cores_cases"), case)
        wait_for(lambda process=process: process.poll() is not None)  # type: ignore[misc]
        assert process.returncode == 0, container.log


def test_a_context_that_ends_leaves_no_work_in_flight(node: Node) -> None:
    container = node.container()
    container.limit(30)
    container.start("destroy", program="cores_cases")
    assert container.in_flight() == 0
    assert container.words()[LEVEL] > -200 * MS
    container.director.run(SETTLE)
    assert share(container) == pytest.approx(30, rel=0.1)


def test_groups_and_neighbours_progress(node: Node) -> None:
    """A launch on two cards together, while another container uses both."""
    ours, other = node.container("a100x2"), node.container("a100x2")
    uuids = [ours.uuid(card) for card in range(2)]
    for index, container in enumerate((ours, other)):
        container.limit(50, [0, 1])
        container.write_schedules([core_schedule.schedule(one, [50, 50])[index] for one in uuids])
    ours.start("group", program="cores_cases")
    assert share(ours) > 45
    other.start("fork early", program="cores_cases", programs=2)
    node.director.run(SETTLE)
    before = ours.busy(1)
    node.director.run(SECOND)
    assert ours.lives() and other.lives(), ours.log + other.log
    assert ours.busy(1) - before > SECOND // 4


def test_a_process_that_is_killed_in_its_time_slice_blocks_no_other(node: Node) -> None:
    """After each kill the container's other processes go on, and together they get its share."""
    container = node.container()
    container.limit(40)
    for _ in range(4):
        container.start("fork early", program="cores_cases", programs=2)
    node.director.run(SETTLE)
    for _ in range(3):
        node.director.until(lambda: container.words()[HOLDER])
        data = (container.box.path / "usage/usage").read_bytes()
        slots = list(usage.SLOT.iter_unpack(data[usage.CARDS_END : usage.CHARGES_OFFSET]))
        os.kill(slots[container.words()[HOLDER] - 1][0] & ((1 << 22) - 1), signal.SIGKILL)
        busy = total(container)
        took = node.director.until(lambda busy=busy: total(container) - busy > 12 * MS)  # type: ignore[misc]
        assert took < SECOND  # 30 ms at 40 percent; the time of a killed holder ends at the next look of another
    node.director.run(SETTLE)
    assert share(container) == pytest.approx(40, rel=0.1)
