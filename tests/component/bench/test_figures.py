"""The arithmetic of the benchmarks on made-up outcomes, as no benchmark would show an error in it; and their output."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

import bundles
import pytest

MS, SECOND = 1_000_000, 1_000_000_000


def outcome(bench: Any, at: list[int], busy: list[list[int]]) -> Any:
    return bench.cores_scenario.Outcome(at, busy, [], 0, 0)


# Shares and errors


def test_shares_are_of_the_window_only_and_errors_of_the_target(bench: Any) -> None:
    seen = outcome(bench, [SECOND, 2 * SECOND, 3 * SECOND], [[700 * MS, 5], [900 * MS, 5], [1000 * MS, 5]])
    assert (seen.shares, seen.share(0, 0, 1), seen.share(0, 1, 2)) == ([0.15, 0.0], 0.2, 0.1)
    cells = [bench.cores_share.Cell(target, MS, 1) for target in (10, 50)]
    errors = bench.cores_share.errors(cells, [outcome(bench, [0, SECOND], [[0], [busy * MS]]) for busy in (120, 450)])
    assert errors.percent == [pytest.approx(20), pytest.approx(10)]
    assert (errors.over, errors.delivered) == (pytest.approx(2), pytest.approx(0.9))
    assert bench.cores_scenario.jain([0.5, 0.5, 0.5]) == pytest.approx(1)
    assert bench.cores_scenario.jain([1, 0, 0, 0]) == pytest.approx(0.25)


def test_back_and_late_are_the_time_from_which_the_share_is_kept(bench: Any) -> None:
    """The one has nothing for 50 ms, then half of the card. The other changes from half to a tenth after 40 ms."""
    at = list(range(0, 1000 * MS, 10 * MS))
    seen = outcome(bench, at, [[max(0, time - 50 * MS) // 2, 0] for time in at])
    assert bench.cores_tenants._back_ms(seen, 50) == 50
    assert bench.cores_tenants._back_ms(outcome(bench, at, [[0, 0] for _ in at]), 50) == 990
    at = list(range(0, 1000 * MS, 5 * MS))
    seen = outcome(bench, at, [[min(time, 40 * MS) // 2 + max(0, time - 40 * MS) // 10] for time in at])
    assert bench.cores_change._late_ms(seen, 10) == pytest.approx(40, abs=5)


def test_what_is_owed(bench: Any) -> None:
    """Two tenants of 50: the first 100 ms are full; then nothing runs, and by 200 ms both are owed."""
    at = [time * MS for time in (0, 100, 200, 300)]
    seen = outcome(bench, at, [[0, 0], [60 * MS, 40 * MS], [60 * MS, 40 * MS], [60 * MS, 140 * MS]])
    for cores, begun, idle in (([50, 50], 0, 100), ([20, 10], 0, 0), ([50, 50], SECOND, 0)):
        assert bench.cores_owed.idle_ns(seen, cores, [begun, begun]) == idle * MS
    used = [0, 100, 100, 100, 100, 150, 150]
    seen = outcome(bench, [time * MS for time in range(0, 700, 100)], [[one * MS] for one in used])
    assert bench.cores_owed.longest_wait_ns(seen, 0, 50, 0) == 200 * MS  # 100 ms of use are half of 200 ms
    assert bench.cores_owed.longest_wait_ns(seen, 0, 10, 0) == 0


def test_figures_relative_to_the_reference(bench: Any) -> None:
    reference, got, uneven = (
        outcome(bench, [0, SECOND], [[0, 0], [one * MS, other * MS]])
        for one, other in ((400, 200), (200, 100), (300, 0))
    )
    gaps = bench.cores_gaps
    assert (gaps.efficiency(got, reference), gaps.evenness(got, reference)) == (0.5, 1)
    assert (gaps.efficiency(uneven, reference), gaps.evenness(uneven, reference)) == (pytest.approx(0.5),) * 2
    cell = bench.cores_latency.Cell(50, (2 * MS, 1), "poisson", (10 * MS, 1))
    measured = bench.cores_latency.Measured(cell, alone=4, beside=15, free=10)
    assert (measured.excess_ms, measured.ratio_none) == (1, 1.5)
    cell = bench.cores_long.Cell(3 * SECOND, (50, 50))  # 40 for 50 is 20 percent, of which a kernel explains 10
    at = [time * SECOND for time in range(70)]
    seen = outcome(bench, at, [[time * 4 // 10, time // 2] for time in at])
    assert bench.cores_long.worst_percent(cell, seen) == pytest.approx(10)


# Grids and arrivals


def test_the_grids(bench: Any) -> None:
    """A window holds enough kernels, a service needs half of its share, and corners are cells of the grid."""
    for cell in bench.cores_share.cells():
        begin, end = cell.scenario(0).window
        assert (end - begin) * cell.target / 100 >= 200 * cell.duration
        assert end - begin >= SECOND
    for cell in bench.cores_latency.cells():
        duration, kernels = cell.work
        assert duration * kernels / cell.interval == pytest.approx(cell.share / 200)
        assert sum(tenant.cores for tenant in cell.scenario(0).tenants) <= 100
    assert all(sum(shares) == 100 for shares in bench.cores_tenants.NODES)
    counts = {"share": 6 * 5 * 3, "gaps": 3 * 5 * 4, "latency": 4 * 4 * 2 * 5}
    for name, count in counts.items():
        assert len(bench[f"cores_{name}"].cells()) == len(set(bench[f"cores_{name}"].cells())) == count
    for part in (bench.cores_gaps, bench.cores_latency, bench.cores_long):
        assert set(part.corners()) < set(part.cells())


@pytest.mark.parametrize(("spec", "least", "most"), [("fixed", 0, 1e-6), ("poisson", 0.95, 1.05), ("bursts", 3, 99)])
def test_arrivals_repeat_and_have_their_mean_and_shape(bench: Any, spec: str, least: float, most: float) -> None:
    """`least` and `most`: of the steps' deviation over their mean."""
    text = f"{spec}:2000000" + ":10" * (spec == "bursts")
    times = list(bench.cores_traces.arrivals(text, 7, 100 * SECOND))
    assert times == list(bench.cores_traces.arrivals(text, 7, 100 * SECOND)) == sorted(times)
    assert times != list(bench.cores_traces.arrivals(text, 8, 100 * SECOND))
    assert len(times) == pytest.approx(50_000, rel=0.05)
    assert times[-1] < 100 * SECOND
    steps = [later - first for first, later in zip(times, times[1:])]
    mean = fmean(steps)
    assert least <= fmean((step - mean) ** 2 for step in steps) ** 0.5 / mean <= most


