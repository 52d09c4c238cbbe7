"""The conformance suite: its columns, its table, and one question put to several limiters on the simulated card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checkout import BUILD

MS, SECOND = 1_000_000, 1_000_000_000


def test_columns_are_chosen_and_described(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VGPU_BENCH_LIMITERS", raising=False)
    assert [column.name for column in bench.columns.columns()] == list(bench.columns.NAMES)
    monkeypatch.setenv("VGPU_BENCH_LIMITERS", "none libvcuda")
    monkeypatch.setenv("VGPU_BENCH_EXTERNAL", "LD_PRELOAD=/lib/other.so LIMIT={cores}")
    monkeypatch.setenv("VGPU_BENCH_EXTERNAL_CLOCK", "wall")
    none, ours, external = bench.columns.columns()
    assert (none.name, ours.name, external.name, external.clock) == ("none", "libvcuda", "external", "wall")
    assert external.environment == {"LD_PRELOAD": "/lib/other.so", "LIMIT": "{cores}"}
    monkeypatch.setenv("VGPU_BENCH_LIMITERS", "none theirs")
    with pytest.raises(Exception, match="theirs is none of"):
        bench.columns.columns()


def test_scenarios_differ_by_the_limiter_only(bench: Any) -> None:
    for row in bench.rows.ROWS:
        for scenario in row.scenarios(2):
            ours, free = (bench.columns.Column("libvcuda").of(scenario), bench.columns.Column("none").of(scenario))
            assert (ours.tenants, ours.window, ours.seed) == (free.tenants, free.window, free.seed)
            assert (ours.limiter, free.limiter, free.lender) == ("libvcuda", "none", False)


def test_seeds_differ(bench: Any) -> None:
    for row in bench.rows.ROWS:
        assert row.scenarios(0) == row.scenarios(0) != row.scenarios(1)


def test_the_table_has_medians(bench: Any) -> None:
    found = {"many.wait": {"none": [1.0, 9.0, 2.0], "ideal": [0.0, 0.0, 0.0]}}
    *_, line = bench.suite.table(found).splitlines()
    assert [cell.strip() for cell in line.split("|")[1:5]] == ["`many.wait`", "ms", "2", "0"]


def short(bench: Any, run: int) -> list[Any]:
    flood = {"kernel": f"fixed:{MS}", "wait": 0}
    tenants = [bench.cores_scenario.Tenant(share, [flood]) for share in (20, 40)]
    return [bench.cores_scenario.Scenario(tenants, (SECOND, 3 * SECOND), seed=run + 1)]


@pytest.mark.root
def test_any_limiter_answers(bench: Any, tmp_path: Path) -> None:
    """The external library here is the bare simulated driver, found by LD_LIBRARY_PATH: it limits nothing."""
    (found,) = sorted((BUILD / "lib/sim").glob("libcuda.so.*"))
    (tmp_path / "libcuda.so.1").symlink_to(found)
    row = bench.rows.Row(
        "share", "ratio", "", lambda run: short(bench, run), lambda got, of: got[0].share(0) / of[0].share(0), "ideal"
    )
    external = bench.columns.Column("external", {"LD_LIBRARY_PATH": str(tmp_path), "SHARE": "{cores}"})
    with bench.cores_workers.Workers(1) as workers:
        runner = bench.suite.Runner(workers)
        answers = {
            column.name: runner.figure(row, column, 0)
            for column in (external, *map(bench.columns.Column, ("none", "ideal", "libvcuda")))
        }
    assert answers["external"] == answers["none"] == pytest.approx(0.488 / 0.2, rel=0.02)
    assert answers["ideal"] == 1
    assert answers["libvcuda"] == pytest.approx(1, rel=0.05)


@pytest.mark.long
@pytest.mark.root
@pytest.mark.parametrize("part", ["gaps", "latency", "long", "throttled"])
def test_the_bars_of_the_group_cores_are_met_over_the_whole_grid(bench: Any, part: str) -> None:
    """`make bench` measures corners of the grids only."""
    with bench.cores_workers.Workers() as workers:
        results = bench[f"cores_{part}"].measure_whole(workers, 5)
    print(bench.results.table(results))
    assert [(one.id, one.median, one.what) for one in results if one.verdict == "MISSED"] == []
