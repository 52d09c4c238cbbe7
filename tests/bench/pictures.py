"""Pictures of the group `cores`, as SVG below build/bench: shares over time, and how latencies are distributed.

Belongs here: how a picture looks. Does not belong here: what is measured, and of what there are pictures (cores_*.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
from checkout import BUILD
from cores_scenario import MS, SECOND, Outcome
from cores_traces import percentile
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

BENCH = BUILD / "bench"
#: Okabe and Ito's colours, which colour-blind people tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
FILL = "#56B4E9"
DASHES = ("-", "--", "-.", ":")
TICKS = (0, 50, 90, 95, 99, 99.5, 99.9)  #: percentiles
POINTS = 300
FEW = 4  #: tenants that one pair of axes has room for
SECONDS, PART = "time (s)", "part of the card's time (%)"
STYLE = {
    "svg.fonttype": "none", "svg.hashsalt": "vgpu", "font.size": 11, "axes.titlelocation": "left",
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": "#DDDDDD",
    "axes.axisbelow": True, "legend.frameon": False, "axes.prop_cycle": matplotlib.cycler(color=COLOURS),
}  # fmt: skip


def shares(path: str, title: str, outcome: Outcome, tenants: Mapping[str, float], directory: Path = BENCH) -> None:
    """What each tenant had between two readings; many tenants stand below one another, each with a scale of its own.
    `tenants`: their shares in percent, in the outcome's order.
    """
    seconds = [(at - outcome.at[0]) / SECOND for at in outcome.at]
    looks = range(len(seconds) - 1)
    had = [[outcome.share(number, look, look + 1) * 100 for look in looks] for number in range(len(tenants))]
    with matplotlib.rc_context(STYLE):
        draw = _beside if len(tenants) <= FEW else _below
        draw(title, seconds, had, tenants, directory / path)


def _beside(title: str, seconds: list[float], had: list[list[float]], tenants: Mapping[str, float], path: Path) -> None:
    axes = _axes(title, SECONDS, PART)
    for number, (tenant, share) in enumerate(tenants.items()):
        colour = COLOURS[number % len(COLOURS)]
        axes.stairs(had[number], seconds, baseline=None, color=colour, linewidth=1.8, label=tenant)
        axes.axhline(share, color=colour, linewidth=1, linestyle="--")
    axes.set(xlim=(seconds[0], seconds[-1]), ylim=(0, 100))
    _write(axes, path, "dashed: the share")


def _below(title: str, seconds: list[float], had: list[list[float]], tenants: Mapping[str, float], path: Path) -> None:
    figure = Figure(figsize=(8, 1 + 0.65 * len(tenants)), layout="constrained")
    rows = figure.subplots(len(tenants), sharex=True)
    for axes, values, (tenant, share) in zip(rows, had, tenants.items()):
        top = max(2 * share, *values)
        axes.stairs(values, seconds, fill=True, color=FILL)
        axes.axhline(share, color="black", linewidth=1, linestyle="--")
        axes.set(xlim=(seconds[0], seconds[-1]), ylim=(0, top))
        axes.set_yticks([share, top], [f"{share:g}", f"{top:.0f}"], fontsize=8)
        axes.annotate(tenant, (1.01, 0.5), xycoords="axes fraction", verticalalignment="center")
    rows[0].set_title(title)
    rows[-1].set_xlabel(f"{SECONDS}; dashed: the share")
    figure.supylabel(PART, fontsize="medium")
    _save(figure, path)


def latencies(path: str, title: str, curves: Mapping[str, Sequence[int]], directory: Path = BENCH) -> None:
    """The latency at each percentile, up to the tail, of each curve's latencies in ns."""
    places = [_place(TICKS[-1]) * point / POINTS for point in range(POINTS + 1)]
    with matplotlib.rc_context(STYLE):
        axes = _axes(title, "percentile of the requests", "latency (ms)")
        for number, (curve, values) in enumerate(curves.items()):
            ranked = sorted(values)
            ms = [percentile(ranked, 100 - 100 * 10**-place) / MS for place in places]
            axes.plot(places, ms, DASHES[number % len(DASHES)], linewidth=1.8, label=curve)
        axes.set(yscale="log", xlim=(0, places[-1]))
        axes.set_xticks([_place(tick) for tick in TICKS], [f"{tick:g}" for tick in TICKS])
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("")
        _write(axes, directory / path)


def _place(percent: float) -> float:
    """Where a percentile stands: 90, 99 and 99.9 at equal distances."""
    return -math.log10(1 - percent / 100)


def _axes(title: str, x: str, y: str) -> Axes:
    return Figure(figsize=(8, 4.5), layout="constrained").add_subplot(title=title, xlabel=x, ylabel=y)


def _write(axes: Axes, path: Path, legend: str = "") -> None:
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), title=legend, alignment="left")
    _save(axes.figure, path)


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