@pytest.mark.parametrize("spec", ["uniform:1", "fixed", "fixed:0", "bursts:5", "poisson:often"])
def test_unknown_arrivals_are_refused(bench: Any, spec: str) -> None:
    with pytest.raises(Exception, match="no arrivals of that form"):
        bench.cores_traces.arrivals(spec, 1, SECOND)


def test_percentiles_are_values_that_occurred(bench: Any) -> None:
    values = list(range(100, 0, -1))
    found = [bench.cores_traces.percentile(values, percent) for percent in (0, 50, 99, 99.5, 100)]
    assert found == [1, 50, 99, 100, 100]
    with pytest.raises(Exception, match="no requests"):
        bench.cores_traces.percentile([], 99)


# What a group prints and writes


def test_pictures_name_every_tenant_and_curve(bench: Any, tmp_path: Path) -> None:
    seen = outcome(bench, [SECOND, 2 * SECOND, 3 * SECOND], [[0, 0], [300 * MS, 600 * MS], [600 * MS, 900 * MS]])
    curves = {"libvcuda": [MS, 2 * MS], "ideal": [MS]}
    bench.pictures.shares("shares.svg", "Two tenants", seen, {"training": 30, "service": 70}, tmp_path)
    bench.pictures.latencies("latencies.svg", "A service", curves, tmp_path)
    for name, words in (("shares", ("Two tenants", "training", "service")), ("latencies", ("A service", *curves))):
        assert all(f">{word}</text>" in (tmp_path / f"{name}.svg").read_text() for word in words)


def test_a_picture_of_many_tenants_has_a_row_for_each(bench: Any, tmp_path: Path) -> None:
    seen = outcome(bench, [SECOND, 2 * SECOND], [[0] * 10, [100 * MS] * 10])
    tenants = {f"10: tenant {number}": 10 for number in range(10)}
    bench.pictures.shares("many.svg", "Ten tenants", seen, tenants, tmp_path)
    assert all(f">{word}</text>" in (tmp_path / "many.svg").read_text() for word in ("Ten tenants", *tenants))


