"""Containers that share a card by time slices while programs are stopped, killed and forked, or lose their files.

Signals and forks are real, and time is virtual. Forged locks are in test_time_slices_forged.py.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

import attack_records
import bundles
import pytest
from checkout import CHECKOUT
from sharing_containers import MS, Container, Locks, Node, card_offset, is_stopped, patience
from vcuda_boxes import SOURCES, compile_c
from virtual_director import wait_for

from vgpu.config import core_schedule, usage

SETTLE = 250 * MS
SEED = int(os.environ.get("VGPU_SEED", "1"))
STOPS = "SIGSTOP of a container's own processes at random moments, with SIGCONT later or never"
STOPS_HELD = "the neighbour goes on within two periods and 100 ms; the shares are as before afterwards"
WHOLE_FILE = 1 << 62
TENANT = CHECKOUT / "tests/data/attacks/tenant.c"
FLOOD_LINE = "very many threads that wait there"


def assert_shares(node: Node, wanted: dict[Container, int], card: int = 0) -> None:
    before = [(container.used(card), container.busy(card)) for container in wanted]
    got = node.shares(*wanted, card=card)
    assert got == [pytest.approx(share, rel=0.1) for share in wanted.values()], node.director.clock()
    for container, (used, busy) in zip(wanted, before):
        assert container.used(card) - used == pytest.approx(container.busy(card) - busy, rel=0.1)


def both_working(one: Container, other: Container) -> float:
    """The part of the time in which both are marked as working."""
    seen = [one.is_working() and other.is_working() for _ in one.director.steps(300 * MS, 770_000)]
    return sum(seen) / len(seen)


def lock_shim(directory: Path) -> Path:
    shim = directory / "refuse_locks.so"
    compile_c(shim, SOURCES / "refuse_locks.c", "-shared", "-fPIC", "-ldl")
    return shim


# ---- stopped and killed ----


def test_a_container_that_is_stopped_while_working(node: Node) -> None:
    """The other container waits until its lease has lapsed, some ms: less than for one without a lease. Then it works
    as if it were alone."""
    stopped, other = node.share_out(50, 50)
    process = stopped.start("stop")
    other.flood()
    node.director.run(SETTLE)
    node.director.until(other.is_queued)
    stopped.stop_while_working(process)
    waited = other.time_to_progress()
    assert waited < patience((50, 50))
    assert stopped.is_working(), "the stopped container kept its lock"
    assert_shares(node, {other: 50})
    node.director.until(other.is_working)  # in a pause of it they would go on to ignore each other
    node.director.go_on(process)
    assert_shares(node, {stopped: 50, other: 50})
    assert both_working(stopped, other) < 0.2


def test_a_container_that_is_stopped_while_queued(node: Node) -> None:
    stopped, other = node.share_out(50, 50)
    process = stopped.flood()
    other.flood()
    node.director.run(SETTLE)
    stopped.stop_while_queued(process)
    assert other.time_to_progress() < 0.7 * patience((50, 50)), (
        "a container that does not begin its slice is skipped sooner"
    )
    assert_shares(node, {other: 50})
    node.director.go_on(process)
    node.director.run(SETTLE)
    assert_shares(node, {stopped: 50, other: 50})


SHAPES: dict[str, list[dict[str, object]]] = {
    "one process": [{}], "three processes": [{}, {"kernel": "fixed:200000"}, {"wait": 1}],
    "graphs": [{"graph": 8, "kernel": "fixed:500000"}], "in its lock calls": [{}],
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_a_container_whose_processes_stop_at_random_moments(
    node: Node, tmp_path: Path, pytestconfig: pytest.Config, shape: str
) -> None:
    """Its neighbour goes on each time within the documented time. Those that go on again, and others after those that
    never do, have their share; no time stays lost.
    """
    chance = random.Random(SEED)
    stopping, other = node.share_out(50, 50)
    in_locks = shape == "in its lock calls"
    if in_locks:
        stopping.box.environment.update(LD_PRELOAD=str(lock_shim(tmp_path)), STOP_AT_LOCKS=str(SEED))
    processes = [stopping.flood(**options) for options in SHAPES[shape]]
    stopping.box.environment.pop("LD_PRELOAD", None)
    other.flood()
    node.director.run(SETTLE)
    count = 100 if pytestconfig.getoption("--long") else 4
    for number in range(count):
        print(f"VGPU_SEED={SEED}: stop {number}, {shape}")
        node.director.run(chance.randrange(1, 100 * MS))
        if in_locks:
            node.director.until(lambda: is_stopped(processes[0].pid), step=MS // 5)
        chosen = [*processes] if chance.random() < 0.5 else [chance.choice(processes)]
        for process in chosen:
            process.send_signal(signal.SIGSTOP)
            wait_for(lambda process=process: is_stopped(process.pid))
        assert other.time_to_progress() < patience((50, 50)), "the neighbour waits for one that is stopped"
        node.director.run(chance.randrange(1, 300 * MS))
        for process in chosen:
            if chance.random() < 0.2 and not in_locks:
                process.kill()
                process.wait()
                processes[processes.index(process)] = stopping.flood()
            else:
                process.send_signal(signal.SIGCONT)
                wait_for(lambda process=process: not is_stopped(process.pid))
    for process in processes:
        process.kill()
        process.wait()
    again = stopping.flood()
    stopping.time_to_progress()
    node.director.run(2 * SETTLE)
    assert_shares(node, {stopping: 50, other: 50})
    assert again.poll() is None
    if count == 100:
        attack_records.save(attack_records.row(STOPS, "tenant", count, STOPS_HELD), f"stops-{shape.replace(' ', '-')}")


@pytest.mark.parametrize("place", ["working", "queued"])
def test_a_container_that_is_killed(node: Node, place: str) -> None:
    """The kernel drops its locks, so no container waits for it."""
    killed, other = node.share_out(50, 50)
    process = killed.flood()
    other.flood()
    node.director.run(SETTLE)
    node.director.until(killed.is_working if place == "working" else killed.is_queued)
    process.kill()
    process.wait()
    assert not killed.is_working() and not killed.is_queued()
    assert other.time_to_progress() < patience((50, 50))
    assert_shares(node, {other: 50})
    killed.flood()
    killed.time_to_progress()
    node.director.run(SETTLE)
    assert_shares(node, {killed: 50, other: 50})


# ---- files ----


def test_a_program_that_closes_its_files_and_opens_others(node: Node, tmp_path: Path) -> None:
    """Daemons do so. libvcuda never locks or unlocks the file that now has the descriptor's number."""
    strange = tmp_path / "strange"
    strange.write_bytes(b"\0" * 100)
    locks = Locks(strange)
    closing, other = node.share_out(50, 50)
    process = closing.start("close", str(strange.resolve()))
    other.flood()
    node.director.run(SETTLE)
    for is_locked in (True, False) * 3:
        node.director.until(closing.is_working)
        process.send_signal(signal.SIGUSR1)
        assert closing.read_line(process) == "done"
        node.director.until(lambda: not closing.is_working())
        node.director.until(closing.is_queued)
        assert locks.has(closing.working_byte()) == is_locked, "libvcuda changed no lock of the unrelated file"
        assert locks.has(0, WHOLE_FILE) == is_locked
    assert_shares(node, {closing: 50, other: 50})
    assert both_working(closing, other) < 0.2
    assert not locks.has(0, WHOLE_FILE)
    locks.close()


