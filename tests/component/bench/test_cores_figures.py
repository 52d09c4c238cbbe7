"""The arithmetic of the benchmark group `cores`, on made-up outcomes, as no benchmark would show an error in it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from checkout import BENCH

MS, SECOND = 1_000_000, 1_000_000_000


@pytest.fixture(scope="module")
def cores() -> Iterator[Any]:
    sys.path.insert(0, str(BENCH))
    names = ("scenario", "share", "tenants", "change")
    yield SimpleNamespace(**{name: importlib.import_module(f"cores_{name}") for name in names})
    sys.path.remove(str(BENCH))


def outcome(cores: Any, at: list[int], busy: list[list[int]]) -> Any:
    return cores.scenario.Outcome(at, busy, [], 0, 0)


def test_shares_are_of_the_window_only(cores: Any) -> None:
    seen = outcome(cores, [SECOND, 2 * SECOND, 3 * SECOND], [[700 * MS, 5], [900 * MS, 5], [1000 * MS, 5]])
    assert seen.shares == [0.15, 0.0]
    assert (seen.share(0, 0, 1), seen.share(0, 1, 2)) == (0.2, 0.1)


def test_errors_are_of_the_target_and_excess_of_the_window(cores: Any) -> None:
    cells = [cores.share.Cell(10, MS, 1), cores.share.Cell(50, MS, 1)]
    seen = [outcome(cores, [0, SECOND], [[0], [busy * MS]]) for busy in (120, 450)]
    errors = cores.share.errors(cells, seen)
    assert errors.percent == [pytest.approx(20), pytest.approx(10)]
    assert (errors.over, errors.delivered) == (pytest.approx(2), pytest.approx(0.9))


def test_windows_hold_enough_kernels_of_the_share(cores: Any) -> None:
    for cell in cores.share.cells():
        begin, end = cell.scenario(0).window
        assert (end - begin) * cell.target / 100 >= 200 * cell.duration
        assert end - begin >= SECOND
    assert len(cores.share.cells()) == 6 * 5 * 3


def test_fairness(cores: Any) -> None:
    assert cores.scenario.jain([0.5, 0.5, 0.5]) == pytest.approx(1)
    assert cores.scenario.jain([1, 0, 0, 0]) == pytest.approx(0.25)
    assert all(sum(shares) == 100 for shares in cores.tenants.NODES)


def test_back_is_the_time_from_which_the_share_is_kept(cores: Any) -> None:
    """Nothing for 50 ms, then half of the card."""
    at = list(range(0, 1000 * MS, 10 * MS))
    seen = outcome(cores, at, [[max(0, time - 50 * MS) // 2, 0] for time in at])
    assert cores.tenants._back_ms(seen, 50) == 50
    late = outcome(cores, at, [[0, 0] for _ in at])
    assert cores.tenants._back_ms(late, 50) == 990


def test_a_change_is_late_until_the_new_share_is_reached(cores: Any) -> None:
    at = list(range(0, 1000 * MS, 5 * MS))
    seen = outcome(cores, at, [[min(time, 40 * MS) // 2 + max(0, time - 40 * MS) // 10] for time in at])
    assert cores.change._late_ms(seen, 10) == pytest.approx(40, abs=5)