def test_tenants_of_mixes_are_named_by_what_they_do_and_each_differently(bench: Any) -> None:
    mix, tenant = bench.cores_mix, bench.cores_scenario.Tenant
    assert mix.names([tenant(30, [{"graph": 300}]), *[tenant(9, [{"wait": 0}])] * 2]) == [
        "30: graph of 300", "9: flood, tenant 2", "9: flood, tenant 3",
    ]  # fmt: skip
    for number in range(30):
        called = mix.names(mix.mix(1, number).tenants)
        assert len(set(called)) == len(called)


def test_a_mix_is_met_within_all_bars_and_its_line_says_what_each_tenant_had(bench: Any) -> None:
    mix, scenario = bench.cores_mix, bench.cores_scenario
    tenants = [scenario.Tenant(30, [{"graph": 300}]), scenario.Tenant(70, [{"wait": 0}])]

    def met(*figures: float) -> bool:
        lacks, beyond, use, harm = figures
        outcomes = [outcome(bench, [0, SECOND], [[0, 0], [share * 10 * MS, 690 * MS]]) for share in (29, 20, 30)]
        found = mix.Found(3, scenario.Scenario(tenants, (0, SECOND)), lacks, beyond, use, {0: harm}, tuple(outcomes))
        state = "met" if found.is_met else "MISSED"
        figures_of = f"points {lacks:.1f}, beyond {beyond:.1f}, use {use:.3f}, harm_ms {harm:.1f}"
        shares = "30: graph of 300 29.0/20.0/30.0; 70: flood 69.0/69.0/69.0"
        assert mix.line(found) == f"mix 3, {state}: {figures_of} (libvcuda/none/ideal: {shares})"
        return bool(found.is_met)

    assert met(2, 1, 0.97, 1)
    assert not any((met(2.1, 1, 0.97, 1), met(2, 1.1, 0.97, 1), met(2, 1, 0.96, 1), met(2, 1, 0.97, 1.1)))


def test_json_and_table(bench: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = bench.results.Result

    def stub() -> list[object]:
        return [
            result.of("stub.met", "ratio", 0.5, [0.3, 0.1, 0.2], "below its bar"),
            result.of("stub.missed", "ratio", 0.5, [0.6], "above its bar"),
            result.at_least("stub.reached", 0.9, [0.95], "above what it has to reach"),
            result.at_least("stub.short", 0.9, [0.85], "below it"),
            result.of("stub.plain", "ms", None, [2.0, 4.0], "without a bar"),
        ]

    assert bench.run.main(["stub"], {"stub": stub}, tmp_path) == 0, "a missed bar is marked, and no error"
    written = json.loads((tmp_path / "stub.json").read_text())
    expected = {"unit": "ratio", "bar": 0.5, "min": 0.1, "median": 0.2, "max": 0.3, "runs": 3, "what": "below its bar"}
    assert written[0] == {"id": "stub.met", **expected}
    assert [set(item) for item in written] == [{"id", *expected}] * 5
    assert (written[4]["bar"], written[4]["median"]) == (None, 3.0)
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.startswith("stub.")}
    assert [name for name, line in lines.items() if "MISSED" in line] == ["stub.missed", "stub.short"]
    assert bench.run.main(["no_such"]) == 2
    assert "hook" in capsys.readouterr().err, "the known groups"


