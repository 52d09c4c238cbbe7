"""Checks of the simulator: models of other systems' limiters show their known behaviour on it, and a bare card is
shared as real hardware shares it. Otherwise figures for libvcuda would mean nothing.
"""

from __future__ import annotations

from statistics import fmean
from typing import Any

import pytest

US, MS, SECOND = 1_000, 1_000_000, 1_000_000_000
TARGETS = (10, 25, 50, 75, 90)
DURATIONS = (MS, 5 * MS)


def flood(duration: int, **options: int) -> dict[str, Any]:
    return {"kernel": f"fixed:{duration}", "wait": 0, **options}


def alone(bench: Any, limiter: str, target: int, duration: int) -> Any:
    tenant = bench.scenario.Tenant(target, [flood(duration)])
    return bench.scenario.Scenario([tenant], (5 * SECOND, 25 * SECOND), limiter)


def shares_of(bench: Any, limiter: str) -> dict[int, list[float]]:
    """Delivered over target, by target, in the order of DURATIONS."""
    cells = [(target, duration) for target in TARGETS for duration in DURATIONS]
    outcomes = bench.workers.run_all([alone(bench, limiter, *cell) for cell in cells])
    found: dict[int, list[float]] = {target: [] for target in TARGETS}
    for (target, _), outcome in zip(cells, outcomes):
        assert outcome.stolen == 0
        found[target].append(outcome.share(0) * 100 / target)
    return found


def test_a_bare_card_is_shared_by_contexts(bench: Any) -> None:
    """Four processes get four times as much as one. Limits are there to prevent this."""
    tenants = [bench.scenario.Tenant(50, [flood(MS)] * 4), bench.scenario.Tenant(50, [flood(20 * MS)])]
    outcome = bench.workers.run(bench.scenario.Scenario(tenants, (SECOND, 6 * SECOND), "none"))
    assert outcome.share(0) / outcome.share(1) == pytest.approx(4, rel=0.02)
    assert sum(outcome.shares) == pytest.approx(2 / 2.05, rel=0.01)


def test_tokens_miss_their_targets(bench: Any) -> None:
    """Measured on vcuda's and HAMi's controller: a mean absolute error of 17.5 to 20.7 percent of the target."""
    got = shares_of(bench, "tokens")
    assert 14 < fmean(abs(one - 1) * 100 for row in got.values() for one in row) < 25


def test_tokens_shift_10_against_90(bench: Any) -> None:
    """Reported for HAMi: 1 to 6, up to 1 to 8."""
    tenants = [bench.scenario.Tenant(share, [flood(MS)]) for share in (10, 90)]
    outcome = bench.workers.run(bench.scenario.Scenario(tenants, (5 * SECOND, 35 * SECOND), "tokens"))
    assert 6 <= outcome.share(1) / outcome.share(0) <= 8


def test_tokens_do_not_limit_on_many_multiprocessors(bench: Any) -> None:
    """Reported for HAMi: 99 to 100 percent for a long time at a limit of 50, on 188 multiprocessors."""
    tenant = bench.scenario.Tenant(50, [flood(MS, grid=188)])
    outcome = bench.workers.run(bench.scenario.Scenario([tenant], (SECOND, 16 * SECOND), "tokens", profile="h100x1"))
    assert outcome.share(0) > 0.99


def test_additive_increase_leaves_a_part_undelivered(bench: Any) -> None:
    """Measured on vgpu-manager: one pod gets 0.67 to 0.75 of its target."""
    got = shares_of(bench, "aimd")
    assert 0.65 < fmean(one for row in got.values() for one in row) < 0.77
    assert all(one < 1 for row in got.values() for one in row)
