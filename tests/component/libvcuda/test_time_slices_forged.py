"""Containers that forge the locks of the presence file (tests/bench/cores_load/lies.c), in virtual time.

The other containers get their shares within a bounded time, and are charged about what they use.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checkout import BENCH
from sharing_containers import OWN_BITS, card_offset, queue_offset
from vcuda_boxes import load_simctl, need_root

from vgpu.config import usage

MS, SECOND = 1_000_000, 1_000_000_000
LONGEST_WAIT = 5 * SECOND  #: compute/slice_parameters.h: whatever others lock; at most once a minute
FLOOD = {"kernel": "fixed:2000000", "wait": 0}


@pytest.fixture(scope="module")
def bench() -> Iterator[Any]:
    need_root()
    sys.path.insert(0, str(BENCH))
    modules = {name: importlib.import_module(f"cores_{name}") for name in ("scenario", "workers")}
    with modules.pop("workers").Workers(1) as workers:
        yield SimpleNamespace(**modules, workers=workers)
    sys.path.remove(str(BENCH))


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The UUID of the simulated card."""
    simctl, state = load_simctl(), tmp_path_factory.mktemp("card") / "state"
    simctl.make_state(str(state), "t4x1", device_nodes=False)
    return str(simctl.read_state(str(state))["cards"][0]["uuid"])


def forged_locks(card: str) -> dict[str, dict[str, int]]:
    work, queue = card_offset(card), queue_offset(card)
    return {
        "working for ever": {"lie_from": work, "lie_own": 1},
        "queued for ever": {"lie_from": queue},
        "working here and there": {"lie_from": work + 12345, "lie_each": MS},
        "queued now and then": {"lie_from": queue, "lie_each": MS},
        "thousands working": {"lie_from": work + 12345, "lie_count": 4000, "lie_stride": 2},
        "thousands queued": {"lie_from": queue, "lie_count": 4000, "lie_stride": 2},
        "everywhere": {"lie_from": 1, "lie_length": 0},
        "every working byte": {"lie_from": work, "lie_length": 1 << OWN_BITS},
    }


#: Forged locks that a bound of their own covers: the wait for a container that does not leave or does not begin.
BOUNDED = ("working for ever", "queued for ever")
#: Forged locks that only LONGEST_WAIT covers.
MANY = (
    "thousands working", "thousands queued", "everywhere", "every working byte", "working here and there",
    "queued now and then",
)  # fmt: skip


def scenario(
    bench: Any, forged: dict[str, int], window: tuple[int, int], loads: list[dict[str, Any]], **forger: Any
) -> Any:
    tenant = bench.scenario.Tenant
    tenants = [tenant(40, loads), tenant(40, [FLOOD]), tenant(20, [{**forged, "threads": 0}, *forger.get("works", [])])]
    return bench.scenario.Scenario(tenants, window)


def charged(bench: Any, tenant: int) -> int:
    """ns in all that the tenant's libvcuda charged it."""
    (region,) = Path(bench.workers.directory.name).glob(f"**/box{tenant}/usage/usage")
    data = region.read_bytes()
    return int(usage.time_at(data[usage.TIMES_OFFSET : usage.FLIGHTS_OFFSET], 0).used)


def check(bench: Any, outcome: Any, least: float) -> None:
    """Work that may overlap with other containers' is charged its estimate, which may be less than it took."""
    for tenant in range(2):
        print(tenant, outcome.share(tenant), charged(bench, tenant) / outcome.busy[-1][tenant])
        assert least * 0.4 < outcome.share(tenant) < 1.25 * 0.4
        assert 0.8 < charged(bench, tenant) / outcome.busy[-1][tenant] < 1.25


@pytest.mark.parametrize("forged", BOUNDED)
@pytest.mark.parametrize("works", [[], [FLOOD]], ids=["idle", "working"])
def test_a_forged_lock(bench: Any, card: str, forged: str, works: list[dict[str, Any]]) -> None:
    """libvcuda ignores the forged lock soon."""
    outcome = bench.workers.run(scenario(bench, forged_locks(card)[forged], (SECOND, 3 * SECOND), [FLOOD], works=works))
    check(bench, outcome, 0.9)


@pytest.mark.parametrize(
    "forged", [pytest.param(name, marks=[pytest.mark.long] * (name == "thousands working")) for name in MANY]
)
@pytest.mark.parametrize(
    "loads", [pytest.param([FLOOD], id="one process", marks=pytest.mark.long), pytest.param([FLOOD] * 2, id="two")]
)
def test_many_forged_locks(bench: Any, card: str, forged: str, loads: list[dict[str, Any]]) -> None:
    window = (LONGEST_WAIT + SECOND, LONGEST_WAIT + 3 * SECOND)
    check(bench, bench.workers.run(scenario(bench, forged_locks(card)[forged], window, loads)), 0.85)


@pytest.mark.sample(3)
@pytest.mark.parametrize(("count", "moves", "stride"), [(1, MS, 1), (2, MS, 3), (2, 40 * MS, 3), (16, 10 * MS, 3)])
@pytest.mark.parametrize("load", [{"kernel": "fixed:20000", "gap": MS}, FLOOD], ids=["idle", "working"])
def test_early_places_that_move(
    bench: Any, card: str, count: int, moves: int, stride: int, load: dict[str, Any]
) -> None:
    """Nobody comes to these places in the queue, or comes late. A neighbour loses at most 5 of its 50 points."""
    lie = {"lie_from": queue_offset(card) + 1, "lie_count": count, "lie_each": moves, "lie_stride": stride}
    tenants = [bench.scenario.Tenant(50, [{**load, **lie}]), bench.scenario.Tenant(50, [FLOOD])]
    outcome = bench.workers.run(bench.scenario.Scenario(tenants, (SECOND, 5 * SECOND)))
    print(outcome.shares)
    assert outcome.share(1) > 0.45
