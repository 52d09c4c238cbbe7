"""The results of a benchmark: one figure per id, as a table and as JSON. Measuring is in the modules of the groups.

The JSON is a list of {"id", "unit", "bar", "min", "median", "max", "runs", "what"}; its form is fixed, and an id never
changes its meaning. `bar` is the value that the median must not exceed; null: the figure has no bar. If the unit ends
in ", at least", the median must reach `bar`.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from statistics import median

from tabulate import tabulate

AT_LEAST = ", at least"


class BenchError(Exception):
    """Why there are no figures, in one line."""


@dataclasses.dataclass(frozen=True)
class Result:
    """`runs` figures of `unit`, one per round."""

    id: str
    unit: str
    bar: float | None
    min: float
    median: float
    max: float
    runs: int
    what: str

    @classmethod
    def of(cls, id: str, unit: str, bar: float | None, figures: list[float], what: str) -> Result:
        low, middle, high = (round(value, 3) for value in (min(figures), median(figures), max(figures)))
        return cls(id, unit, bar, low, middle, high, len(figures), what)

    @classmethod
    def at_least(cls, id: str, bar: float, figures: list[float], what: str) -> Result:
        """A ratio for which larger is better."""
        return cls.of(id, f"ratio{AT_LEAST}", bar, figures, what)

    @property
    def verdict(self) -> str:
        """Empty for a figure without a bar."""
        if self.bar is None:
            return ""
        met = self.median >= self.bar if self.unit.endswith(AT_LEAST) else self.median <= self.bar
        return "ok" if met else "MISSED"


def table(results: list[Result]) -> str:
    """The results for people."""
    rows = [
        (one.id, one.unit, "" if one.bar is None else one.bar, one.min, one.median, one.max, one.runs, one.verdict)
        for one in results
    ]
    return tabulate(rows, headers=["id", "unit", "bar", "min", "median", "max", "runs", ""], disable_numparse=True)


def write(path: Path, results: list[Result]) -> None:
    """The results for programs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([dataclasses.asdict(item) for item in results], indent=2) + "\n")
