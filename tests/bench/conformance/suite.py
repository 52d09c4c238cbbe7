"""Group `conformance`: the same questions to every limiter, as a table of rows and columns.

The rows are in rows.py, the columns in columns.py. `VGPU_BENCH_RUNS` is the number of seeds (5 unless set). Beside the
JSON of the group it writes build/bench/conformance/table.md.
"""

from __future__ import annotations

import os
from pathlib import Path
from statistics import median

from checkout import BUILD
from conformance.columns import Column, columns
from conformance.rows import ROWS, Row
from cores_scenario import Outcome, Scenario
from cores_workers import Workers
from results import BenchError, Result
from tabulate import tabulate

RUNS = 5
DIRECTORY = BUILD / "bench/conformance"

Figures = dict[str, dict[str, list[float]]]  #: by row, by column: one for each seed


class Runner:
    """Runs scenarios; those that several rows share, once."""

    def __init__(self, workers: Workers) -> None:
        self.workers = workers
        self.known: dict[str, list[Outcome]] = {}

    def outcomes(self, column: Column, scenarios: list[Scenario]) -> list[Outcome]:
        asked = [column.of(scenario) for scenario in scenarios]
        key = repr(asked)
        if key not in self.known:
            one_by_one = [self.workers.run(one) for one in asked] if column.clock == "wall" else []
            self.known[key] = one_by_one or self.workers.run_all(asked)
        return self.known[key]

    def figure(self, row: Row, column: Column, run: int) -> float:
        scenarios = row.scenarios(run)
        got = self.outcomes(column, scenarios)
        return row.figure(got, self.outcomes(Column(row.reference), scenarios) if row.reference else [])


def figures(workers: Workers, asked: list[Column], runs: int) -> Figures:
    runner = Runner(workers)
    return {
        row.id: {column.name: [runner.figure(row, column, run) for run in range(runs)] for column in asked}
        for row in ROWS
    }


def table(found: Figures) -> str:
    """Medians, as Markdown."""
    names = list(next(iter(found.values())))
    rows = [
        [f"`{row.id}`", row.unit, *(f"{median(found[row.id][name]):.3g}" for name in names), row.what]
        for row in ROWS
        if row.id in found
    ]
    return tabulate(rows, ["row", "unit", *names, "what"], tablefmt="github", disable_numparse=True)


def measure() -> list[Result]:
    runs = int(os.environ.get("VGPU_BENCH_RUNS", RUNS))
    if runs < 1:
        raise BenchError("VGPU_BENCH_RUNS must be at least 1")
    asked = columns()
    with Workers() as workers:
        found = figures(workers, asked, runs)
    write(found, DIRECTORY)
    return [
        Result.of(f"conformance.{row.id}.{column.name}", row.unit, None, found[row.id][column.name], row.what)
        for row in ROWS
        for column in asked
    ]


def write(found: Figures, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "table.md").write_text(table(found) + "\n")