def test_a_child_does_not_keep_its_parents_locks(node: Node) -> None:
    parent, other = node.share_out(50, 50)
    process = parent.start("child")
    other.flood()
    node.director.run(SETTLE)
    process.send_signal(signal.SIGUSR1)
    child = int(parent.read_line(process))
    try:
        assert both_working(parent, other) < 0.2, "the child did not drop its parent's lock"
        node.director.until(parent.is_working)
        process.kill()
        process.wait()
        assert not parent.is_working()
        assert other.time_to_progress() < patience((50, 50))
        assert_shares(node, {other: 50})
    finally:
        os.kill(child, signal.SIGKILL)


def test_children_that_come_and_go(node: Node) -> None:
    parent, other = node.share_out(50, 50)
    parent.start("children")
    other.flood()
    node.director.run(SETTLE)
    assert_shares(node, {parent: 50, other: 50})
    assert both_working(parent, other) < 0.2


def test_an_exec_ends_the_time_slice(node: Node) -> None:
    one, other = node.share_out(50, 50)
    process = one.start("exec")
    other.flood()
    node.director.run(SETTLE)
    programs = node.director.clock()["processes"]
    process.send_signal(signal.SIGUSR1)
    node.director.until(lambda: Path(f"/proc/{process.pid}/cmdline").read_bytes().endswith(b"\0stop\0"))
    wait_for(lambda: node.director.clock()["processes"] > programs)
    assert one.read_line(process) == "ready"
    assert other.time_to_progress() < patience((50, 50))
    assert_shares(node, {one: 50, other: 50})


