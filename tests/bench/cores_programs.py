"""The load generator's programs (cores_load) as the reference scheduler sees them: when they have kernels, and which.

Belongs here: the same options, the same random numbers and the costs of driver calls on the virtual clock. Who gets
the card is in cores_ideal.py. A thread is a program of its own; a recorded program is one, with all of its threads.
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
APART = 100_000  #: between two looks of a replaying thread that has come to its end first
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


class Stream:
    """A stream of a recorded program: its work in order, and when what was before it ended.

    Work is the call, when a thread asked for it, and how much had been asked for in the stream that it waits for.
    """

    def __init__(self) -> None:
        self.work: deque[tuple[cores_traces.Call, int, int]] = deque()
        self.left = 0  #: operations of the first call, a graph, that are not done
        self.asked = 0
        self.ends: list[int] = [0]

    def ask(self, call: cores_traces.Call, host: int, other: int = 0) -> None:
        self.work.append((call, host, other))
        self.asked += 1

    def pass_on(self, end: int) -> None:
        """What comes first has ended."""
        self.work.popleft()
        self.ends.append(end)

    def end_of(self, asked: int) -> int:
        return self.ends[asked] if asked < len(self.ends) else NEVER

    @property
    def ready(self) -> int:
        """When the first kernel may begin. NEVER: it waits for another stream, or there is none."""
        if not self.work or self.work[0][0].kind == "w":
            return NEVER
        return max(self.work[0][1], self.ends[-1])


class Recorded(Program):
    """A recorded program, over and over: the calls of each thread with that thread's gaps, as cores_load/replay.c makes
    them. No call is made before it is known whether the work that it waits for has ended.
    """

    def __init__(self, load: Load, end: int, bus: Bus) -> None:
        calls = cores_traces.recorded(str(load["replay"]))
        count = max(call.thread for call in calls) + 1
        self.calls = [[call for call in calls if call.thread == number] for number in range(count)]
        self.bus, self.begin = bus, int(load.get("begin", 0))
        self.requests, self.done = None, 0
        self.made = [0] * count  #: calls of each thread in this round
        self.hosts = [self.begin] * count  #: since when each thread is free
        self.waits: list[list[tuple[Stream, int]]] = [[] for _ in range(count)]  #: for what each thread waits before
        self.card = self.begin
        self.streams: dict[int, Stream] = {}
        self.ready, self.left = NEVER, 1
        self._go_on()

    @property
    def duration(self) -> int:
        call = self.first.work[0][0]
        if call.kind in "mI":
            return COPY_LATENCY + call.bytes // (self.bus.memory // (1 if call.kind == "m" else 2))
        return max(call.card // call.operations, 1000)

    @property
    def is_even(self) -> bool:
        return False

    def _stream(self, number: int) -> Stream:
        return self.streams.setdefault(number, Stream())

    def _is_free(self, number: int) -> bool:
        """Takes over when what the thread waits for has ended."""
        if self.waits[number]:
            end = max(stream.end_of(asked) for stream, asked in self.waits[number])
            if end == NEVER:
                return False
            self.hosts[number] = max(self.hosts[number], end) + SYNCHRONIZE
            self.waits[number] = []
        return True

    def _next_call(self, number: int) -> int:
        if self.made[number] == len(self.calls[number]) or not self._is_free(number):
            return NEVER
        return self.hosts[number] + self.calls[number][self.made[number]].gap

    def _go_on(self) -> None:
        """Make calls until none can come before the first kernel is ready."""
        threads = range(len(self.calls))
        while True:
            at, number = min((self._next_call(number), number) for number in threads)
            self.first = min(self.streams.values(), key=lambda stream: stream.ready, default=Stream())
            if self.first.ready <= at and self.first.ready < NEVER:
                break
            if at == NEVER:
                self._begin_anew()
                continue
            self._make(number, self.calls[number][self.made[number]], at)
            self.made[number] += 1
        self.ready = max(self.first.ready, self.card)

    def _begin_anew(self) -> None:
        """Together: a thread that is done looks every APART whether the others are."""
        last = max(self.hosts)
        self.hosts = [host - (host - last) // APART * APART for host in self.hosts]
        self.made = [0] * len(self.made)
        self.done += 1

    def _make(self, number: int, call: cores_traces.Call, host: int) -> None:
        stream = self._stream(call.stream)
        if call.kind in "kgmIHDhd":
            host += {"k": LAUNCH, "g": GRAPH}.get(call.kind, COPY)
            stream.ask(call, host)
        elif call.kind == "w":
            stream.ask(call, host, self._stream(call.other).asked)
        elif call.kind in "qQ":
            host += QUERY
        self.hosts[number] = host
        if call.kind in "hdse":
            self.waits[number] = [(stream, stream.asked)]
        elif call.kind == "S":
            self.waits[number] = [(each, each.asked) for each in self.streams.values()]
        if call.kind in "HDhdw":
            self._pass_on()

    def _pass_on(self) -> None:
        """What comes first in its stream and needs no turn: copies over the bus, and waits for what has ended."""
        streams = list(self.streams.values())
        while any(self._passes(stream) for stream in streams):
            pass

    def _passes(self, stream: Stream) -> bool:
        if not stream.work or stream.work[0][0].kind not in "HDhdw":
            return False
        call, host, asked = stream.work[0]
        if call.kind == "w":
            end = self._stream(call.other).end_of(asked)
        else:
            end = self.bus.copy(call.bytes, max(host, stream.ends[-1]), call.kind.upper())
        if end < NEVER:
            stream.pass_on(max(stream.ends[-1], end))
        return end < NEVER

    def ran(self, count: int, end: int) -> None:
        call = self.first.work[0][0]
        self.card = end
        self.first.left = (self.first.left or call.operations if call.kind == "g" else 1) - 1
        if not self.first.left:
            self.first.pass_on(end)
            self._pass_on()
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
