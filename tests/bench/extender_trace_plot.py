"""The picture of group `extender-trace`: lost room over time, and how long the pods of one trace waited.

Without matplotlib (the extra `plots`) there is none.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

WINDOW = 3600.0  #: seconds over which lost room is averaged


def draw(runs: dict[str, Any], path: Path) -> None:
    """One line for each rule; `runs` are those of one trace."""
    if importlib.util.find_spec("matplotlib") is None:
        print("no plot: matplotlib is not installed (pip install '.[plots]')")
        return
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "vgpu", "svg.fonttype": "none"})
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3), layout="constrained")
    room, delay = figure.subplots(1, 2)
    for name, run in runs.items():
        times, lost = averaged(run.points)
        room.plot([at / 3600 for at in times], lost, label=name, linewidth=1)
        waits = sorted(run.delays.values())
        shown = [at for at, wait in enumerate(waits) if wait > 0][:: max(len(waits) // 400, 1)]
        delay.plot([waits[at] / 60 for at in shown], [100 * at / len(waits) for at in shown], label=name, linewidth=1)
    room.set_xlabel("hours", fontsize=8)
    room.set_ylabel("lost room, percent of all cores", fontsize=8)
    delay.set_xlabel("delay, minutes", fontsize=8)
    delay.set_ylabel("percent of pods that wait no longer", fontsize=8)
    delay.set_xscale("log")
    for axes in (room, delay):
        axes.legend(fontsize=7)
        axes.tick_params(labelsize=7)
    figure.savefig(path, metadata={"Date": None})


def averaged(points: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """The mean of a step function over each window: (begin of the window, mean)."""
    times, means = [], []
    begin, total = 0.0, 0.0
    for (at, value), (after, _) in zip(points, points[1:]):
        now = at
        while after >= begin + WINDOW:
            total += value * (begin + WINDOW - now)
            times.append(begin)
            means.append(total / WINDOW)
            begin, now, total = begin + WINDOW, begin + WINDOW, 0.0
        total += value * (after - now)
    return times, means
