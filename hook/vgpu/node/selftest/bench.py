"""The card under test, and loads on it that begin at the same time.

Belongs here: what several rows need: boxes, programs with a context, a time at which all loads begin. Times are ns of
the programs' clock: CLOCK_MONOTONIC, or the simulator's virtual one, which stands still while loads are started.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from vgpu.config.errors import VgpuError
from vgpu.node.driver import nvml
from vgpu.node.selftest.bounds import MIB, MS
from vgpu.node.selftest.program import SUCCESS, NotJudged, Program
from vgpu.node.selftest.way import Box, Share, Way

SECOND = 1000 * MS
LEAD = 200 * MS  #: from the last program's answer to the time at which all loads begin
LATE = 100 * MS  #: by which a load may begin late on a busy machine
WARM = 500 * MS
TOO_OLD = {209: "no code for this card", 218: "invalid PTX", 222: "unsupported PTX version"}


@dataclass
class Bench:
    """`clock`: a program without a context. `limit`: bytes of a box. `context`: what a context takes, by the card.
    `exact`: the driver takes what it is asked for, to the byte, and NVML lists all of it.
    `greeting`: the card as the program describes it. `profile`: a profile for the simulated driver, once measured."""

    way: Way
    clock: Program
    uuid: str
    limit: int = 0
    context: int = 0
    exact: bool = False
    greeting: Mapping[str, Any] = field(default_factory=dict)
    profile: Mapping[str, Any] = field(default_factory=dict)

    @contextmanager
    def box(self, cores: int, core_limit: int = 0, memory: int = 0) -> Iterator[Box]:
        made = self.way.box(Share(cores, memory or self.limit, core_limit))
        try:
            yield made
        finally:
            made.close()

    def used(self) -> int:
        """Bytes of the card that are in use, by NVML as the host sees it."""
        found = nvml.card_use(self.way.nvml, lambda _line: None).get(self.uuid)
        if not found or found[0] is None:
            raise NotJudged("the card", expected="NVML to report its memory", found="nothing", do="look at dmesg")
        return found[0]

    def ready(self, program: Program, uuid: str = "") -> Program:
        """The program with a context on the card."""
        return use(program, uuid or self.uuid)

    def change(self, box: Box, cores: int, memory: int = 0) -> None:
        box.set(Share(cores, memory or self.limit))

    def measure(
        self, loads: Sequence[tuple[Program, str]], window: int, at: int = 0, action: Callable[[], None] | None = None
    ) -> list[dict[str, Any]]:
        """What each load says of a window of so many ns in which all ran. `action` happens `at` ns after the begin."""
        begin = max(self.now(program) for program, _ in [*loads, (self.clock, "")]) + LEAD
        for program, load in loads:
            program.send(f"run {load} begin={begin} end={begin + window}")
        if action:
            self.stop_at(begin + at)
            action()
        self.go_on()
        found = [program.receive(load) for program, load in loads]
        refused = next((one["code"] for one in found if one["code"]), 0)
        if refused:
            raise VgpuError("a load", expected="to run", found=f"CUDA error {refused}")
        late = max(one["begin"] for one in found) - begin
        if late > LATE:
            raise VgpuError("the loads", expected="to begin together", found=f"one that began {ms(late)} late")
        return found

    @staticmethod
    def now(program: Program) -> int:
        """The time of the program. A virtual clock stands still until the program's next command."""
        return int(program.ask("clock")["now"])

    def stop_at(self, time: int) -> int:
        """Wait until a time; a virtual clock then stands still."""
        self.clock.send(f"sleep until={time}\nclock")  # at once, so that no time passes between the two
        self.clock.receive("sleep")
        return int(self.clock.receive("clock")["now"])

    def go_on(self) -> None:
        """A virtual clock goes on."""
        self.clock.ask("sleep until=0")

    def work(self, loads: Sequence[tuple[Program, str]], window: int) -> list[dict[str, Any]]:
        """The same, after a shorter run by which libvcuda knows the kernels. `part` is the part of the window."""
        self.measure(loads, WARM)
        found = self.measure(loads, window)
        return [{**one, "part": one["work"] / window} for one in found]


def use(program: Program, uuid: str) -> Program:
    program.ask("hello")
    code = program.ask(f"use {uuid}")["code"]
    if code in TOO_OLD:
        raise NotJudged("the driver", expected="one that takes the program's PTX", found=f"CUDA error {code}, "
                        f"{TOO_OLD[code]}", do="install a newer driver")  # fmt: skip
    if code != SUCCESS:
        raise NotJudged("a context on the card", expected="one", found=f"CUDA error {code}")
    return program


def lost_by(found: Sequence[Mapping[str, Any]]) -> int:
    """For how many ns the programs of loads that ran together had no processor, although they could run."""
    return sum(one["lost"] for one in found)


def mib(size: float) -> str:
    return f"{size / MIB:.0f} MiB" if size % MIB == 0 else f"{size / MIB:.3f} MiB"


def number(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else f"{value:.4g}"


def percent(part: float) -> str:
    return f"{100 * part:.1f}"


def ms(time: float) -> str:
    return f"{time / MS:.2f} ms"
