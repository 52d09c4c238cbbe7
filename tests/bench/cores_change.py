"""How soon a changed core share takes effect while the programs run.

A scenario changes the share of one tenant and reads the ledger every STEP. The figure is the time until the tenant gets
the new share over the next 100 ms. Running scenarios is in cores_workers.py.
"""

from __future__ import annotations

from cores_scenario import MS, SECOND, Load, Outcome, Scenario, Tenant
from cores_tenants import LOADS
from cores_workers import Workers
from results import Result

CHANGED = 2 * SECOND
STEP = 5 * MS
OVER = 100 * MS  #: a new share is in effect when the tenant gets it over this time, to within a tenth
STEPS = ((20, 60), (60, 20), (80, 10), (10, 80), (5, 90), (90, 5))
PROCESSES = (1, 4, 16)
FLOOD: Load = {"kernel": "fixed:1000000", "wait": 0}
#: From no limit at all: work that such a program has queued cannot be called back, so the program waits now and then.
FREE = ((100, 30), (30, 100))
ROUNDS: Load = {"kernel": "fixed:1000000", "launches": 4}


def measure(workers: Workers, runs: int, processes: tuple[int, ...] = PROCESSES) -> list[Result]:
    asked = [
        *((change, lambda run: LOADS[run % 2]) for change in STEPS[:4]),
        *((change, lambda _, count=count: [FLOOD] * count) for change in STEPS for count in processes),
        *((change, lambda _, count=count: [ROUNDS] * count) for change in FREE for count in processes),
    ]
    found = workers.by_run(runs, asked, lambda case, run: scenario(case[0], case[1](run), run))
    figures = [max(_late_ms(outcome, change[1]) for (change, _), outcome in zip(asked, outcomes)) for outcomes in found]
    what = (
        f"shares changed by {(*STEPS, *FREE)}, with up to {processes[-1]} processes: "
        "time until the tenant gets the new one over the next 100 ms, the longest"
    )
    return [Result.of("cores.change_ms", "ms", 100, figures, what)]


def scenario(change: tuple[int, int], loads: list[Load], run: int) -> Scenario:
    old, new = change
    at = CHANGED + run * 7 * MS
    tenant = Tenant(old, loads)
    return Scenario([tenant], (at, at + SECOND), changes=[(at, 0, new, new)], every=STEP, seed=run + 1)


def _late_ms(outcome: Outcome, share: int) -> float:
    looks = int(OVER / STEP)
    for first in range(len(outcome.at) - looks):
        if abs(outcome.share(0, first, first + looks) * 100 - share) <= 0.1 * share:
            return (outcome.at[first] - outcome.at[0]) / MS
    return (outcome.at[-1] - outcome.at[0]) / MS
