"""The ledger with prepared resource claims: what counts, who waits, and which containers have one budget.

Belongs here: claims.json, limits and schedules of containers in a made-up /proc. The same with a runtime is in
system/test_prepared_claims.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from ledger_node import GIB, POD, Node, redeem, schedules_in, share, uuid_of

from vgpu.config import claims, limits, paths, prepared, records
from vgpu.config.errors import VgpuError
from vgpu.config.grants import Holder
from vgpu.config.prepared import PreparedClaim, Result
from vgpu.hook.ledger.ledger import Ledger
from vgpu.hook.placement.placement import NoFit
from vgpu.hook.request import prepared_claims
from vgpu.hook.request.prepared_claims import WantedResults

UIDS = [f"6f1c3c52-000{at}-4c53-9d3a-6f0f8f0f1a11" for at in range(5)]
HOLDER = Holder(POD, "c")


def prepare(
    node: Node, at: int, *results: tuple[int, int], card: int = 0, boot: str = "boot", config: tuple[int, int] = (0, 1)
) -> list[str]:
    """A claim for POD with these (cores, bytes) of a card of 16 GiB, and with core limit and priority; its results'
    ids."""
    made = [
        Result(number, "r", "n", "d", uuid_of(card), cores, memory, (cores, memory) == (100, 16 * GIB), "", *config)
        for number, (cores, memory) in enumerate(results or ((30, GIB),))
    ]
    claim = PreparedClaim(UIDS[at], "default", f"c{at}", boot, [POD], made)
    prepared.write(node.settings.state_dir, claim)
    return claim.ids()


def unprepare(node: Node, at: int) -> None:
    os.unlink(paths.prepared_claim(node.settings.state_dir, UIDS[at]))


def wanted(node: Node, *ids: str) -> WantedResults:
    return prepared_claims.read(node.settings.state_dir, list(ids), POD, "boot")


def start(node: Node, name: str, pid: int, *ids: str) -> list[tuple[int, int]]:
    """Start a container with these results. Returns (cores, memory) of each of its cards."""
    begun = node.start(name, pid, HOLDER)
    ledger = node.ledger()
    made = ledger.claim(begun, wanted(node, *ids))
    assert made is not None
    ledger.confirm(begun)
    return [(limit.cores, limit.memory) for limit in made.limits]


def test_three_claims_of_30_cores_fit_a_card_and_count_without_a_container(tmp_path: Path) -> None:
    node = Node(tmp_path, 1)
    ids = [prepare(node, at)[0] for at in range(3)]
    assert node.commitments() == {uuid_of(0): (90, 3 * GIB, False)}
    assert [start(node, f"c{at}", 100 + at, one) for at, one in enumerate(ids)] == [[(30, GIB)]] * 3
    assert node.commitments() == {uuid_of(0): (90, 3 * GIB, False)}
    with pytest.raises(NoFit):
        node.ledger().claim(node.start("grant", 200, HOLDER), redeem(node.pair(cores=30)))
    with pytest.raises(NoFit, match="default/c0"):
        node.ledger().claim(node.start("plain", 201), share(30))


def test_a_claim_counts_once_however_many_containers_use_it(tmp_path: Path) -> None:
    """They are one tenant of the card: the same files of limits and schedules, and half of its time beside another."""
    node = Node(tmp_path, 1)
    first, second = prepare(node, 0)[0], prepare(node, 1)[0]
    for at, one in enumerate((first, first, second)):
        start(node, f"c{at}", 100 + at, one)
    assert node.commitments() == {uuid_of(0): (60, 2 * GIB, False)}
    run = node.settings.run_dir
    for path in (paths.limits, paths.core_schedules):
        inodes = [os.stat(path(run, f"c{at}")).st_ino for at in range(3)]
        assert (inodes[0] == inodes[1], inodes[0] == inodes[2]) == (True, False)
    [(_, values)] = schedules_in(node.schedule_file("c1"))
    assert values[3] == 2  # tenants
    assert [claim.container for claim in node.ledger().shares()] == ["c0", "c2"]
    node.ledger().release("c0")  # it lives
    node.kill(100)
    node.ledger().release("c0")
    [(_, values)] = schedules_in(node.schedule_file("c1"))
    assert values[3] == 2
    unprepare(node, 1)  # kubelet unprepares last; should it not, the container counts
    assert node.commitments() == {uuid_of(0): (60, 2 * GIB, False)}


def test_results_add_up_and_whole_cards_alone_have_no_limits(tmp_path: Path) -> None:
    node = Node(tmp_path, 2)
    two, other = prepare(node, 0, (20, GIB), (30, GIB)), prepare(node, 1, (10, GIB), card=1)
    assert start(node, "a", 100, *two, *other) == [(50, 2 * GIB), (10, GIB)]
    node.kill(100)
    for at in (0, 1):
        unprepare(node, at)
    whole, limited = prepare(node, 2, (100, 16 * GIB)), prepare(node, 3, (100, 2 * GIB), card=1)
    assert start(node, "b", 101, *whole) == [(100, limits.UNLIMITED)]
    assert start(node, "c", 102, *limited) == [(100, 2 * GIB)]
    assert node.commitments() == {uuid_of(0): (100, 0, True), uuid_of(1): (100, 2 * GIB, False)}
    for pid in (101, 102):
        node.kill(pid)
    assert start(node, "d", 103, *whole, *limited) == [(100, 16 * GIB), (100, 2 * GIB)]


def test_core_limits_add_up_as_cores_do_and_the_highest_priority_counts(tmp_path: Path) -> None:
    node = Node(tmp_path, 1)
    ids = [*prepare(node, 0, (20, GIB), config=(50, 7)), *prepare(node, 1, (10, GIB)), *prepare(node, 2, config=(5, 0))]
    made = node.ledger().claim(node.start("a", 100, HOLDER), wanted(node, *ids))
    assert made is not None
    assert [(one.cores, one.core_limit) for one in made.limits] == [(60, 90)]  # 5 is below its share
    assert claims.read(node.settings.run_dir, "a").priority == 0
    assert start(node, "b", 101, *prepare(node, 3, (40, GIB), config=(100, 1)))
    assert claims.read(node.settings.run_dir, "b").cards[0].core_limit == 100


def waiting(node: Node, meanwhile: Callable[[], object]) -> Ledger:
    """A ledger whose first pause does something."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        if not now[0]:
            meanwhile()
        now[0] += seconds

    return Ledger(node.settings, node.cards, str(node.proc), lambda: now[0], sleep)


