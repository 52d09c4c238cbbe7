"""How soon a share that is changed under way counts."""

from __future__ import annotations

from cores_scenario import MS, SECOND, Outcome, Scenario, Tenant
from cores_tenants import LOADS
from cores_workers import Workers
from results import Result

CHANGED = 2 * SECOND
STEP = 5 * MS
OVER = 100 * MS  #: a new share counts when it is had over such a time, to a tenth of it
STEPS = ((20, 60), (60, 20), (80, 10), (10, 80))


def measure(workers: Workers, runs: int) -> list[Result]:
    asked = [(change, run) for run in range(runs) for change in STEPS]
    outcomes = workers.run_all(scenario(change, run) for change, run in asked)
    figures = [
        max(_late_ms(outcome, change[1]) for (change, of), outcome in zip(asked, outcomes) if of == run)
        for run in range(runs)
    ]
    what = f"shares changed by {STEPS}: until the new one is had over the next 100 ms, the longest"
    return [Result.of("cores.change_ms", "ms", 100, figures, what)]


def scenario(change: tuple[int, int], run: int) -> Scenario:
    old, new = change
    at = CHANGED + run * 7 * MS
    tenant = Tenant(old, LOADS[run % 2])
    return Scenario([tenant], (at, at + SECOND), changes=[(at, 0, new, new)], every=STEP, seed=run + 1)


def _late_ms(outcome: Outcome, share: int) -> float:
    looks = int(OVER / STEP)
    for first in range(len(outcome.at) - looks):
        if abs(outcome.share(0, first, first + looks) * 100 - share) <= 0.1 * share:
            return (outcome.at[first] - outcome.at[0]) / MS
    return (outcome.at[-1] - outcome.at[0]) / MS
