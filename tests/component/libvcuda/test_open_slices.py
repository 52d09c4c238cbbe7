"""Programs that leave the card idle in their own time slices: recorded ones, whose launches are short and far apart,
and those whose threads wake late. In virtual time. `make bench BENCH=cores` has more, beside the reference scheduler.
"""

from __future__ import annotations

from typing import Any

import pytest
from checkout import DATA

MS, SECOND = 1_000_000, 1_000_000_000
FLOOD = {"kernel": f"fixed:{MS}", "wait": 0}
STREAMS = {"kernel": f"fixed:{7 * MS}", "wait": 0, "streams": 3}
VARYING = {"kernel": f"lognormal:{MS // 3}:800:{10 * MS}", "wait": 0}
LONG_GRAPH = {"kernel": "fixed:150000", "graph": 935, "wait": 0}
GRAPH = {"kernel": "fixed:13559", "graph": 474, "gap": MS, "wait": "context"}
REQUESTS = {"kernel": "fixed:800000", "arrivals": "poisson:8000000"}
GRAPHS = {"replay": str(DATA / "recorded/training-graphs-polling.csv.gz")}
TWO_STREAMS = {"replay": str(DATA / "recorded/training-two-streams.csv.gz")}


def shares(bench: Any, *tenants: tuple[int, dict[str, Any]], end: int = 3, **options: Any) -> list[float]:
    """In percent of the card, from a second on until `end` seconds."""
    made = [bench.scenario.Tenant(share, [load]) for share, load in tenants]
    outcome = bench.workers.run(bench.scenario.Scenario(made, (SECOND, end * SECOND), **options))
    return [share * 100 for share in outcome.shares]


@pytest.mark.parametrize(
    ("tenants", "least", "timing"),
    [
        pytest.param([(50, TWO_STREAMS)] * 2, 90, {}, marks=pytest.mark.long),
        ([(22, TWO_STREAMS), (78, FLOOD)], 94, {}),
        ([(77, TWO_STREAMS), (23, REQUESTS)], 65, {"wake_us": 1000}),
        ([(62, TWO_STREAMS), (38, STREAMS)], 80, {}),
        ([(39, TWO_STREAMS), (61, GRAPH)], 89, {"switch_us": 170, "slice_us": 30_000}),
        ([(90, GRAPHS), (10, REQUESTS)], 74, {}),
        ([(90, GRAPHS), (10, REQUESTS)], 64, {"value_look_us": 20_000}),
        ([(83, GRAPHS), (17, LONG_GRAPH)], 75, {"event_turn": 1}),
    ],
    ids=["both", "flood", "requests", "streams", "graph", "ahead", "slow", "turns"],
)
def test_recorded_programs_leave_no_card_idle(bench: Any, tenants: Any, least: float, timing: dict[str, int]) -> None:
    """With slices of their own only, the card worked for 60 and 89 percent of the time; without a limiter for 97. While
    no more than 128 batches of two streams were held, it worked for 86 beside graphs, 91 since. Kernels of three
    streams that end together were charged as one: 60 percent of the card for a share of 38. The program of graphs
    launches far ahead. While its threads were held up beside requests, the card worked for 66. While its launches were
    held in streams that go on late, it worked for 33. Where events need a turn it worked for 65, and 83 since: streams
    that waited for the neighbour's graph had seemed to go on late.
    """
    got = shares(bench, *tenants, timing=timing)
    assert sum(got) > least
    assert all(one < share + 3 for one, (share, _) in zip(got, tenants))  # two quotas may be carried into the window


@pytest.mark.parametrize(
    ("name", "least"),
    [("two-streams", 0.94), pytest.param("recommender-a", 0.97, marks=pytest.mark.long), ("graphs-polling", 0.96)],
)
def test_a_recorded_program_alone(bench: Any, name: str, least: float) -> None:
    """It gets its share, and little less than without a limiter where that is all that it asks for: its threads prepare
    the next work meanwhile. With 60 percent the graphs had 55.2 while their threads waited for tokens, with 99 they had
    74 of 84. 25 of 30 were had where idle time was charged. The reference keeps the card as busy as the program can. It
    used 106 and 112 percent of that while it took the threads of a recording for one.
    """
    load = {"replay": str(DATA / f"recorded/training-{name}.csv.gz")}
    free = shares(bench, (100, load), limiter="none", end=5)[0]
    assert shares(bench, (100, load), limiter="ideal", end=5)[0] == pytest.approx(free, rel=0.01)
    got = {share: shares(bench, (share, load), end=5)[0] for share in (30, 60, 99)}
    assert got[30] == pytest.approx(30, abs=1.5)  # may save up 0.1 s of its share
    assert got[60] >= 0.95 * min(60, free)
    assert got[99] >= least * free


def test_a_graph_that_the_driver_takes_in_parts(bench: Any) -> None:
    """The call of its launch lasts while the first part of it runs, which is counted, too."""
    assert shares(bench, (20, {"kernel": "fixed:14000", "graph": 2000}))[0] == pytest.approx(20, abs=1)


@pytest.mark.parametrize(
    ("load", "timing", "most", "least"),
    [(FLOOD, {"late_us": 5000}, 31, 95), (VARYING, {"late_us": 300}, 32, 85), (VARYING, {"cpu_percent": 50}, 37, 50)],
    ids=["late", "varying", "quota"],
)
def test_threads_that_wake_late(
    bench: Any, load: dict[str, Any], timing: dict[str, int], most: float, least: float
) -> None:
    """The limit holds all the same, best where kernels take equally long, and the card works. With slices of their own
    only, wake-ups late by 5 ms left 22 percent of the card, and 7 while own slices were tried for 2 s at a time; with
    half a processor each, 46 of 30 were had.
    """
    small, large = shares(bench, (30, load), (70, load), end=9, timing=timing)
    assert small < most and large < 71
    assert small + large > least
