"""What the self-test measures of a card, against the simulated driver, which knows the truth.

Belongs here: figures and their errors, and profiles made of them. Time is virtual. What libvcuda promises is judged in
the tests of the self-test's rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkout import BUILD

from vgpu.node.selftest import card, taken
from vgpu.node.selftest.card import Figure
from vgpu.node.selftest.program import Program

PROGRAM = str(BUILD / "bin/vgpu-selftest")
PLAIN = dict.fromkeys(("wake_us", "whole_kernels", "idle_us", "shared_copies", "event_turn"), 0)
PLAIN |= {"slice_us": 2000, "switch_us": 50}  # what a profile has that says nothing
TURNS = {"slice_us": 1200, "switch_us": 150, "wake_us": 300, "idle_us": 300, "event_turn": 1}
OTHERS = {"slice_us": 3000, "switch_us": 20, "wake_us": 2700, "whole_kernels": 1, "shared_copies": 1}
H100S = {"slice_us": 2090, "switch_us": 152, "wake_us": 50}  #: as docs/reality.md has them


class Measured:
    """The figures of a node with a profile."""

    def __init__(self, make_node: Callable[..., Any], profile: Any) -> None:
        self.node = make_node(profile, clock="virtual")
        started = self.start()
        self.greeting = started.ask("hello")["cards"][0]
        started.close()
        found = [*card.measure(self.start, "0"), *taken.measure(self.start, "0")]
        self.figures = {figure.name: figure for figure in found}

    def start(self) -> Program:
        return Program([PROGRAM], str(self.node.directory / "selftest.log"), self.node.environment())

    def differs(self, profile: dict[str, Any], model: str) -> list[tuple[Figure, float]]:
        """The figures that are not what the profile says."""
        truth = {
            f"{section}.{key}": value for section in ("timing", "memory") for key, value in profile[section].items()
        }
        truth |= {
            f"model.{key}": profile["models"][model][key] for key in ("memory_mib", "reserved_mib", "context_mib")
        }
        measured = self.figures
        return [
            (measured[name], value) for name, value in truth.items()
            if name in measured and abs(measured[name].value - value) > measured[name].error
        ]  # fmt: skip


def of(simctl: Any, name: str, timing: dict[str, int], **memory: int) -> dict[str, Any]:
    loaded = simctl.load_profile(name)
    return {**loaded, "timing": {**PLAIN, **timing}, "memory": {**loaded.get("memory", {}), **memory}}


def test_the_figures_are_what_the_driver_does(make_node: Any, simctl: Any) -> None:
    profile = of(simctl, "harsh", TURNS, nvml_lag_ms=300)
    measured = Measured(make_node, profile)
    assert measured.differs(profile, "a100") == []
    assert measured.figures["timing.wake_us"].error < 60
    assert measured.figures["overlap"].value == 0


@pytest.mark.long
@pytest.mark.parametrize("timing", [{}, TURNS, OTHERS, H100S], ids=["plain", "turns", "others", "h100"])
@pytest.mark.parametrize(("name", "model"), [("t4x1", "t4"), ("a100x2", "a100"), ("h100x1", "h100"), ("harsh", "a100")])
def test_a_measured_profile_measures_the_same(
    make_node: Any, simctl: Any, tmp_path: Path, name: str, model: str, timing: dict[str, int]
) -> None:
    profile = of(simctl, name, timing)
    first = Measured(make_node, profile)
    assert first.differs(profile, model) == []
    file = tmp_path / "measured.yaml"
    file.write_text(json.dumps(card.profile(first.greeting, list(first.figures.values()))))
    second = Measured(make_node, str(file))
    changed = [
        (figure, second.figures.get(key)) for key, figure in first.figures.items()
        if not (key in second.figures and figure.agrees(second.figures[key]))
    ]  # fmt: skip
    assert changed == []
