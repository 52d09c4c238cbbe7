"""The cost of the core share in real time: of a launch that is not throttled, and of processes that wait.

The launch runs on the null driver (vcuda.py), the waits on the simulated driver with the wall clock. The error of the
share is in cores_share.py.
"""

from __future__ import annotations

import bisect
import tempfile
from pathlib import Path

import vcuda
from cores_scenario import MS, SECOND, US, Load, Scenario, Tenant
from cores_workers import Workers
from results import Result

WAITING = (16, 64)
PROBE = 5 * MS
GATE = 150 * MS  #: longer than a time slice, so that each one is waited for, and too short to be ignored
NEAR_US = 20_000  #: launches that are throttled for their own share are not part of this figure
WINDOW = (SECOND, 4 * SECOND)
KERNEL: Load = {"kernel": "fixed:1000000", "wait": 0}


def measure(workers: Workers, runs: int) -> list[Result]:
    return [*launches(runs), *waiting(workers, runs), *waking(workers, runs)]


def launches(runs: int) -> list[Result]:
    """Measure a launch; the null driver's kernels end at once, so that no launch is ever throttled."""
    with tempfile.TemporaryDirectory(prefix="vgpu-bench-") as name, vcuda.Place(Path(name), cores=90) as place:
        added = [place.added()["launch"] for _ in range(max(runs, vcuda.ROUNDS))]
    what = "cuLaunchKernel with a share of 90, not throttled: (libvcuda - null driver) / clock_gettime"
    return [Result.of("cores.launch.added", "ratio", 3, added, what)]


def waiting(workers: Workers, runs: int) -> list[Result]:
    """Measure the CPU time of processes that share 5 percent and always want more: they wait nearly all the time."""
    length_ms = (WINDOW[1] - WINDOW[0]) / MS
    results = []
    for count, name in zip(WAITING, ("cores.waiting.cpu_percent", "cores.waiting.cpu_percent_of_64")):
        tenant = Tenant(5, [KERNEL] * count)
        outcomes = [workers.run(Scenario([tenant], WINDOW, clock="wall", seed=run + 1)) for run in range(runs)]
        cpu = [max(load["cpu_ms"] for load in outcome.loads[0]) / length_ms * 100 for outcome in outcomes]
        what = f"{count} processes with a share of 5: CPU time of a waiting one, in percent of a core, the most"
        results.append(Result.of(name, "percent", 1, cpu, what))
    return results


def waking(workers: Workers, runs: int) -> list[Result]:
    """Measure how soon a launch continues after the neighbour has left the card.

    The neighbour only holds the presence lock during every other interval of GATE.
    """
    load: Load = {**KERNEL, "kernel": "fixed:200000", "trace": MS}
    tenants = [Tenant(90, [load, {"probe": PROBE}]), Tenant(10, [{"gate": GATE}])]
    late: dict[str, list[float]] = {name: [] for name in ("p50", "p99", "futex_p50", "futex_p99")}
    for run in range(runs):
        outcome = workers.run(Scenario(tenants, (SECOND, 13 * SECOND), clock="wall", seed=run + 1))
        (held, probed), (gate,) = ([load["woken"] for load in loads] for loads in outcome.loads)
        gate = [went for went in gate if went > SECOND]  # by then libvcuda has estimates of its kernels
        launched = [figure for went in gate if (figure := (first_after(held, went) - went) / US) < NEAR_US]
        futexes = [at % PROBE / US for at in probed]
        for name, figures in (("", sorted(launched)), ("futex_", sorted(futexes))):
            late[f"{name}p50"].append(figures[len(figures) // 2])
            late[f"{name}p99"].append(figures[len(figures) * 99 // 100])
    what = {
        "p50": "from the time another container leaves to the return of the launch that waited for it, median",
        "p99": "the same, 99th percentile",
        "futex_p50": "at the same time, a bare futex (no timer slack) from its deadline to its return, median",
        "futex_p99": "the same, 99th percentile",
    }
    return [Result.of(f"cores.waiting.wake_{name}_us", "us", None, late[name], what[name]) for name in late]


def first_after(times: list[int], at: int) -> int:
    """The first of the sorted times that is not before `at`; if there is none, a time much later."""
    index = bisect.bisect_left(times, at)
    return times[index] if index < len(times) else at + SECOND
