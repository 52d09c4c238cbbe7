"""The cost of the core share in real time: of calls that are not throttled, and of processes that wait.

The calls run on the null driver (vcuda.py), the waits on the simulated driver with the wall clock. The error of the
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
from sharing_containers import card_offset

WAITING = (16, 64)
PROBE = 5 * MS
GATE = 150 * MS  #: longer than a time slice, so that each one is waited for, and too short to be ignored
NEAR_US = 20_000  #: launches that are throttled for their own share are not part of this figure
WINDOW = (SECOND, 4 * SECOND)
KERNEL: Load = {"kernel": "fixed:1000000", "wait": 0}


def measure(workers: Workers, runs: int) -> list[Result]:
    return [*calls(runs), *waiting(workers, runs), contended(workers, runs), *waking(workers, runs)]


def calls(runs: int) -> list[Result]:
    """Measure calls; the null driver's kernels end at once, so that no launch is ever throttled."""
    with tempfile.TemporaryDirectory(prefix="vgpu-bench-") as name, vcuda.Place(Path(name), cores=90) as place:
        added = [place.added() for _ in range(max(runs, vcuda.ROUNDS))]
    launch = "cuLaunchKernel with a share of 90, not throttled: (libvcuda - null driver) / clock_gettime"
    query = "cuEventQuery + cuStreamQuery, which programs call in loops: libvcuda - null driver"
    return [
        Result.of("cores.launch.added", "ratio", 3, [one["launch"] for one in added], launch),
        Result.of("cores.query.added_ns", "ns", 10, [one["query_ns"] for one in added], query),
    ]


def cpu_percent(workers: Workers, tenants: list[Tenant], run: int, limiter: str = "libvcuda") -> float:
    """The CPU time of a process without the simulated card's threads, in percent of a core, the most."""
    outcome = workers.run(Scenario(tenants, WINDOW, limiter, clock="wall", seed=run + 1))
    return max(load["cpu_ms"] for loads in outcome.loads for load in loads) / (WINDOW[1] - WINDOW[0]) * MS * 100


def waiting(workers: Workers, runs: int) -> list[Result]:
    """Measure the CPU time of processes that share 5 percent and always want more: they wait nearly all the time."""
    results = []
    for count, name in zip(WAITING, ("cores.waiting.cpu_percent", "cores.waiting.cpu_percent_of_64")):
        cpu = [cpu_percent(workers, [Tenant(5, [KERNEL] * count)], run) for run in range(runs)]
        what = f"{count} processes with a share of 5: CPU time of a waiting one, in percent of a core, the most"
        results.append(Result.of(name, "percent", 1, cpu, what))
    return results


def contended(workers: Workers, runs: int) -> Result:
    """Measure the CPU time that libvcuda adds to programs that both always have work for the card."""
    tenants = [Tenant(50, [{**KERNEL, "wait": 0}])] * 2
    added = [cpu_percent(workers, tenants, run) - cpu_percent(workers, tenants, run, "none") for run in range(runs)]
    what = "two containers of 50 that flood the card: CPU time of a program, in percent of a core: libvcuda - none"
    return Result.of("cores.waiting.contended_percent", "percent", 1.5, added, what)


def waking(workers: Workers, runs: int) -> list[Result]:
    """Measure how soon a launch continues after the neighbour has left the card.

    The neighbour only holds the presence lock during every other interval of GATE.
    """
    load: Load = {**KERNEL, "kernel": "fixed:200000", "trace": MS}
    gate_load: Load = {"gate": GATE, "gate_from": card_offset(workers.card())}
    tenants = [Tenant(90, [load, {"probe": PROBE}]), Tenant(10, [gate_load])]
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
