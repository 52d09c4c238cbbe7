"""The card under test, and loads on it that begin at the same time.

Belongs here: what several rows need: boxes, programs with a context, a time at which all loads begin. Times are ns of
the programs' clock, which the eye reads and, on a virtual clock, holds while loads are started.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from vgpu.config.errors import VgpuError
from vgpu.node.selftest.bounds import MIB, MS
from vgpu.node.selftest.program import SUCCESS, NotJudged, Program
from vgpu.node.selftest.way import Box, Share, Way

SECOND = 1000 * MS
LEAD = 200 * MS  #: from the first line that starts a load to the time at which all begin, and LEAD_EACH for each
LEAD_EACH = 50 * MS
WARM = 500 * MS
TOO_OLD = {209: "no code for this card", 218: "invalid PTX", 222: "unsupported PTX version"}


@dataclass
class Bench:
    """`limit`: bytes of a box. `context`: what a context takes, by the card. `exact`: the driver takes what it is asked
    for, to the byte; None while that is not known."""

    way: Way
    eye: Program
    uuid: str
    limit: int
    context: int = 0
    exact: bool | None = None
    full: bool = False

    @contextmanager
    def box(self, cores: int, core_limit: int = 0, memory: int = 0) -> Iterator[Box]:
        made = self.way.box(Share(cores, memory or self.limit, core_limit))
        try:
            yield made
        finally:
            made.close()

    def used(self) -> int:
        """Bytes of the card that are in use, by NVML as the host sees it."""
        return int(self.eye.ask(f"nvml {self.uuid}")["used"])

    def ready(self, program: Program, uuid: str = "") -> Program:
        """The program with a context on the card."""
        return use(program, uuid or self.uuid)

    def change(self, box: Box, cores: int, memory: int = 0) -> None:
        box.set(Share(cores, memory or self.limit))

    def measure(
        self, loads: Sequence[tuple[Program, str]], window: int, at: int = 0, action: Callable[[], None] | None = None
    ) -> list[dict[str, Any]]:
        """What each load says of a window of so many ns in which all ran. `action` happens `at` ns after the begin."""
        now = int(self.eye.ask("hold")["now"])
        begin = now + LEAD + LEAD_EACH * len(loads)
        try:
            for program, load in loads:
                ready = int(program.ask(f"begin {load} begin={begin} end={begin + window}")["ready"])
                if ready > begin:
                    raise VgpuError("the loads", expected="to begin together", found="a machine too busy for that")
            if action:
                self.eye.ask(f"hold until={begin + at}")
                action()
        finally:
            self.eye.ask("hold off")
        for program, _ in loads:
            program.send("end")
        return [program.receive("end") for program, _ in loads]

    def work(self, loads: Sequence[tuple[Program, str]], window: int) -> list[dict[str, Any]]:
        """The same, after a shorter run by which libvcuda knows the kernels. `part` is the part of the window."""
        self.measure(loads, WARM)
        found = self.measure(loads, window)
        return [{**one, "part": one["work"] / window} for one in found]


def use(program: Program, uuid: str) -> Program:
    code = program.ask(f"use {uuid}")["code"]
    if code in TOO_OLD:
        raise NotJudged("the driver", expected="one that takes the program's PTX", found=f"CUDA error {code}, "
                        f"{TOO_OLD[code]}", do="install a newer driver")  # fmt: skip
    if code != SUCCESS:
        raise NotJudged("a context on the card", expected="one", found=f"CUDA error {code}")
    return program


def mib(size: float) -> str:
    return f"{size / MIB:.0f} MiB" if size % MIB == 0 else f"{size / MIB:.3f} MiB"


def percent(part: float) -> str:
    return f"{100 * part:.1f}"


def ms(time: float) -> str:
    return f"{time / MS:.2f} ms"