# ---- processes, threads, cards ----


def test_processes_and_threads_share_their_containers_time_slice(node: Node) -> None:
    many, other = node.share_out(50, 50)
    processes = [many.flood(threads=2) for _ in range(3)]
    other.flood()
    node.director.run(SETTLE)
    assert_shares(node, {many: 50, other: 50})
    assert both_working(many, other) < 0.2
    busy = {process["pid"]: process["busy_ns"] for process in many.box.cards()[0]["processes"]}
    assert all(busy[process.pid] > 20 * MS for process in processes)


def test_the_last_process_that_ends_ends_the_time_slice(node: Node) -> None:
    many, other = node.share_out(50, 50)
    processes = [many.start("end") for _ in range(2)]
    other.flood()
    node.director.run(SETTLE)
    for process in processes:
        node.director.until(many.is_working)
        process.send_signal(signal.SIGUSR1)
        node.director.until(lambda process=process: process.poll() is not None)
        assert process.returncode == 0, many.log
        assert other.time_to_progress() < patience((50, 50))
    assert not many.is_working()
    assert_shares(node, {other: 50})


def cards_of(node: Node, both: int, shares: tuple[int, int]) -> tuple[list[Container], Container, Container]:
    """Containers on two cards together, and one more on each card. Each kind has the same share of both cards."""
    wide = [node.container("a100x2") for _ in range(both)]
    narrow = [node.container("a100x2") for _ in range(2)]
    for card in range(2):
        narrow[card].limit(shares[1], [card])
        schedules = core_schedule.schedule(wide[0].uuid(card), [shares[0]] * both + [shares[1]])
        narrow[card].write_schedules([schedules[-1]])
    for index, container in enumerate(wide):
        container.limit(shares[0], [0, 1])
        every = [core_schedule.schedule(container.uuid(card), [shares[0]] * both + [shares[1]]) for card in range(2)]
        container.write_schedules([schedules[index] for schedules in every])
    return wide, narrow[0], narrow[1]


def test_a_container_on_two_cards_beside_one_on_each(node: Node) -> None:
    (wide,), *narrow = cards_of(node, 1, (50, 50))
    wide.flood(cards=2, streams=2)
    for card, container in enumerate(narrow):
        container.flood(card=card)
    node.director.run(2 * SETTLE)
    for card, container in enumerate(narrow):
        assert_shares(node, {wide: 50, container: 50}, card)


def test_two_containers_on_two_cards_crosswise(node: Node) -> None:
    """Two containers whose kernels wait for each other across the cards begin with different cards. No kernel waits
    for ever. How much of its share each gets depends on whether their time slices overlap (docs/compute-limit.md).
    """
    one, other = (node.container("a100x2") for _ in range(2))
    for index, container in enumerate((one, other)):
        container.limit(50, [0, 1])
        container.write_schedules([core_schedule.schedule(container.uuid(card), [50, 50])[index] for card in range(2)])
    for index, container in enumerate((one, other)):
        for card in (index, 1 - index):
            container.flood(card=card, meet=7 + index, parties=2)
    node.director.run(2 * SETTLE)
    for card in range(2):
        got = node.shares(one, other, card=card)
        assert all(share > 12 for share in got), got


# ---- what a sandbox refuses ----


