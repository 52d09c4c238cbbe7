"""One limit for all processes of a container, through races, deaths, forks and execs."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import struct
import time
from typing import TYPE_CHECKING, Callable

import pytest
from vcuda_boxes import load_simctl

from vgpu.config import usage

if TYPE_CHECKING:
    from vcuda_boxes import Box, SimBox

OUT_OF_MEMORY = 2
MIB = 1 << 20
LIMIT = 64 * MIB
F_OFD_SETLK = 37


def test_eight_racing_processes_fill_the_limit_and_never_exceed_it(awkward: Box) -> None:
    awkward.limit(LIMIT)
    clients = [awkward.opened() for _ in range(8)]
    for client in clients:
        client.send(f"threads 4 {LIMIT // 1024} 1000")
    granted = sum(int(client.receive()[1]) for client in clients)
    assert granted == 1024
    assert awkward.ledger() == (LIMIT, LIMIT)
    assert awkward.usage() == (8, 0, LIMIT)


def test_eight_churning_processes_never_exceed_the_limit(awkward: Box) -> None:
    awkward.limit(LIMIT)
    clients = [awkward.opened() for _ in range(8)]
    for seed, client in enumerate(clients):
        client.send(f"churn 8000 {MIB} 16 {seed}")
    answers = [client.receive() for client in clients]
    held, most = awkward.ledger()
    assert held == 0
    assert LIMIT - 16 * MIB < most <= LIMIT
    assert all(int(granted) > 0 for _, granted, _ in answers)
    assert sum(int(refused) for _, _, refused in answers) > 0
    assert awkward.usage() == (8, 0, 0)


def test_a_zombie_holds_nothing(awkward: Box) -> None:
    """Many containers have no init that reaps zombies."""
    awkward.limit(LIMIT)
    first, second = awkward.opened(), awkward.opened()
    first.alloc(LIMIT)
    first.process.kill()
    os.waitid(os.P_PID, first.process.pid, os.WEXITED | os.WNOWAIT)
    assert second.alloc(LIMIT)[0] == 0


def test_killed_while_racing_nothing_stays_behind(awkward: Box) -> None:
    awkward.limit(LIMIT)
    for round_ in range(5):
        clients = [awkward.opened() for _ in range(4)]
        for seed, client in enumerate(clients):
            client.send(f"churn 100000000 {MIB} 8 {seed + 4 * round_}")
        clients[0].timer.join(0.1)
        for client in clients:
            client.kill()
    last = awkward.opened()
    assert last.fills(MIB) == LIMIT
    assert awkward.usage() == (1, 0, LIMIT)


@pytest.mark.parametrize("reaping", [False, True])
def test_killed_between_the_words_of_a_slot(awkward: Box, reaping: bool) -> None:
    """The owner is written first and cleared last. A kill in between leaves a slot that names no namespaces."""
    awkward.limit(LIMIT)
    dead = awkward.opened()
    dead.alloc(MIB)
    with (awkward.path / "usage/usage").open("r+b") as region:
        region.seek(usage.CARDS_END)
        owner, *_ = usage.SLOT.unpack(region.read(usage.SLOT.size))
        region.seek(usage.CARDS_END)
        region.write(usage.SLOT.pack(owner | usage.REAPING * reaping, 0, 0, 0, 0))
    dead.kill()
    assert awkward.opened().fills(MIB) == LIMIT
    assert awkward.usage() == (1, 0, LIMIT)


# Processes of PID namespaces below the container's: each is pid 1 of its own, and /proc does not show it.


def test_nested_namespaces_share_the_limit(awkward: Box) -> None:
    awkward.limit(LIMIT)
    clients = [awkward.nested() for _ in range(8)]
    assert sum(client.fills(MIB) for client in clients) == LIMIT
    assert sum(client.fills(MIB) for client in reversed(clients)) == 0
    assert awkward.usage() == (8, 0, LIMIT)


@pytest.mark.parametrize(("kind", "heir"), [("nested", "opened"), ("nested", "nested"), ("opened", "opened")])
def test_what_a_killed_process_held_is_taken_back_and_counted_as_free(awkward: Box, kind: str, heir: str) -> None:
    awkward.limit(LIMIT)
    killed, living = getattr(awkward, kind)(), getattr(awkward, kind)()
    assert (killed.alloc(LIMIT // 2)[0], living.alloc(LIMIT // 4)[0]) == (0, 0)
    other = getattr(awkward, heir)()
    assert other.free_bytes() == LIMIT // 4
    killed.kill()
    ends = time.monotonic() + 30  # unshare is killed, and the kernel then kills its child
    while other.free_bytes() != 3 * LIMIT // 4:
        assert time.monotonic() < ends, other.free_bytes()
    assert other.fills(MIB) == 3 * LIMIT // 4
    assert awkward.usage() == (2, 0, LIMIT)


def test_a_nested_process_learns_of_the_death_of_one_outside(awkward: Box) -> None:
    awkward.limit(LIMIT)
    outside, nested = awkward.opened(), awkward.nested()
    outside.alloc(LIMIT)
    assert nested.alloc(MIB)[0] == OUT_OF_MEMORY
    outside.kill()
    assert nested.fills(MIB) == LIMIT


def test_closing_every_descriptor_keeps_the_slot(t4: SimBox) -> None:
    t4.limit(LIMIT)
    closing = t4.caller()
    closing.made(f"cuMemAlloc_v2 & {LIMIT // 2}")
    closing.ask("python os.closerange(3, 256)")
    nested = t4.nested()
    assert nested.fills(MIB) == LIMIT // 2
    assert closing.numbers(f"cuMemAlloc_v2 & {MIB}")[0] == OUT_OF_MEMORY


def test_without_locks_a_nested_process_keeps_what_it_holds(awkward: Box) -> None:
    """Nobody can tell whether it lives, so its charge stays: too high, never too low."""
    awkward.limit(LIMIT)
    awkward.opened().alloc(MIB)
    with (awkward.path / "usage/usage").open("r+b") as region:
        lock = struct.pack("=hh4xqqi4x", fcntl.F_WRLCK, os.SEEK_SET, (1 << 40) + 1, usage.SLOTS, 0)
        fcntl.fcntl(region, F_OFD_SETLK, lock)
        nested = [awkward.nested() for _ in range(2)]
        assert [client.alloc(LIMIT // 4)[0] for client in nested] == [0, 0]
    nested[0].kill()
    assert awkward.opened().fills(MIB) == LIMIT // 2 - MIB
    assert nested[1].fills(MIB) == 0


def test_a_stopped_process_stops_nobody(awkward: Box) -> None:
    awkward.limit(LIMIT)
    stopped, other = awkward.opened(), awkward.opened()
    stopped.send(f"churn 100000000 {MIB} 1 1")
    stopped.timer.join(0.1)
    stopped.process.send_signal(19)
    assert other.fills(MIB) >= LIMIT - 9 * MIB
    stopped.kill()
    assert other.fills(MIB) > 0 or awkward.usage()[2] == LIMIT


def test_a_normal_exit_frees_the_slot(awkward: Box) -> None:
    awkward.limit(LIMIT)
    client = awkward.opened()
    _, pointer = client.alloc(MIB)
    client.ask(f"free {pointer}")
    assert awkward.usage() == (1, 0, 0)
    assert client.close() == 0
    assert awkward.usage() == (0, 0, 0)


def test_an_exit_that_frees_nothing_is_taken_back(awkward: Box) -> None:
    """The driver holds a process's memory until it has ended, so its slot outlives the destructor."""
    awkward.limit(LIMIT)
    client = awkward.opened()
    client.alloc(LIMIT)
    assert client.close() == 0
    assert awkward.opened().alloc(LIMIT)[0] == 0
    assert awkward.usage() == (1, 0, LIMIT)