def test_a_start_waits_for_the_unprepare_of_a_pod_that_was_deleted_by_force(tmp_path: Path) -> None:
    """The scheduler gives its share away before."""
    node = Node(tmp_path, 1)
    prepare(node, 0, (80, GIB))
    ids = prepare(node, 1, (80, GIB))
    begun = node.start("c", 100, HOLDER)
    assert waiting(node, lambda: unprepare(node, 0)).claim(begun, wanted(node, *ids))
    too_much = prepare(node, 2, (30, GIB))
    with pytest.raises(NoFit, match="default/c1"):
        waiting(node, lambda: None).claim(node.start("d", 101, HOLDER), wanted(node, *too_much))


def test_a_container_waits_until_another_one_of_its_budget_is_set_up(tmp_path: Path) -> None:
    node = Node(tmp_path, 1)
    ids = prepare(node, 0)
    first, second = node.start("a", 100, HOLDER), node.start("b", 101, HOLDER)
    ledger = node.ledger()
    ledger.claim(first, wanted(node, *ids))
    made = waiting(node, lambda: ledger.confirm(first)).claim(second, wanted(node, *ids))
    assert made is not None
    assert made.region == (100, 5)
    ledger.withdraw(second)
    claim = claims.read(node.settings.run_dir, "a")
    claim.ready = False
    records.write(str(node.claim_file("a")), claim.record())
    with pytest.raises(NoFit, match="to be set up"):
        waiting(node, lambda: None).claim(second, wanted(node, *ids))


def test_what_a_claim_cannot_give_is_refused(tmp_path: Path) -> None:
    node = Node(tmp_path, 1)
    both = prepare(node, 0, (20, GIB), (20, GIB))
    start(node, "a", 100, *both)
    with pytest.raises(VgpuError, match="containers of one claim have one budget"):
        node.ledger().claim(node.start("b", 101, HOLDER), wanted(node, both[0]))
    late = wanted(node, *both)
    unprepare(node, 0)
    with pytest.raises(VgpuError, match="found that kubelet has unprepared it"):
        node.ledger().claim(node.start("c", 102, HOLDER), late)


def test_a_damaged_record_hides_no_other_and_no_container(tmp_path: Path) -> None:
    node = Node(tmp_path, 1)
    ids = prepare(node, 0)
    start(node, "a", 100, *ids)
    prepare(node, 1)
    Path(paths.prepared_claim(node.settings.state_dir, UIDS[0])).write_text("{")
    ledger = node.ledger()
    assert ledger.commitments()[uuid_of(0)].cores == 60
    assert any(UIDS[0] in note for note in ledger.notes)
