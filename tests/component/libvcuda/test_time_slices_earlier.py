"""Containers of this version beside running ones of the version before, whose places in the queue mean something else
and which have no leases, in virtual time: after an upgrade, and after a downgrade.

Shares are within 5 points, and nobody that always has work waits for more than 200 ms. Where two containers of the
version before do not reach that beside each other (pauses, kernels of 150 ms), nobody loses more than 5 points to a
neighbour that changes its version, and nobody waits for longer than before, to two looks.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import earlier_libvcuda
import pytest
from checkout import BENCH
from vcuda_boxes import need_root

US, MS, SECOND = 1_000, 1_000_000, 1_000_000_000
POINTS = 5
STALL = 200 * MS
LOOK = 10 * MS  #: between two looks at what each has used
LOADS: dict[str, dict[str, Any]] = {
    "kernels": {"kernel": "fixed:1000000", "wait": 0},
    "short": {"kernel": "fixed:20000", "wait": 0},
    "long": {"kernel": "fixed:10000000", "wait": 0},
    "rounds": {"kernel": "fixed:100000", "launches": 100},
    "graphs": {"kernel": "fixed:200000", "launches": 5, "graph": 10},
    "copies": {"kernel": "fixed:300000", "copy": 1_000_000},
    "pauses": {"kernel": "fixed:100000", "launches": 20, "gap": 500 * US},
    "longer pauses": {"kernel": "fixed:100000", "launches": 100, "gap": 1_500 * US},
    "requests": {"kernel": "fixed:500000", "gap": 5 * MS},
    "very long": {"kernel": "fixed:150000000", "wait": 0},
}
SEVERAL = ("kernels", "rounds", "graphs", "short", "kernels", "rounds", "long", "short")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    need_root()
    earlier = str(earlier_libvcuda.build(tmp_path_factory.mktemp("earlier")))
    sys.path.insert(0, str(BENCH))
    modules = {name: importlib.import_module(f"cores_{name}") for name in ("scenario", "workers")}
    with modules.pop("workers").Workers() as workers:
        yield SimpleNamespace(**modules, workers=workers, builds={"earlier": earlier, "this": ""})
    sys.path.remove(str(BENCH))


def run(bench: Any, *tenants: tuple[int, str, str, int]) -> Any:
    """Tenants are a share, a version, the name of a load, and when it begins. They are looked at from 1 to 5 s."""
    made = [
        bench.scenario.Tenant(share, [{**LOADS[load], "begin": begin}], build=bench.builds[version])
        for share, version, load, begin in tenants
    ]
    return bench.workers.run(bench.scenario.Scenario(made, (SECOND, 5 * SECOND), every=LOOK))


def longest_stall(outcome: Any, tenant: int) -> int:
    """The longest time in which the tenant used nothing of the card."""
    busy = [of[tenant] for of in outcome.busy]
    moved = [at for at, before, now in zip(outcome.at[1:], busy, busy[1:]) if now > before]
    ends = [outcome.at[0], *moved, outcome.at[-1]]
    return max(int(later - earlier) for earlier, later in zip(ends, ends[1:]))


def check(outcome: Any, *shares: int) -> None:
    got = [share * 100 for share in outcome.shares]
    assert all(abs(part - share) < POINTS for part, share in zip(got, shares)), got
    stalls = [longest_stall(outcome, tenant) for tenant in range(len(shares))]
    assert max(stalls) <= STALL, stalls


def check_against_before(bench: Any, lost: int, *tenants: tuple[int, str, str]) -> None:
    """Nobody gets more than its share, or loses more than `lost` points of it, or of what it has when all are of the
    version before. There the one that begins first may have more than the other, so both orders count.
    """
    shares = [share for share, _, _ in tenants]
    old = [(share, "earlier", load, 0) for share, _, load in tenants]
    orders = run(bench, *old), run(bench, *reversed(old))
    before = [min(orders[0].shares[tenant], orders[1].shares[~tenant]) for tenant in range(len(tenants))]
    now = run(bench, *((share, version, load, 0) for share, version, load in tenants))
    told = [round(part * 100, 1) for part in (*before, *now.shares)]
    for tenant, share in enumerate(shares):
        assert min(share, before[tenant] * 100) - lost < now.shares[tenant] * 100 < share + POINTS, told
        stalls = [longest_stall(orders[0], tenant), longest_stall(orders[1], ~tenant), longest_stall(now, tenant)]
        assert stalls[2] <= max(STALL, *stalls[:2]) + 2 * LOOK, (tenant, stalls)


def other(version: str) -> str:
    return "this" if version == "earlier" else "earlier"


@pytest.mark.parametrize("version", ["earlier", "this"])
def test_the_versions_share_a_card(bench: Any, version: str) -> None:
    """The container of `version` runs when the other one comes."""
    check(run(bench, (30, version, "rounds", 0), (70, other(version), "kernels", 500 * MS)), 30, 70)


def test_the_version_before_loses_nothing_to_pauses_of_this_one(bench: Any) -> None:
    """Copies are pauses. A container that pauses is owed its tokens, and must not come first each time for that."""
    kernels, _ = run(bench, (40, "earlier", "kernels", 0), (60, "this", "copies", 0)).shares
    assert kernels * 100 > 40 - POINTS


def long(*values: str) -> Any:
    return pytest.param(*values, marks=pytest.mark.long)


@pytest.mark.parametrize("version", ["earlier", pytest.param("this", marks=pytest.mark.long)])
@pytest.mark.parametrize("shares", [(50, 50), pytest.param((20, 80), marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("load", "beside"),
    [
        ("pauses", "pauses"),
        ("requests", "pauses"),
        long("very long", "kernels"),
        long("pauses", "kernels"),
        long("pauses", "very long"),
        long("longer pauses", "pauses"),
        long("longer pauses", "longer pauses"),
        long("longer pauses", "kernels"),
        long("requests", "kernels"),
        long("requests", "long"),
        long("requests", "very long"),
        long("very long", "rounds"),
        long("very long", "very long"),
    ],
)
def test_nobody_loses_by_a_neighbour_of_another_version(
    bench: Any, version: str, shares: tuple[int, int], load: str, beside: str
) -> None:
    """What the version before does not reach by itself: pauses, and kernels beyond what it waits for."""
    lost = POINTS if shares == (50, 50) else 2 * POINTS
    check_against_before(bench, lost, (shares[0], version, load), (shares[1], other(version), beside))


@pytest.mark.long
@pytest.mark.parametrize("version", ["earlier", "this"])
@pytest.mark.parametrize("shares", [(50, 50), (10, 90), (90, 10)])
@pytest.mark.parametrize(
    ("load", "beside"),
    [
        ("kernels", "kernels"),
        ("short", "kernels"),
        ("long", "kernels"),
        ("rounds", "kernels"),
        ("rounds", "rounds"),
        ("graphs", "kernels"),
        ("graphs", "long"),
        ("short", "long"),
    ],
)
def test_pairs(bench: Any, version: str, shares: tuple[int, int], load: str, beside: str) -> None:
    tenants = (shares[0], version, load, 0), (shares[1], other(version), beside, 0)
    check(run(bench, *tenants), *shares)


@pytest.mark.long
@pytest.mark.parametrize("share", [20, 30, 40, 50])
def test_kernels_beside_copies(bench: Any, share: int) -> None:
    kernels, _ = run(bench, (share, "earlier", "kernels", 0), (100 - share, "this", "copies", 0)).shares
    assert abs(kernels * 100 - share) < POINTS


@pytest.mark.long
@pytest.mark.parametrize("upgraded", [1, 3, 4, 7])
def test_a_node_of_eight_of_which_some_are_upgraded(bench: Any, upgraded: int) -> None:
    shares = (5, 5, 10, 10, 15, 15, 20, 20)
    versions = ["this" if number * upgraded % 8 < upgraded else "earlier" for number in range(8)]
    check(run(bench, *zip(shares, versions, SEVERAL, (0,) * 8)), *shares)
