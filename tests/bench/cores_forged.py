"""Tenants that forge the locks by which containers see each other: what an honest neighbour loses.

The forger has half of the card and uses two percent of it: kernels of 20 us, one each millisecond. The false locks are
in cores_load/lies.c, the meaning of the bytes in libvcuda/src/compute/presence.c.
"""

from __future__ import annotations

from cores_scenario import MS, SECOND, US, Load, Outcome, Scenario, Tenant
from cores_workers import Workers
from results import Result
from sharing_containers import OWN_BITS, card_offset, queue_offset

WINDOW = (SECOND, 21 * SECOND)
SHARE = 50
RARE: Load = {"kernel": f"fixed:{20 * US}", "gap": MS}
FLOOD: Load = {"kernel": f"fixed:{MS}", "wait": 0}


def lies(card: str) -> dict[str, Load]:
    """By what they claim. `card` is its UUID."""
    work, queue = card_offset(card), queue_offset(card)
    return {
        "it locks the whole file": {"lie_from": 1, "lie_length": 0},
        "it has waited since ever longer ago": {"lie_from": queue, "lie_length": 1 << (OWN_BITS - 2), "lie_each": MS},
        "it is the first of all, in one byte, and moves on": {"lie_from": queue + 1, "lie_each": MS},
        "it is the first of all, in one byte, for ever": {"lie_from": queue + 1},
        "it has 16 early places, and moves": {"lie_from": queue + 1, "lie_count": 16, "lie_each": MS, "lie_stride": 3},
        "it works for ever": {"lie_from": work, "lie_own": 1},
        "it works, again and again": {"lie_from": work, "lie_own": 1, "lie_each": MS, "lie_stride": 0},
    }


def scenario(lie: Load, run: int, limiter: str = "libvcuda") -> Scenario:
    return Scenario([Tenant(SHARE, [{**RARE, **lie}]), Tenant(SHARE, [FLOOD])], WINDOW, limiter, seed=run + 1)


def lost_points(outcome: Outcome) -> float:
    """What the neighbour got less than its share, in points of the card."""
    return SHARE - outcome.share(1) * 100


def measure(workers: Workers, runs: int) -> list[Result]:
    asked = list(lies(workers.card()).values())
    lost = [max(map(lost_points, outcomes)) for outcomes in workers.by_run(runs, asked, scenario)]
    what = f"beside a tenant that launches 20 us each ms and forges locks ({len(asked)} ways): points lost of 50"
    return [Result.of("cores.forged.neighbour_points", "points", 5, lost, what)]