def test_failing_create_is_an_error(bench: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runtime = bundles.Runtime(tmp_path / "state", "sh", "-c", "echo no such luck >&2; exit 1", "sh")
    bundle = bundles.Bundle(tmp_path / "bundle", tmp_path / "rootfs")
    stub = {"stub": lambda: [bench.hook.timed_create(runtime, bundle, "c")]}
    assert bench.run.main(["stub"], stub, tmp_path) == 1
    assert "no such luck" in capsys.readouterr().err
    assert not (tmp_path / "stub.json").exists()


def test_the_hooks_ratios_are_taken_round_by_round_without_the_warm_up(bench: Any) -> None:
    others = (
        "no_allocation", "one_card_release", "one_card_disk", "bare_disk", "eight_cards", "state", "shim_state",
        "bare_stop",
    )  # fmt: skip
    costs = {name: [1.0, 1.0] for name in others}
    costs.update(
        bare=[1.0, 2.0],
        reference=[3.0, 6.0],
        one_card=[4.0, 6.0],
        one_card_sources=[2.0, 3.0],
        one_card_stop=[4.0, 3.0],
    )
    found = {item.id: (item.min, item.median, item.max, item.runs) for item in bench.hook.results(costs)}
    assert (found["hook.one_card"], found["hook.stop"]) == ((1.0, 1.25, 1.5, 2), (0.5, 0.75, 1.0, 2))
    costs.update(one_card_before=[5.0, 4.0], one_card_before_stop=[4.5, 3.5])
    found = {item.id: item.median for item in bench.hook.results(costs)}
    assert (found["hook.one_card_change_ms"], found["hook.stop_change_ms"]) == (500.0, -500.0)
    calls = {"a": 0, "b": 0}

    def timed(name: str) -> float:
        calls[name] += 1
        return float(calls[name])

    costs = bench.hook.interleaved({"a": lambda: timed("a"), "b": lambda: timed("b")}, rounds=2, repeats=3)
    assert calls == {"a": 9, "b": 9}
    assert costs == {"a": [5.0, 8.0], "b": [5.0, 8.0]}


# The trace of group `extender-trace`


def test_the_trace_repeats_and_follows_its_rule(bench: Any) -> None:
    trace = bench.extender_trace
    pods = trace.draw(1)
    assert pods == trace.draw(1) != trace.draw(2)
    shares = [pod for pod in pods if not pod.shape.whole]
    assert len(shares) / len(pods) == pytest.approx(trace.PART_OF_SHARES, abs=0.02)
    assert {pod.shape.gpus for pod in pods if pod.shape.whole} == {1, 2, 4, 8}
    work = sum(pod.shape.all_cores * pod.life for pod in pods)
    assert work / pods[-1].at / (trace.NODES * trace.CARDS * 100) == pytest.approx(trace.LOAD, rel=0.05)


@pytest.mark.parametrize("name", ["first-fit", "gpu-admission", "vgpu"])
def test_every_pod_begins_and_all_room_comes_back(bench: Any, name: str) -> None:
    trace = bench.extender_trace
    pods = trace.draw(3, 400)
    simulation = trace.Simulation(pods, trace.RULES[name]())
    found = simulation.run()
    assert sorted(found.delays) == [pod.number for pod in pods]
    assert min(found.delays.values()) >= 0
    assert 0 <= found.lost <= 100
    while simulation.ends:
        simulation._end()
    assert simulation.free_cores == trace.NODES * trace.CARDS * 100


def test_first_fit_and_gpu_admissions_rule(bench: Any) -> None:
    trace = bench.extender_trace
    cards = [[trace.Card() for _ in range(trace.CARDS)] for _ in range(trace.NODES)]
    cards[1][0], cards[1][3] = trace.Card(40, 40), trace.Card(50, 40)
    for shape, first, admitted in (
        (trace.Shape(50, 40), (0, (0,)), (1, (3,))),
        (trace.Shape(100, 80, 2), (0, (0, 1)), (1, (1, 2))),
    ):
        chosen = [
            trace.RULES[name]().choose(trace.Arrival(0, 0.0, 1.0, shape), cards)
            for name in ("first-fit", "gpu-admission")
        ]
        assert chosen == [first, admitted]


def test_lost_room_is_what_a_waiting_pod_could_use_in_sum(bench: Any) -> None:
    trace = bench.extender_trace
    simulation = trace.Simulation(trace.draw(1, 10), trace.FirstFit())
    for name in range(trace.NODES):
        for at in range(trace.CARDS):
            simulation._take(trace.Shape(80, 40), (name, (at,)), 1)
    assert simulation.lost() == 0
    simulation.waiting[0] = trace.Arrival(0, 0.0, 1.0, trace.Shape(50, 40))
    assert simulation.lost() == 20
    simulation.waiting[0] = trace.Arrival(0, 0.0, 1.0, trace.Shape(100, 80, 8 * trace.NODES))
    assert simulation.lost() == 0
