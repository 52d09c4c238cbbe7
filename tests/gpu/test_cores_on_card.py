"""The core share on a real card: the work of a limited program, relative to its work alone and without a limit.

A real card has no exact ledger: the tests rely on the program's own count of completed kernels, whose durations the
card's clock measures. The load generator is that of the benchmarks on the simulator (bench/cores_load).
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import bundles
import pytest

from vgpu.config import limits, usage

US, MS, SECOND = 1_000, 1_000_000, 1_000_000_000
BEGIN, END = SECOND, 6 * SECOND
PATIENCE = 60


class Loads:
    """Starts programs in the box, with a share or without."""

    def __init__(self, box: Any, program: Path) -> None:
        self.box = box
        self.program = program

    def start(self, duration: int, launches: int, share: int | None) -> subprocess.Popen[str]:
        options = {"kernel": f"fixed:{duration}", "launches": launches, "grid": 1, "block": 32}
        words = [f"{name}={value}" for name, value in {**options, "begin": BEGIN, "end": END}.items()]
        environment = dict(self.box.environment)
        if share is None:
            environment["LD_LIBRARY_PATH"] = str(self.box.path / "driver")
        command = self.box.command(str(self.program), *words)
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    def used(self, duration: int, launches: int, share: int | None, count: int = 1) -> float:
        """The part of the time in which kernels of `count` programs ran, from the programs' own counts."""
        if share is not None:
            card = limits.CardLimit(self.box.uuid, limits.UNLIMITED, share, share)
            (self.box.path / "limits").write_bytes(limits.encode("box", [card]))
        running = [self.start(duration, launches, share) for _ in range(count)]
        rounds = [json.loads(one.communicate(timeout=PATIENCE)[0])["rounds"] for one in running]
        return sum(rounds) * launches * duration / (END - BEGIN)


@pytest.fixture
def loads(gpu: Any, tmp_path: Path) -> Loads:
    return Loads(gpu, bundles.load_generator(tmp_path))


@pytest.mark.parametrize(("duration", "launches"), [(100 * US, 50), (MS, 5), (10 * MS, 1)])
def test_a_share_is_held_and_delivered(loads: Loads, duration: int, launches: int) -> None:
    whole = loads.used(duration, launches, None)
    for share in (10, 50, 90):
        got = loads.used(duration, launches, share) / whole * 100
        assert 0.85 * share <= got <= share + 3, f"{share}: {got}"


def test_processes_of_a_container_have_one_share(loads: Loads) -> None:
    whole = loads.used(MS, 10, None)
    got = loads.used(MS, 10, 40, count=4) / whole * 100
    assert 36 <= got <= 43


def test_what_a_change_of_contexts_costs_is_measured(loads: Loads, capsys: pytest.CaptureFixture[str]) -> None:
    """The figure that libvcuda uses from then on: two processes of one container change places every 10 ms."""
    loads.used(MS, 10, 60, count=2)
    _, change = usage.change((loads.box.path / "usage/usage").read_bytes()[: usage.CARDS_END])
    with capsys.disabled():
        print(f"a change of contexts takes {change / US:.0f} us")
    assert 2 * US < change <= 400 * US
