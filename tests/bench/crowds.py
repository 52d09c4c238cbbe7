"""Group `tenants`: what neighbours lose while another tenant has very many of something.

A row of ROWS is an attack, and whether the attacker has a share of the neighbours' card or of the other one. Two
neighbours of SHARE always want more of their card. All is on the wall clock. A round is three measurements, one right
after the other: without the attack, with it, without. The round's pair is the second one and the mean of the two
others; its control is the two others. A figure is that of the neighbour that lost more. A run whose controls differ by
more than a point does not count, because the machine had other work.

`VGPU_BENCH_RUNS` sets the number of rounds (10 unless set), `VGPU_BENCH_SECONDS` the length of a measurement (6), and
`VGPU_BENCH_ONLY` selects rows.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from cores_scenario import MS, SECOND, Load, Outcome, Scenario, Tenant
from cores_workers import Workers
from results import BenchError, Result

RUNS, SECONDS = 10, 6
SETTLE = 2 * SECOND
SHARE, ATTACKERS = 45, 10
FLOOD: Load = {"kernel": f"fixed:{MS}", "wait": 0}
MOST_APART = 1.0  #: points between the two measurements of a control
PRESENCE = "$(find /usr/local/vgpu/presence -type f)"


class Row(NamedTuple):
    """`attack` as in cores_scenario.Tenant, `bar` the points that a neighbour may lose."""

    attack: str
    is_on_same_card: bool
    bar: float
    what: str


ROWS = {
    "locks_same_card": Row(f"tenant locks 20000 {PRESENCE}", True, 5, "20,000 read locks, on the same card"),
    "locks_other_card": Row(f"tenant locks 20000 {PRESENCE}", False, 1, "20,000 read locks, on another card"),
    "waiters_same_card": Row(f"tenant waiters 5000 {PRESENCE}", True, 5, "5,000 futex waiters, on the same card"),
    "waiters_other_card": Row(f"tenant waiters 5000 {PRESENCE}", False, 1, "5,000 futex waiters, on another card"),
    "threads": Row("tenant threads 10000", True, 1, "10,000 threads that sleep"),
    "processes": Row("tenant processes 2000", True, 1, "2,000 processes that sleep"),
    "mappings": Row("tenant mappings 60000", True, 1, "60,000 mappings in a process"),
    "watches": Row(f"tenant watches 100 {PRESENCE}", True, 1, "100 inotify instances on the card's presence file"),
}


def scenario(row: Row, with_attack: bool, seconds: int) -> Scenario:
    attacker = Tenant(ATTACKERS, [], cards=1, first_card=0 if row.is_on_same_card else 1,
                      attack=row.attack if with_attack else "")  # fmt: skip
    neighbours = [Tenant(SHARE, [FLOOD], cards=1)] * 2
    window = (SETTLE, SETTLE + seconds * SECOND)
    return Scenario([*neighbours, attacker], window, clock="wall", profile="a100x2")


def points(outcome: Outcome) -> list[float]:
    return [share * 100 for share in outcome.shares[:2]]


def measure_row(workers: Workers, name: str, row: Row, rounds: int, seconds: int) -> list[Result]:
    losses, controls = [], []
    for _ in range(rounds):
        before, during, after = (
            points(workers.run(scenario(row, with_attack, seconds))) for with_attack in (False, True, False)
        )
        losses.append(max((one + other) / 2 - had for one, had, other in zip(before, during, after)))
        controls.append(max(abs(one - other) for one, other in zip(before, after)))
    counts = max(controls) <= MOST_APART
    unit, bar = ("points", row.bar) if counts else ("points (does not count)", None)
    return [
        Result.of(f"tenants.{name}_points", unit, bar, losses, f"{row.what}: points lost of {SHARE}"),
        Result.of(f"tenants.{name}_control_points", "points", None, controls, "without it: points apart"),
    ]


def measure() -> list[Result]:
    """All results of the group."""
    runs = int(os.environ.get("VGPU_BENCH_RUNS", RUNS))
    seconds = int(os.environ.get("VGPU_BENCH_SECONDS", SECONDS))
    names = os.environ.get("VGPU_BENCH_ONLY", " ".join(ROWS)).split()
    if runs < 1 or seconds < 1 or not set(names) <= set(ROWS):
        raise BenchError(f"runs and seconds must be at least 1, VGPU_BENCH_ONLY some of {' '.join(ROWS)}")
    with Workers(1) as workers:
        return [result for name in names for result in measure_row(workers, name, ROWS[name], runs, seconds)]