def test_a_forked_child_has_a_slot_of_its_own(awkward: Box) -> None:
    awkward.limit(LIMIT)
    client = awkward.opened()
    _, pointer = client.alloc(MIB)
    child = client.numbers("fork")[0]
    assert child != client.process.pid
    assert client.free_bytes() == LIMIT - MIB
    assert client.alloc(LIMIT - MIB)[0] == 0
    assert awkward.usage() == (2, 0, LIMIT)
    # The child's copy of the parent's pointer was not charged to it: nothing is given back.
    assert client.numbers(f"free {pointer}") == (0,)
    assert awkward.usage() == (2, 0, LIMIT)
    assert client.numbers("exit") == (0,)  # the parent's answer: its child's status
    assert client.free_bytes() == LIMIT - MIB
    assert awkward.usage() == (1, 0, MIB)


def kill_at_random(box: SimBox, kills: int) -> None:
    """Kill one of four racing processes at a time, and stop another, which goes on later or is killed as it is. The
    limit is never exceeded, and no byte is lost or left over."""
    waits = random.Random(1)
    clients = [box.opened() for _ in range(4)]
    for number, client in enumerate(clients):
        client.send(f"churn 100000000 {MIB} 8 {number}")
    for number in range(kills):
        stopped = clients[(number + number % 3) % 4].process
        stopped.send_signal(signal.SIGSTOP)
        time.sleep(waits.uniform(0, 0.01))
        if number % 3:
            stopped.send_signal(signal.SIGCONT)
        clients[number % 4].kill()
        assert box.held() <= LIMIT
        clients[number % 4] = box.opened()
        clients[number % 4].send(f"churn 100000000 {MIB} 8 {number}")
    for client in clients:
        client.kill()
    last = box.opened()
    assert last.fills(MIB) == LIMIT == box.held()
    assert box.usage() == (1, 0, LIMIT)


def test_kill_9_at_random_points(t4: SimBox, pytestconfig: pytest.Config) -> None:
    t4.limit(LIMIT)
    kill_at_random(t4, 1000 if pytestconfig.getoption("--long") else 40)


def test_an_attempt_that_was_killed_in_the_middle_blocks_nobody(awkward: Box) -> None:
    awkward.limit(LIMIT)
    living, dying = awkward.opened(), awkward.opened()
    living.alloc(MIB)
    dying.alloc(MIB)
    dying.kill()
    with (awkward.path / "usage/usage").open("r+b") as file:  # slot 1: between its two steps
        file.seek(usage.CHARGES_OFFSET + usage.CHARGE.size)
        file.write(usage.CHARGE.pack(LIMIT, MIB))
    assert living.alloc(LIMIT - MIB)[0] == 0
    assert awkward.usage() == (1, 0, LIMIT)


def test_a_process_that_exits_counts_until_the_driver_has_torn_it_down(sim_box: Callable[..., SimBox]) -> None:
    profile = load_simctl().load_profile("harsh")
    box = sim_box({**profile, "memory": {**profile["memory"], "teardown_ms": 3000}}, nvml=True)
    box.limit(2048 * MIB)
    for _ in range(10):
        client = box.start()
        assert (client.ask("init"), client.ask("open 0")) in ((["0"], ["0", "0"]), (["0"], ["2", "2"])), box.log
        assert client.process.stdin
        client.process.stdin.close()
    assert box.cards()[0]["most_used"] <= (2048 + 64) * MIB