def test_a_sandbox_that_refuses_locks(node: Node, tmp_path: Path) -> None:
    """The container says so. Its own account holds it to its share, though it sees nobody."""
    refused, other = node.share_out(40, 40)
    refused.box.environment["LD_PRELOAD"] = str(lock_shim(tmp_path))
    refused.flood()
    node.director.until(lambda: refused.busy() > 3 * MS)
    assert_shares(node, {refused: 40})
    assert not refused.is_working()
    lines = refused.log.splitlines()
    assert len(lines) == 1 and "does not take turns with others" in lines[0], lines
    other.flood()
    node.director.run(SETTLE)
    got = node.shares(refused, other)
    assert all(2 < share < 52 for share in got), got
    regions = [(one.box.path / "usage/usage").read_bytes() for one in (refused, other)]
    assert [usage.locks_are_refused(region) for region in regions] == [True, False]


def test_locks_that_take_long(real_node: Node, tmp_path: Path) -> None:
    """The container says so, and leaves the file with all its locks for a minute. Another one goes on taking turns."""
    flooded, other = real_node.share_out(40, 40)
    flooded.box.environment.update(LD_PRELOAD=str(lock_shim(tmp_path)), LOCKS_TAKE_LONG="1")
    process = flooded.flood()
    other.flood()
    wait_for(lambda: flooded.busy() > 3 * MS)
    wait_for(lambda: usage.locks_are_slow((flooded.box.path / "usage/usage").read_bytes()))
    assert not flooded.is_working() and not has_open(process, flooded.presence_file().name)
    wait_for(lambda: flooded.busy() > 100 * MS and other.busy() > 100 * MS)
    assert not usage.locks_are_slow((other.box.path / "usage/usage").read_bytes())
    lines = flooded.log.splitlines()
    assert len(lines) == 1 and "takes more than 10 us" in lines[0], lines


@contextlib.contextmanager
def waiters(presence: Path, directory: Path, count: int) -> Iterator[Callable[[], int]]:
    """So many threads of a third container wait on the presence file. Yields how often they have been woken since."""
    program = bundles.static_program(TENANT, directory)
    with subprocess.Popen([program, "waiters", str(count), presence], stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline() == b"ready\n"

        def states() -> list[tuple[str, int]]:
            texts = [(task / "status").read_text() for task in Path(f"/proc/{process.pid}/task").iterdir()]
            fields = [dict(line.split(":", 1) for line in text.splitlines()) for text in texts]
            return [(task["State"].split()[0], int(task["voluntary_ctxt_switches"])) for task in fields]

        wait_for(lambda: all(state == "S" for state, _ in states()))
        before = sum(switches for _, switches in states())
        try:
            yield lambda: sum(switches for _, switches in states()) - before
        finally:
            process.kill()


def test_very_many_threads_that_wait_for_the_card(real_node: Node, tmp_path: Path) -> None:
    """Containers that leave the card wake a few of them once, and from then on nobody for a minute."""
    containers = real_node.share_out(40, 40)
    with waiters(containers[0].presence_file(), tmp_path, 1000) as woken:
        for container in containers:
            container.flood()
        wait_for(lambda: all(FLOOD_LINE in container.log for container in containers))
        wait_for(lambda: all(container.busy() > 200 * MS for container in containers))
        assert woken() < 1000  # a single wake-up of all would be as many


def test_wake_ups_that_take_long(real_node: Node, tmp_path: Path) -> None:
    """Threads with bits of nobody are never woken, but the kernel goes over them."""
    flooded, other = real_node.share_out(40, 40)
    shim = tmp_path / "refuse_waits.so"
    compile_c(shim, SOURCES / "refuse_waits.c", "-shared", "-fPIC", "-ldl")
    flooded.box.environment.update(LD_PRELOAD=str(shim), WAKES_TAKE_LONG="1")
    flooded.flood()
    other.flood()
    wait_for(lambda: FLOOD_LINE in flooded.log)
    wait_for(lambda: flooded.busy() > 100 * MS and other.busy() > 100 * MS)
    assert FLOOD_LINE not in other.log


@pytest.mark.parametrize("all_waits", [False, True], ids=["waits for others", "all waits"])
def test_a_sandbox_that_refuses_to_wait(real_node: Node, tmp_path: Path, all_waits: bool) -> None:
    """The container says so, and sleeps before it looks again. Time is real, as the kernel's waits are."""
    refused, other = real_node.share_out(40, 40)
    shim = tmp_path / "refuse_waits.so"
    compile_c(shim, SOURCES / "refuse_waits.c", "-shared", "-fPIC", "-ldl")
    refused.box.environment["LD_PRELOAD"] = str(shim)
    if all_waits:
        refused.box.environment["REFUSE_ALL_WAITS"] = "1"
    refused.flood()
    other.flood()
    wait_for(lambda: refused.busy() > 100 * MS and other.busy() > 100 * MS)
    wait_for(lambda: usage.waits_are_refused((refused.box.path / "usage/usage").read_bytes()))
    regions = [(one.box.path / "usage/usage").read_bytes() for one in (refused, other)]
    assert [usage.waits_are_refused(region) for region in regions] == [True, False]
    lines = [line for line in refused.log.splitlines() if "futex" in line]
    assert len(lines) == 1 and "looks twice in a millisecond" in lines[0], lines
    assert "refuse_waits: again without sleep" not in refused.log


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


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "change",
    [absent, other_size(0), other_size(3), other_size(1 << 20), no_file, other_contents],
    ids=["absent", "empty", "too short", "long", "a directory", "other contents"],
)
def test_a_presence_file_that_is_not_one(node: Node, change: Callable[[Path], None]) -> None:
    """The container then works at the same time as others, and logs that at most once."""
    without, other = node.share_out(40, 40)
    change(without.presence_file())
    without.flood()
    other.flood()
    node.director.run(SETTLE)
    passes = node.director.clock()["passes"]
    got = node.shares(without, other)
    assert all(12 < share < 52 for share in got), got
    assert node.director.clock()["passes"] - passes < 50_000, "the program does not spin"
    assert len(without.log.splitlines()) <= 1, without.log


