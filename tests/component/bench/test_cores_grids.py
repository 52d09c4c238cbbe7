"""The bars of the group `cores` over its whole grids, of which `make bench` measures corners only."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from checkout import BENCH

pytestmark = [pytest.mark.long, pytest.mark.root]

SEEDS = 5


@pytest.fixture(scope="module")
def workers() -> Iterator[Any]:
    sys.path.insert(0, str(BENCH))
    with importlib.import_module("cores_workers").Workers() as running:
        yield running
    sys.path.remove(str(BENCH))


@pytest.mark.parametrize("part", ["gaps", "latency", "long", "throttled"])
def test_the_bars_are_met_over_the_whole_grid(workers: Any, part: str) -> None:
    results = importlib.import_module(f"cores_{part}").measure_whole(workers, SEEDS)
    print(importlib.import_module("results").table(results))
    assert [(one.id, one.median, one.what) for one in results if one.verdict == "MISSED"] == []
