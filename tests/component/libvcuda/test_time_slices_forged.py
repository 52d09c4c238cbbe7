"""Containers that tell their neighbours what is not so (tests/bench/cores_load/lies.c), in virtual time: the others
have their shares all the same, after a while that has a bound, and are charged about what they use.
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
from vcuda_boxes import load_simctl, need_root
from sharing_containers import OWN_BITS, card_offset, line_offset

from vgpu.config import usage

MS, SECOND = 1_000_000, 1_000_000_000
LONGEST_WAIT = 5 * SECOND  #: visit.c: for whatever others say, once a minute
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


def lies(card: str) -> dict[str, dict[str, int]]:
    work, line = card_offset(card), line_offset(card)
    return {
        "at work for ever": {"lie_from": work, "lie_own": 1},
        "in line for ever": {"lie_from": line},
        "at work here and there": {"lie_from": work + 12345, "lie_each": MS},
        "in line, now and then": {"lie_from": line, "lie_each": MS},
        "thousands at work": {"lie_from": work + 12345, "lie_count": 4000, "lie_stride": 2},
        "thousands in line": {"lie_from": line, "lie_count": 4000, "lie_stride": 2},
        "everywhere": {"lie_from": 1, "lie_length": 0},
        "all the work": {"lie_from": work, "lie_length": 1 << OWN_BITS},
    }


#: What a bound holds for: patience with one who does not go, and with one who does not come.
BRIEF = ("at work for ever", "in line for ever")
#: What only the last bound holds for.
MANY = (
    "thousands at work",
    "thousands in line",
    "everywhere",
    "all the work",
    "at work here and there",
    "in line, now and then",
)


def scenario(bench: Any, lie: dict[str, int], window: tuple[int, int], loads: list[dict[str, Any]], **liar: Any) -> Any:
    tenant = bench.scenario.Tenant
    tenants = [tenant(40, loads), tenant(40, [FLOOD]), tenant(20, [{**lie, "threads": 0}, *liar.get("works", [])])]
    return bench.scenario.Scenario(tenants, window)


def charged(bench: Any, tenant: int) -> int:
    """ns in all, by its own account."""
    (region,) = Path(bench.workers.directory.name).glob(f"**/box{tenant}/usage/usage")
    data = region.read_bytes()
    return int(usage.time_at(data[usage.TIMES_OFFSET : usage.FLIGHTS_OFFSET], 0).used)


def check(bench: Any, outcome: Any, least: float) -> None:
    """What may be mixed with others' work is charged as what it is known to take, which may be less than it did."""
    for tenant in range(2):
        print(tenant, outcome.share(tenant), charged(bench, tenant) / outcome.busy[-1][tenant])
        assert least * 0.4 < outcome.share(tenant) < 1.25 * 0.4
        assert 0.8 < charged(bench, tenant) / outcome.busy[-1][tenant] < 1.25


@pytest.mark.parametrize("lie", BRIEF)
@pytest.mark.parametrize("works", [[], [FLOOD]], ids=["idle", "at work"])
def test_one_lie(bench: Any, card: str, lie: str, works: list[dict[str, Any]]) -> None:
    """It is seen through soon."""
    outcome = bench.workers.run(scenario(bench, lies(card)[lie], (SECOND, 3 * SECOND), [FLOOD], works=works))
    check(bench, outcome, 0.9)


@pytest.mark.parametrize("lie", MANY)
@pytest.mark.parametrize("loads", [[FLOOD], [FLOOD] * 2], ids=["one process", "two"])
def test_many_lies(bench: Any, card: str, lie: str, loads: list[dict[str, Any]]) -> None:
    window = (LONGEST_WAIT + SECOND, LONGEST_WAIT + 3 * SECOND)
    check(bench, bench.workers.run(scenario(bench, lies(card)[lie], window, loads)), 0.85)
