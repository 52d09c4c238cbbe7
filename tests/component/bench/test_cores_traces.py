"""When requests arrive, what percentiles are, what tenants were owed, and the figures that are made from these."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import pytest
from checkout import BENCH

MS, SECOND = 1_000_000, 1_000_000_000


@pytest.fixture(scope="module")
def cores() -> Iterator[Any]:
    sys.path.insert(0, str(BENCH))
    names = ("scenario", "traces", "owed", "gaps", "latency", "long")
    yield SimpleNamespace(**{name: importlib.import_module(f"cores_{name}") for name in names})
    sys.path.remove(str(BENCH))


def outcome(cores: Any, at: list[int], busy: list[list[int]]) -> Any:
    return cores.scenario.Outcome(at, busy, [], 0, 0)


@pytest.mark.parametrize("spec", ["fixed:2000000", "poisson:2000000", "bursts:2000000:10"])
def test_arrivals_repeat_and_have_their_mean(cores: Any, spec: str) -> None:
    times = list(cores.traces.arrivals(spec, 7, 100 * SECOND))
    assert times == list(cores.traces.arrivals(spec, 7, 100 * SECOND)) == sorted(times)
    assert times != list(cores.traces.arrivals(spec, 8, 100 * SECOND))
    assert len(times) == pytest.approx(50_000, rel=0.05)
    assert times[-1] < 100 * SECOND


def test_arrivals_have_their_shape(cores: Any) -> None:
    def spread(spec: str) -> float:
        times = list(cores.traces.arrivals(spec, 3, 100 * SECOND))
        steps = [later - first for first, later in zip(times, times[1:])]
        mean = fmean(steps)
        return fmean((step - mean) ** 2 for step in steps) ** 0.5 / mean

    assert spread("fixed:2000000") == pytest.approx(0, abs=1e-6)
    assert spread("poisson:2000000") == pytest.approx(1, rel=0.05)
    assert spread("bursts:2000000:10") > 3


def test_unknown_arrivals_are_refused(cores: Any) -> None:
    for spec in ("uniform:1", "fixed", "fixed:0", "bursts:5", "poisson:often"):
        with pytest.raises(Exception, match="no arrivals of that form"):
            cores.traces.arrivals(spec, 1, SECOND)


def test_percentiles_are_values_that_occurred(cores: Any) -> None:
    values = list(range(100, 0, -1))
    assert [cores.traces.percentile(values, percent) for percent in (0, 50, 99, 99.5, 100)] == [1, 50, 99, 100, 100]
    assert cores.traces.percentile([7], 99) == 7
    with pytest.raises(Exception, match="no requests"):
        cores.traces.percentile([], 99)


def test_idle_time_counts_while_somebody_is_owed(cores: Any) -> None:
    """Two tenants of 50: the first 100 ms are full; then nothing runs, and by 200 ms both are owed."""
    at = [time * MS for time in (0, 100, 200, 300)]
    seen = outcome(cores, at, [[0, 0], [60 * MS, 40 * MS], [60 * MS, 40 * MS], [60 * MS, 140 * MS]])
    assert cores.owed.idle_ns(seen, [50, 50], [0, 0]) == 100 * MS
    assert cores.owed.idle_ns(seen, [20, 10], [0, 0]) == 0
    assert cores.owed.idle_ns(seen, [50, 50], [SECOND, SECOND]) == 0


def test_a_wait_counts_while_the_tenant_is_owed(cores: Any) -> None:
    at = [time * MS for time in range(0, 700, 100)]
    used = [0, 100, 100, 100, 100, 150, 150]
    seen = outcome(cores, at, [[one * MS] for one in used])
    assert cores.owed.longest_wait_ns(seen, 0, 50, 0) == 200 * MS  # 100 ms of use are half of 200 ms
    assert cores.owed.longest_wait_ns(seen, 0, 10, 0) == 0


def test_efficiency_and_evenness_are_relative_to_the_reference(cores: Any) -> None:
    reference = outcome(cores, [0, SECOND], [[0, 0], [400 * MS, 200 * MS]])
    got = outcome(cores, [0, SECOND], [[0, 0], [200 * MS, 100 * MS]])
    uneven = outcome(cores, [0, SECOND], [[0, 0], [300 * MS, 0]])
    assert (cores.gaps.efficiency(got, reference), cores.gaps.evenness(got, reference)) == (0.5, 1)
    assert cores.gaps.efficiency(uneven, reference) == pytest.approx(0.5)
    assert cores.gaps.evenness(uneven, reference) == pytest.approx(0.5)


def test_the_whole_grids(cores: Any) -> None:
    assert len(cores.gaps.cells()) == len(set(cores.gaps.cells())) == 3 * 5 * 4
    assert len(cores.latency.cells()) == len(set(cores.latency.cells())) == 4 * 4 * 2 * 5
    assert set(cores.gaps.corners()) < set(cores.gaps.cells())
    assert set(cores.latency.corners()) < set(cores.latency.cells())
    assert set(cores.long.corners()) < set(cores.long.cells())


def test_services_need_half_of_their_share(cores: Any) -> None:
    for cell in cores.latency.cells():
        duration, kernels = cell.work
        assert duration * kernels / cell.interval == pytest.approx(cell.share / 200)
        assert sum(tenant.cores for tenant in cell.scenario(0).tenants) <= 100


def test_excess_is_beyond_one_kernel_of_a_neighbour(cores: Any) -> None:
    cell = cores.latency.Cell(50, (2 * MS, 1), "poisson", (10 * MS, 1))
    measured = cores.latency.Measured(cell, alone=4, beside=15, free=10)
    assert (measured.excess_ms, measured.ratio_none) == (1, 1.5)


def test_errors_in_windows_beyond_one_kernel(cores: Any) -> None:
    """A minute at 40 instead of 50 is an error of 20 percent, of which a kernel of 3 s explains 10."""
    cell = cores.long.Cell(3 * SECOND, (50, 50))
    at = [time * SECOND for time in range(70)]
    seen = outcome(cores, at, [[time * 4 // 10, time // 2] for time in at])
    assert cores.long.worst_percent(cell, seen) == pytest.approx(10)
