"""Soft shares beside owners who come and go: how much of the card is used."""

from __future__ import annotations

from cores_scenario import MS, SECOND, Load, Scenario, Tenant
from cores_workers import Workers
from results import Result

SHARE = 50
ROUND: Load = {"kernel": "fixed:1000000", "launches": 4}
FLOOD: Load = {"kernel": "fixed:1000000", "wait": 0}
ON_AND_OFF = (50 * MS, SECOND, 10 * SECOND)
SERVICE: Load = {"kernel": "fixed:1000000", "arrivals": "poisson:20000000"}  #: 5 percent of the card
SHORTEST = 6 * SECOND


def owners() -> list[tuple[Load, int]]:
    """What an owner does, and the length of the window."""
    changing = [({**ROUND, "on": time, "off": time}, max(2 * time, SHORTEST)) for time in ON_AND_OFF]
    return [*changing, (SERVICE, SHORTEST)]


def scenario(owner: Load, length: int, run: int, limiter: str = "libvcuda") -> Scenario:
    """An owner with a hard share, and a tenant that may borrow all of the card."""
    tenants = [Tenant(SHARE, [{**owner, "begin": run * 7 * MS}]), Tenant(SHARE, [FLOOD], 100)]
    return Scenario(tenants, (SECOND, SECOND + length), limiter, seed=run + 1, lender=limiter == "libvcuda")


def measure(workers: Workers, runs: int) -> list[Result]:
    got, free, ideal = (
        workers.by_run(runs, owners(), lambda owner, run, limiter=limiter: scenario(*owner, run, limiter))
        for limiter in ("libvcuda", "none", "ideal")
    )
    used = [min(sum(one.shares) / sum(of.shares) for one, of in zip(got[run], free[run])) for run in range(runs)]
    owned = [min(one.share(0) / of.share(0) for one, of in zip(got[run], ideal[run])) for run in range(runs)]
    what = "owners on and off every 50 ms, 1 s and 10 s, and a service of 5 percent, beside a tenant who borrows: "
    return [
        Result.at_least("cores.loans.utilization", 0.95, used, what + "card time used / without a limiter, the lowest"),
        Result.of("cores.loans.owner", "ratio", None, owned, what + "what the owner got / under `ideal`, the lowest"),
    ]
