"""The load generator's programs (cores_load/load.c) as the reference scheduler sees them: when they have kernels, and
which.

Belongs here: the same options, the same random numbers and the costs of driver calls on the virtual clock. Who gets
the card is in cores_ideal.py. A thread is a program of its own. Times are nanoseconds after the scenario's beginning.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import cores_traces
from cores_scenario import Load, Scenario
from results import BenchError

LAUNCH, GRAPH, SYNCHRONIZE = 4_000, 6_000, 2_000  #: what the calls cost in the simulator (libvcuda/sim/README.md)
NEVER = 1 << 62
MASK = (1 << 64) - 1
MODELLED = {
    "kernel", "launches", "wait", "gap", "rounds", "streams", "threads", "graph", "begin", "on", "off", "arrivals",
}  # fmt: skip


class Durations:
    """The durations of a thread's kernels: those that load.c draws from the same seed."""

    def __init__(self, kernel: str, seed: int, thread: int) -> None:
        self.shape, *numbers = kernel.split(":")
        self.numbers = [float(number) for number in numbers]
        if self.shape not in ("fixed", "lognormal", "bimodal"):
            raise BenchError(f"{kernel}: no kernel of that form")
        self.fixed = max(int(self.numbers[0]), 1000) if self.shape == "fixed" else 0
        self.state = (seed * 1_000_003 + thread) & MASK

    def _uniform(self) -> float:
        self.state = value = (self.state + 0x9E3779B97F4A7C15) & MASK
        value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & MASK
        value = ((value ^ value >> 27) * 0x94D049BB133111EB) & MASK
        return ((value ^ value >> 31) >> 11) / 9007199254740992.0

    def draw(self) -> int:
        if self.fixed:
            return self.fixed
        value = self.numbers[0]
        if self.shape == "bimodal" and self._uniform() * 1000 < self.numbers[2]:
            value = self.numbers[1]
        if self.shape == "lognormal":
            radius = math.sqrt(-2 * math.log(1 - self._uniform()))
            value *= math.exp(radius * math.cos(6.283185307179586 * self._uniform()) * self.numbers[1] / 1000)
            value = min(value, self.numbers[2])
        return max(int(value), 1000)


class Program:
    """One thread: it has kernels from `ready` on, `left` of them, the next one of `duration`."""

    def __init__(self, load: Load, seed: int, thread: int, end: int) -> None:
        if unknown := set(load) - MODELLED:
            raise BenchError(f"the reference scheduler does not model {', '.join(sorted(unknown))}")
        self.durations = Durations(str(load.get("kernel", "fixed:1000000")), seed, thread)
        self.begin, self.gap = int(load.get("begin", 0)), int(load.get("gap", 0))
        self.on, self.off = int(load.get("on", 0)), int(load.get("off", 0))
        self.rounds = int(load.get("rounds", 0)) or NEVER
        streams, graph = int(load.get("streams", 1)), int(load.get("graph", 0))
        calls = int(load.get("launches", 1)) * streams
        self.first_call = GRAPH if graph else LAUNCH
        self.calls_cost = calls * self.first_call + streams * SYNCHRONIZE
        self.batch = calls * max(graph, 1)
        self.is_flood = not int(load.get("wait", 1))
        self.graph = [self.durations.draw() for _ in range(graph * streams)]
        if self.is_flood and (self.gap or self.on or "arrivals" in load):
            raise BenchError("the reference scheduler does not model pauses without waiting")
        self.requests: Iterator[int] | None = None
        if "arrivals" in load:
            self.requests = iter(cores_traces.arrivals(str(load["arrivals"]), seed, end))
        self.latency: list[tuple[int, int]] = []  #: of requests: intended time, latency
        self.taken = self.done = 0
        self.ready, self.left = NEVER, 0
        self._next_round(self.begin)

    @property
    def duration(self) -> int:
        return self._current

    @property
    def is_even(self) -> bool:
        """Whether all kernels take equally long."""
        return bool(self.durations.fixed)

    def _draw(self) -> None:
        self._current = self.graph[self.taken % len(self.graph)] if self.graph else self.durations.draw()
        self.taken += 1

    def _next_round(self, free: int) -> None:
        """The thread is free from then on."""
        self.ready, self.left = NEVER, 0
        begin = max(free, self.begin)
        if self.done >= self.rounds:
            return
        if self.requests is not None:
            self.intended = next(self.requests, NEVER)
            if self.intended == NEVER:
                return
            begin = max(begin, self.intended)
        if self.on:
            cycles, passed = divmod(begin - self.begin, self.on + self.off)
            if passed >= self.on:
                begin = self.begin + (cycles + 1) * (self.on + self.off)
        self.began = begin
        self.ready = begin + self.first_call
        self.left = NEVER if self.is_flood else self.batch
        self._draw()

    def ran(self, count: int, end: int) -> None:
        """So many kernels have run; the last one ended at that time."""
        self.left -= count
        if self.left:
            self._draw()
            return
        returned = max(end, self.began + self.calls_cost)
        self.done += 1
        if self.requests is not None:
            self.latency.append((self.intended, returned - self.intended))
        self._next_round(returned + self.gap)

    def latencies(self, warm: int, end: int) -> tuple[list[int], int]:
        """Latencies of the requests between two times, and how many of them were not done; those count as waiting."""
        found = [
            latency if time + latency <= end else end - time for time, latency in self.latency if warm <= time < end
        ]
        unfinished = sum(warm <= time < end < time + latency for time, latency in self.latency)
        if self.requests is None or self.ready == NEVER:
            return found, unfinished
        waiting = [time for time in (self.intended, *self.requests) if warm <= time < end]
        return found + [end - time for time in waiting], unfinished + len(waiting)

    def report(self, warm: int, end: int) -> dict[str, Any]:
        if self.requests is None:
            return {"rounds": self.done}
        found, unfinished = self.latencies(warm, end)
        return {"rounds": self.done, "latency_ns": found, "unfinished": unfinished}


def programs(scenario: Scenario) -> list[list[list[Program]]]:
    """The threads of each process of each tenant, with the seeds that cores_worker.py gives them."""
    rank = 0
    found: list[list[list[Program]]] = []
    for tenant in scenario.tenants:
        found.append([])
        for load in tenant.loads:
            rank += 1
            seed, end = scenario.seed * 1000 + rank, scenario.window[1] + 1
            threads = range(int(load.get("threads", 1)))
            found[-1].append([Program(load, seed, thread, end) for thread in threads])
    return found
