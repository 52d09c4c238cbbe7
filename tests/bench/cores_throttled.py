"""A tenant whose CPU quota stops it in the middle of its work on the card: what its neighbour loses, on the wall clock.

The quota is 40 of 100 ms, and two busy threads of the tenant use it up. A run with them is followed by one without, in
which everything else is the same; the figure is the difference of what the neighbour got.
"""

from __future__ import annotations

from cores_scenario import MS, SECOND, Load, Scenario, Tenant
from cores_workers import Workers
from results import Result

QUOTA = 40
WINDOW = 6 * SECOND
WHOLE_WINDOW = 30 * SECOND
REALTIME = {"VGPU_SIM_REALTIME": "1"}  #: a card works on while its programs are stopped
FLOOD: Load = {"kernel": f"fixed:{MS}", "wait": 0}


def scenario(run: int, is_throttled: bool, window: int, limiter: str = "libvcuda") -> Scenario:
    holder = Tenant(50, [{**FLOOD, "burn": 2}], cpu_quota=QUOTA) if is_throttled else Tenant(50, [FLOOD])
    return Scenario(
        [holder, Tenant(50, [FLOOD])],
        (SECOND, SECOND + window),
        limiter,
        clock="wall",
        seed=run + 1,
        environment=REALTIME,
    )


def measure(workers: Workers, runs: int, window: int = WINDOW) -> list[Result]:
    lost = []
    for run in range(runs):
        throttled, control = (workers.run(scenario(run, is_throttled, window)) for is_throttled in (True, False))
        lost.append((control.share(1) - throttled.share(1)) * 100)
    what = f"beside a tenant of 50 with {QUOTA} of 100 ms of CPU, runs of {window // SECOND} s: points lost of 50"
    return [Result.of("cores.throttled.neighbour_points", "points", 3, lost, what)]


def measure_whole(workers: Workers, runs: int) -> list[Result]:
    return measure(workers, runs, WHOLE_WINDOW)