class FileLease:
    """A write lease on a file that its holder does not give up; the kernel takes it away after 45 s."""

    def __init__(self, path: Path) -> None:
        self._before = signal.signal(signal.SIGIO, signal.SIG_IGN)
        self._fd = os.open(path, os.O_RDONLY)
        fcntl.fcntl(self._fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)

    def end(self) -> None:
        os.close(self._fd)
        signal.signal(signal.SIGIO, self._before)


def has_open(process: subprocess.Popen[bytes], name: str) -> bool:
    links = [os.readlink(entry) for entry in Path(f"/proc/{process.pid}/fd").iterdir()]
    return any(os.path.basename(link) == name for link in links)


def test_a_presence_file_on_which_another_container_has_a_lease(node: Node) -> None:
    """No launch waits for the lease. When it has ended, the program finds the file."""
    one = node.share_out(40, 40)[0]
    path = one.presence_file()
    path.unlink()
    path.write_bytes(bytes(4096))
    lease = FileLease(path)
    try:
        process = one.flood()
        node.director.until(lambda: one.busy() > 3 * MS)  # open(2) would wait for 45 s of real time
        assert 12 < node.shares(one)[0] < 101
        assert not has_open(process, path.name)
    finally:
        lease.end()
    node.director.until(lambda: has_open(process, path.name))


@pytest.mark.parametrize("name", ["limits", "cards"])
def test_a_lease_on_a_file_of_its_own_stops_no_program_for_long(node: Node, name: str) -> None:
    """Without its limits CUDA is refused, and without its schedule the program runs by the limits alone."""
    (one,) = node.share_out(40)
    lease = FileLease(one.box.path / name)
    try:
        process = one.flood()
        if name == "cards":
            node.director.until(lambda: one.busy() > 3 * MS)
        else:
            node.director.until(lambda: process.poll() is not None)
            assert "has a lease on it; CUDA is refused" in one.log
    finally:
        lease.end()


def test_a_card_offset_is_the_cards(node: Node) -> None:
    """The byte ranges of two cards do not overlap."""
    container = node.container("a100x2")
    assert abs(card_offset(container.uuid(0)) - card_offset(container.uuid(1))) >= 1 << 39
