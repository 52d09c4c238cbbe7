"""The load generator's programs (cores_load) as the reference scheduler sees them: when they have kernels, and which.

Belongs here: the same options, the same random numbers and the costs of driver calls on the virtual clock. Who gets
the card is in cores_ideal.py. A thread is a program of its own; a recorded program is one, whatever threads it has.
Times are nanoseconds after the scenario's beginning.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from typing import Any

import cores_traces
from cores_scenario import Load, Scenario
from results import BenchError

LAUNCH, GRAPH, SYNCHRONIZE = 4_000, 6_000, 2_000  #: what the calls cost in the simulator (libvcuda/sim/README.md)
COPY, QUERY = 3_000, 500
COPY_LATENCY = 2_000
BUS, MEMORY = 12, 320  #: bytes in a ns of a profile's bus and memory, unless they are here:
BUS_OF, MEMORY_OF = {"a100x2": 25, "h100x1": 50}, {"a100x2": 1555, "h100x1": 3352}
NEVER = 1 << 62
MASK = (1 << 64) - 1
MODELLED = {
    "kernel", "launches", "wait", "gap", "rounds", "streams", "threads", "graph", "begin", "on", "off", "arrivals",
    "copy", "apart",
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


class Bus:
    """The engine for copies to the card: of a process, or of all."""

    def __init__(self, scenario: Scenario) -> None:
        self.speed = BUS_OF.get(scenario.profile, BUS)
        self.memory = MEMORY_OF.get(scenario.profile, MEMORY)
        self.free: dict[str, int] = {}

    def copy(self, count: int, begin: int, way: str = "H") -> int:
        """When a copy of so many bytes is done that may begin then."""
        end = max(begin, self.free.get(way, 0)) + COPY_LATENCY + count // self.speed
        self.free[way] = end
        return end


class Program:
    """One thread: it has kernels from `ready` on, `left` of them, the next one of `duration`."""

    def __init__(self, load: Load, seed: int, thread: int, end: int, bus: Bus) -> None:
        if unknown := set(load) - MODELLED:
            raise BenchError(f"the reference scheduler does not model {', '.join(sorted(unknown))}")
        self.durations = Durations(str(load.get("kernel", "fixed:1000000")), seed, thread)
        self.begin, self.gap = int(load.get("begin", 0)), int(load.get("gap", 0))
        self.on, self.off = int(load.get("on", 0)), int(load.get("off", 0))
        self.rounds = int(load.get("rounds", 0)) or NEVER
        self.streams, graph = int(load.get("streams", 1)), int(load.get("graph", 0))
        self.bus, self.copied = bus, int(load.get("copy", 0))
        calls = int(load.get("launches", 1)) * self.streams
        self.first_call = GRAPH if graph else LAUNCH
        self.calls_cost = calls * self.first_call + self.streams * (SYNCHRONIZE + (COPY if self.copied else 0))
        self.batch = calls * max(graph, 1)
        self.is_flood = str(load.get("wait", 1)) == "0"
        self.graph = [self.durations.draw() for _ in range(graph * self.streams)]
        if self.is_flood and (self.gap or self.on or "arrivals" in load):
            raise BenchError("the reference scheduler does not model pauses without waiting")
        self.requests: Iterator[int] | None = None
        if "arrivals" in load:
            self.requests = iter(cores_traces.arrivals(str(load["arrivals"]), seed, end))
        self.latency: list[tuple[int, int]] = []  #: of requests: intended time, latency
        self.taken = self.done = self.stream = 0
        self.copies_end = [0] * self.streams
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
        self.ready = max(begin + self.first_call, self.copies_end[0])
        self.left = self.batch // self.streams if self.copied else NEVER if self.is_flood else self.batch
        self._draw()

    def ran(self, count: int, end: int) -> None:
        """So many kernels have run; the last one ended at that time."""
        self.left -= count
        if self.left:
            self._draw()
            return
        if self.copied:
            self.copies_end[self.stream] = self.bus.copy(self.copied, end)
            self.stream = (self.stream + 1) % self.streams
            if self.stream or self.is_flood:
                self.ready = max(end, self.copies_end[self.stream])
                self.left = self.batch // self.streams
                self._draw()
                return
        returned = max(end, self.began + self.calls_cost, *self.copies_end)
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


class Recorded(Program):
    """A recorded program, over and over: its calls in the order of the recording, whatever thread made them."""

    def __init__(self, load: Load, end: int, bus: Bus) -> None:
        self.calls = cores_traces.recorded(str(load["replay"]))
        self.bus, self.begin = bus, int(load.get("begin", 0))
        self.requests, self.done, self.at = None, 0, 0
        self.host = self.card = self.begin
        self.streams_end: dict[int, int] = {}
        self.kernels: deque[tuple[int, int, int]] = deque()  #: stream, when it may begin, duration
        self.ready, self.left = NEVER, 1
        self._go_on()

    @property
    def duration(self) -> int:
        return self.kernels[0][2]

    @property
    def is_even(self) -> bool:
        return False

    def _go_on(self) -> None:
        """Make calls until there is a kernel."""
        while not self.kernels:
            call = self.calls[self.at]
            self.at = (self.at + 1) % len(self.calls)
            self.done += self.at == 0
            self.host += call.pause
            self._make(call)
        self.ready = max(self.kernels[0][1], self.card)

    def _make(self, call: cores_traces.Call) -> None:
        stream_end = self.streams_end.get(call.stream, 0)
        if call.kind in "kgmI":
            self.host += {"k": LAUNCH, "g": GRAPH}.get(call.kind, COPY)
            within = COPY_LATENCY + call.bytes // (self.bus.memory * (2 if call.kind == "m" else 1))
            each = within if call.kind in "mI" else max(call.card // call.operations, 1000)
            count = call.operations if call.kind == "g" else 1
            self.kernels.extend([(call.stream, max(self.host, stream_end), each)] * count)
        elif call.kind in "HDhd":
            self.host += COPY
            end = self.bus.copy(call.bytes, max(self.host, stream_end), call.kind.upper())
            self.streams_end[call.stream] = end
            self.host = max(self.host, end) if call.kind in "hd" else self.host
        elif call.kind == "w":
            self.streams_end[call.stream] = max(stream_end, self.streams_end.get(call.other, 0))
        elif call.kind in "seS":
            ends = [stream_end] if call.kind != "S" else self.streams_end.values()
            self.host = max(self.host, *ends) + SYNCHRONIZE
        elif call.kind in "qQ":
            self.host += QUERY

    def ran(self, count: int, end: int) -> None:
        stream, _, _ = self.kernels.popleft()
        self.streams_end[stream] = self.card = end
        self._go_on()


def programs(scenario: Scenario) -> list[list[list[Program]]]:
    """The threads of each process of each tenant, with the seeds that cores_worker.py gives them."""
    rank = 0
    found: list[list[list[Program]]] = []
    shared = Bus(scenario)
    for tenant in scenario.tenants:
        found.append([])
        for load in tenant.loads:
            rank += 1
            seed, end = scenario.seed * 1000 + rank, scenario.window[1] + 1
            bus = shared if scenario.timing.get("shared_copies") else Bus(scenario)
            if "replay" in load:
                found[-1].append([Recorded(load, end, bus)])
                continue
            threads = range(int(load.get("threads", 1)))
            found[-1].append([Program(load, seed, thread, end, bus) for thread in threads])
    return found
