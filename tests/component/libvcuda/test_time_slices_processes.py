"""Containers of several processes beside other containers, in virtual time: each gets its share as exactly as one
process does, though its processes take turns and only one of them waits for the card at a time.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from checkout import BENCH
from vcuda_boxes import need_root

SECOND = 1_000_000_000
WINDOW = (SECOND, 6 * SECOND)
FLOOD = {"kernel": "fixed:1000000", "wait": 0}
ROUNDS = {"kernel": "fixed:100000", "launches": 100}
MIXED = {"kernel": "lognormal:30000:1000:5000000", "launches": 200}


@pytest.fixture(scope="module")
def bench() -> Iterator[Any]:
    need_root()
    sys.path.insert(0, str(BENCH))
    modules = {name: importlib.import_module(f"cores_{name}") for name in ("scenario", "workers")}
    with modules.pop("workers").Workers() as workers:
        yield SimpleNamespace(**modules, workers=workers)
    sys.path.remove(str(BENCH))


@pytest.mark.parametrize("programs", [[ROUNDS] * 2, [MIXED] * 4], ids=["two", "four"])
@pytest.mark.parametrize(
    ("share", "others", "least"), [(10, [90], 0.975), (5, [19] * 5, 0.965), (10, [10] * 9, 0.955)], ids=str
)
def test_several_processes_get_what_one_gets(
    bench: Any, programs: list[dict[str, Any]], share: int, others: list[int], least: float
) -> None:
    """What changes of containers cost is in `least`: 100 us of each period for each container."""
    tenants = [(share, programs), *((other, [FLOOD]) for other in others)]
    made = [bench.scenario.Tenant(*tenant) for tenant in tenants]
    outcome = bench.workers.run(bench.scenario.Scenario(made, WINDOW))
    assert least < outcome.shares[0] * 100 / share < 1.01
