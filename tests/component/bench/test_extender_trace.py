"""The trace of group `extender-trace` and its simulation: what is drawn, and what each rule does with it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from checkout import BENCH


@pytest.fixture(scope="module")
def bench() -> Iterator[Any]:
    sys.path.insert(0, str(BENCH))
    yield SimpleNamespace(
        trace=importlib.import_module("extender_trace"), plot=importlib.import_module("extender_trace_plot")
    )
    sys.path.remove(str(BENCH))


def test_the_trace_repeats_and_follows_its_rule(bench: Any) -> None:
    trace = bench.trace
    pods = trace.draw(1)
    assert pods == trace.draw(1) != trace.draw(2)
    assert len(pods) >= 10_000
    shares = [pod for pod in pods if not pod.shape.whole]
    assert len(shares) / len(pods) == pytest.approx(trace.PART_OF_SHARES, abs=0.02)
    assert {pod.shape.gpus for pod in pods if pod.shape.whole} == {1, 2, 4, 8}
    work = sum(pod.shape.all_cores * pod.life for pod in pods)
    assert work / pods[-1].at / (trace.NODES * trace.CARDS * 100) == pytest.approx(trace.LOAD, rel=0.05)


@pytest.mark.parametrize("name", ["first-fit", "gpu-admission", "vgpu"])
def test_every_pod_begins_and_all_room_comes_back(bench: Any, name: str) -> None:
    trace = bench.trace
    pods = trace.draw(3, 400)
    simulation = trace.Simulation(pods, trace.RULES[name]())
    found = simulation.run()
    assert sorted(found.delays) == [pod.number for pod in pods]
    assert min(found.delays.values()) >= 0
    assert 0 <= found.lost <= 100
    while simulation.ends:
        simulation._end()
    assert simulation.free_cores == trace.NODES * trace.CARDS * 100


def choose(bench: Any, name: str, shape: Any, *room: tuple[int, int, int]) -> Any:
    """What a rule chooses when cards of the first node have less room: (card, cores, GiB)."""
    cards = [[bench.trace.Card() for _ in range(bench.trace.CARDS)] for _ in range(bench.trace.NODES)]
    for at, cores, memory in room:
        cards[1][at] = bench.trace.Card(cores, memory)
    return bench.trace.RULES[name]().choose(bench.trace.Arrival(0, 0.0, 1.0, shape), cards)


def test_first_fit_and_gpu_admissions_rule(bench: Any) -> None:
    half, whole = bench.trace.Shape(50, 40), bench.trace.Shape(100, 80, 2)
    used = ((0, 40, 40), (3, 50, 40))
    assert choose(bench, "first-fit", half, *used) == (0, (0,))
    assert choose(bench, "gpu-admission", half, *used) == (1, (3,))
    assert choose(bench, "first-fit", whole, *used) == (0, (0, 1))
    assert choose(bench, "gpu-admission", whole, *used) == (1, (1, 2))


def test_lost_room_is_what_a_waiting_pod_could_use_in_sum(bench: Any) -> None:
    trace = bench.trace
    simulation = trace.Simulation(trace.draw(1, 10), trace.FirstFit())
    for name in range(trace.NODES):
        for at in range(trace.CARDS):
            simulation._take(trace.Shape(80, 40), (name, (at,)), 1)
    assert simulation.lost() == 0
    simulation.waiting[0] = trace.Arrival(0, 0.0, 1.0, trace.Shape(50, 40))
    assert simulation.lost() == 20
    simulation.waiting[0] = trace.Arrival(0, 0.0, 1.0, trace.Shape(100, 80, 8 * trace.NODES))
    assert simulation.lost() == 0


def test_a_step_function_is_averaged_over_windows(bench: Any) -> None:
    points = [(0.0, 10.0), (1800.0, 20.0), (3600.0, 0.0), (9000.0, 30.0), (10800.0, 0.0)]
    assert bench.plot.averaged(points) == ([0.0, 3600.0, 7200.0], [15.0, 0.0, 15.0])
