"""Plots of the suite's table: one bar for each limiter, one picture for each group of rows.

Without matplotlib (the extra `plots`) there are none.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from statistics import median

#: Pictures: rows, label of the axis, and the greatest value that is drawn to scale.
PICTURES = {
    "pauses": (("gaps.efficiency", "gaps.jain", "loans.utilization", "many.delivered"), "ratio (1 is best)", 1.1),
    "latency": (("latency.excess",), "p99 beyond p99 alone and one kernel, ms (0 is best)", 40),
    "errors": (("share.error", "long.error"), "error, percent of the share (0 is best)", 100),
}


def draw(found: dict[str, dict[str, list[float]]], directory: Path) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        print("no plots: matplotlib is not installed (pip install '.[plots]')")
        return
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "vgpu", "svg.fonttype": "none"})
    for name, (rows, label, most) in PICTURES.items():
        _bars({row: found[row] for row in rows}, label, most, directory / f"{name}.svg")


def _bars(found: dict[str, dict[str, list[float]]], label: str, most: float, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3), layout="constrained")
    axes = figure.subplots()
    columns = list(next(iter(found.values())))
    width = 0.8 / len(columns)
    for number, column in enumerate(columns):
        values = [median(row[column]) for row in found.values()]
        at = [place + number * width for place in range(len(values))]
        bars = axes.bar(at, [min(value, most) for value in values], width, label=column)
        axes.bar_label(bars, [f"{value:.2g}" for value in values], fontsize=7)
    axes.set_xticks([place + 0.4 - width / 2 for place in range(len(found))], list(found))
    axes.set_ylabel(label, fontsize=8)
    axes.legend(fontsize=7)
    figure.savefig(path, metadata={"Date": None})
