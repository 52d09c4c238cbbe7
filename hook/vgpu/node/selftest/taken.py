"""What a driver takes of a card's memory beside what is asked for, and when NVML says so; without libvcuda.

Belongs here: figures about memory, for the simulated driver's profile. An observer stays on the card and looks at what
is free, while another program does one thing. Does not belong here: time (card.py), what libvcuda charges (rows.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from vgpu.config.errors import VgpuError
from vgpu.node.selftest.bench import SECOND
from vgpu.node.selftest.bounds import MIB, MS
from vgpu.node.selftest.card import Figure, Lab
from vgpu.node.selftest.program import Program

#: Bytes of allocations that lie on no boundary of any unit.
ODD = (33 * MIB + 1, 34 * MIB + 700_001, 40 * MIB + 12_345, 51 * MIB + 3)
BLOCK = 64 << 10  #: units from here on are blocks, in which smaller allocations share
PROGRAMS = 4  #: started one after the other: some drivers take more for every other one
STREAMS, NODES, STACK = 256, 20_000, 32 << 10
SEEN = 64 * MIB
ENDS = 3
STEP, LONGEST = 2 * MS, 12 * SECOND


@dataclass
class Observer:
    program: Program

    def free(self) -> int:
        return int(self.program.ask("memory")["free"])

    def now(self) -> int:
        """The time of the programs' clock, which goes on."""
        return int(self.program.ask("sleep until=0")["now"])

    def taken(self, program: Program, line: str) -> int:
        """Bytes that the card has less after a command, which has to succeed."""
        before = self.free()
        answer = program.ask(line)
        if answer["code"]:
            raise VgpuError(
                f"a program without limits: {line}", expected="success", found=f"CUDA error {answer['code']}"
            )
        return before - self.free()


def measure(start: Callable[[], Program], uuid: str) -> list[Figure]:
    lab = Lab(start, uuid)
    observer = Observer(lab.program())
    programs: list[Program] = []
    try:
        return list(_all(lab, observer, programs))
    finally:
        for program in [*programs, observer.program]:
            program.close()


def _all(lab: Lab, observer: Observer, programs: list[Program]) -> Iterator[Figure]:
    seen = observer.program.ask("memory")
    whole = seen.get("nvml_total", seen["total"])
    yield Figure("model.memory_mib", whole / MIB, 0, "MiB")
    yield Figure("model.reserved_mib", (whole - seen["total"]) / MIB, 0, "MiB")
    costs = []
    for _ in range(PROGRAMS):
        before = observer.free()
        programs.append(lab.program())
        costs.append(before - observer.free())
    program = programs[0]
    unit = _unit(observer, program)
    yield from _rounding(observer, program, unit)
    yield from _contexts(observer, programs, costs)
    yield from _nvml(observer, program)
    yield _teardown(lab, observer)


def _unit(observer: Observer, program: Program) -> int:
    """What all sizes on the card are multiples of."""
    return math.gcd(*(observer.taken(program, f"alloc device {size}") for size in ODD))


def _rounding(observer: Observer, program: Program, unit: int) -> Iterator[Figure]:
    has_blocks = unit >= BLOCK
    yield Figure("memory.block_bytes", unit if has_blocks else 0, 0, "bytes")
    if not has_blocks:
        yield Figure("model.allocation_granularity", unit, 0, "bytes")
    chunk = observer.taken(program, "alloc pool 1")
    yield Figure("memory.pool_chunk_bytes", chunk if chunk > unit else 0, 0, "bytes")


def _contexts(observer: Observer, programs: list[Program], costs: list[int]) -> Iterator[Figure]:
    """A program's first context comes with two streams, the self-test's code, and the code of a first launch."""
    program, least, spread = programs[0], min(costs), max(costs) - min(costs)
    listed = {one["pid"]: one["used"] for one in programs[-1].ask("processes")["listed"]}
    own = int(programs[-1].ask("processes")["own"])
    stream = observer.taken(program, f"make streams {STREAMS}") / STREAMS
    further = observer.taken(program, "contexts 1")
    launch = observer.taken(program, "make launch")
    node = observer.taken(program, f"make graph {NODES}") / NODES
    stacks = observer.taken(program, f"make stack {STACK}")
    unlisted = max(0, costs[-1] - listed.get(own, costs[-1]))
    context = further - (spread if costs[0] > least else 0) if further else least - 2 * stream - launch
    yield Figure("model.context_mib", (context - unlisted) / MIB, 0.5, "MiB")
    yield Figure("memory.each_context", int(further > 0), 0, "")
    yield Figure("memory.context_spread_bytes", spread, 0, "bytes")
    yield Figure("memory.context_unlisted_bytes", unlisted, 0, "bytes")
    yield Figure("memory.stream_bytes", stream, 1, "bytes")
    yield Figure("memory.function_bytes", launch, 0, "bytes")
    yield Figure("memory.graph_node_bytes", node, 1, "bytes")
    yield Figure("memory.stacks", int(stacks > 0), 0, "")
    yield Figure("a process lists itself", int(own in listed), 0, "")


def _nvml(observer: Observer, program: Program) -> Iterator[Figure]:
    """How long NVML's figure of used memory stays as it was. The second time begins just after a new figure."""
    if "nvml_used" not in observer.program.ask("memory"):
        return
    lag = 0
    for _ in range(2):
        before = observer.program.ask("memory")
        program.ask(f"alloc device {SEEN}")
        now, began = before, int(before["now"])
        while now["nvml_used"] < before["nvml_used"] + SEEN and now["now"] - began < LONGEST:
            observer.program.ask(f"sleep until={now['now'] + STEP}")
            now = observer.program.ask("memory")
        lag = int(now["now"]) - began
    yield Figure("memory.nvml_lag_ms", lag / MS if lag > STEP else 0, 2 * STEP / MS, "ms")


def _teardown(lab: Lab, observer: Observer) -> Figure:
    """How much longer a program with a context takes to end than one without; its memory is free when it is gone."""

    def ended(program: Program) -> float:
        began = observer.now()
        program.close()
        return (observer.now() - began) / MS

    def greeted() -> Program:
        program = lab.start()
        program.ask("hello")
        return program

    without, having = ([ended(start()) for _ in range(ENDS)] for start in (greeted, lab.program))
    error = max(max(times) - min(times) for times in (without, having))
    return Figure("memory.teardown_ms", max(0.0, min(having) - min(without)), error + 1, "ms")
