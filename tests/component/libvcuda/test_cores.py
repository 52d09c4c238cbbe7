"""A sample of what `make bench BENCH=cores` measures, in virtual time: the core share holds for every kind of work."""

from __future__ import annotations

import dataclasses
import os
import random
from typing import Any

import pytest

US, MS, SECOND = 1_000, 1_000_000, 1_000_000_000
WINDOW = (SECOND, 3 * SECOND)


def one(bench: Any, share: int, *loads: dict[str, Any], **options: Any) -> Any:
    return bench.scenario.Scenario([bench.scenario.Tenant(share, list(loads))], WINDOW, **options)


@pytest.mark.sample(2)
@pytest.mark.parametrize("run", range(5))
def test_shares(bench: Any, run: int, pytestconfig: pytest.Config) -> None:
    """Each run has one kind of program. The long run has all cells."""
    cells = bench.share.cells((10, 50, 90), (10 * US, MS, 10 * MS), (1, 4))
    if pytestconfig.getoption("--long"):
        cells = bench.share.cells()
    outcomes = bench.workers.run_all([cell.scenario(run, kernels=100) for cell in cells])
    errors = bench.share.errors(cells, outcomes)
    worst = max(zip(errors.percent, cells), key=lambda pair: pair[0])
    assert sum(errors.percent) / len(cells) <= 2
    assert worst[0] <= 5, worst
    assert errors.over <= 2
    assert not any(outcome.stolen for outcome in outcomes), "libvcuda waits outside the clock"


def test_a_run_repeats(bench: Any) -> None:
    """Runs agree to the nanosecond: no decision of libvcuda depends on the machine."""
    loads = [{"kernel": "lognormal:30000:1000:5000000", "launches": 20, "threads": 2}] * 3
    first, second = bench.workers.run_all([one(bench, 40, *loads)] * 2)
    assert first.busy == second.busy
    assert [load["launched"] for load in first.loads[0]] == [load["launched"] for load in second.loads[0]]


@pytest.mark.parametrize(
    "load",
    [
        {"kernel": "lognormal:20000:1500:10000000", "wait": 0},
        {"kernel": "bimodal:10000:5000000:20", "wait": 0},
        {"kernel": "fixed:100000", "graph": 20, "wait": 0},
        {"kernel": "fixed:1000000", "streams": 8, "grid": 10, "wait": 0},
        {"kernel": "fixed:5000", "launches": 1},
        {"kernel": "fixed:50000", "copy": 300_000, "wait": 0},
        {"kernel": "fixed:50000", "copy": 300_000, "streams": 4, "wait": 0},
        {"kernel": "fixed:200000", "copy": 1_200_000},
        {"kernel": "fixed:200000000", "wait": 0},
    ],
    ids=lambda load: "-".join(f"{name}={value}" for name, value in load.items()),
)
def test_kinds_of_work(bench: Any, load: dict[str, Any]) -> None:
    """A program gets nearly all of its share and never more. One launch at a time uses only a part of a card."""
    window = (2 * SECOND, 22 * SECOND) if "00000000" in str(load["kernel"]) else WINDOW
    window = (SECOND // 4, SECOND) if load["kernel"] == "fixed:5000" else window
    (outcome,) = bench.workers.run_all([bench.scenario.Scenario([bench.scenario.Tenant(30, [load])], window)])
    assert outcome.share(0) == pytest.approx(0.3, rel=0.05)


FOUND: list[tuple[int, dict[str, Any], dict[str, int]]] = [  #: by random programs: share, load, the card
    (21, {"kernel": "fixed:99228", "launches": 3, "streams": 3, "wait": "context"}, {}),
    (
        30,
        {"kernel": "fixed:13641", "launches": 23, "gap": 675_208, "wait": "thread"},
        {"wake_us": 1000, "event_turn": 1},
    ),
    (35, {"kernel": "lognormal:426037:670:2000000", "gap": 1_457_252, "wait": "flag"}, {}),
]


def test_random_programs_alone(bench: Any) -> None:
    """By a seed. Each has not much less than the reference scheduler gives it, and no more, however it waits. The first
    that was found had 25 of 21: the idle time of one stream hid the work of the others. The second had 24 of 30: pauses
    were charged in which the poller had looked. The third had 24 of 35: it looked late for the ends of short kernels.
    """
    seed = int(os.environ.get("VGPU_SEED") or random.randrange(1 << 30))
    print(f"VGPU_SEED={seed}")
    source, scenario = random.Random(seed), bench.scenario
    alone = [scenario.Scenario([scenario.Tenant(share, [load])], WINDOW, timing=card) for share, load, card in FOUND]
    for mix in (bench.mix.mix(seed, number) for number in range(6)):
        tenant = dataclasses.replace(mix.tenants[0], cores=source.randint(5, 95))
        alone.append(dataclasses.replace(mix, tenants=(tenant,), window=WINDOW))
    ideal = [dataclasses.replace(each, limiter="ideal") for each in alone]
    outcomes = [outcome.share(0) for outcome in bench.workers.run_all([*alone, *ideal])]
    for number, (each, got, best) in enumerate(zip(alone, outcomes, outcomes[len(alone) :])):
        share, [load] = each.tenants[0].cores / 100, each.tenants[0].loads
        unseen = 0 if number < len(FOUND) else 0.2 * share  # pauses between short rounds: docs/compute-limit.md
        graph = load.get("graph", 0) * int(load.get("kernel", ":0").split(":")[1])
        part = graph / (WINDOW[1] - WINDOW[0])  # the last one may be in the window or not
        saved = 0.05 * share  # 0.1 s of its share
        assert best - unseen - part - 0.01 < got < max(best, share + saved) + part + 0.02, each


def test_long_kernels_of_many_processes_from_the_start(bench: Any) -> None:
    """A kernel that was never measured runs far longer than its estimate. Its process keeps the time slice meanwhile,
    or two processes would be charged for the same time.
    """
    load = {"kernel": "fixed:100000000", "wait": 0}
    (outcome,) = bench.workers.run_all(
        [bench.scenario.Scenario([bench.scenario.Tenant(90, [load] * 8)], (0, 3 * SECOND))]
    )
    assert outcome.share(0) == pytest.approx(0.9, rel=0.05)


def test_a_kernel_whose_first_times_are_short(bench: Any) -> None:
    """32 us, then 4.7 ms for most. Launched ahead by the first, they put the container in debt for long."""
    load = {"kernel": "bimodal:4739717:32406:345", "wait": 0}
    tenants = [bench.scenario.Tenant(4, [load]), bench.scenario.Tenant(90, [{"kernel": "fixed:1000000", "wait": 0}])]
    outcome = bench.workers.run(bench.scenario.Scenario(tenants, (0, SECOND), seed=3))
    assert outcome.share(0) < 0.05


@pytest.mark.parametrize("most", [599_072, 899_072])
def test_a_kernel_that_is_short_now_and_then(bench: Any, most: int) -> None:
    """15 us for one of ten. While the short ones stood for all, the rest was taken for the time of a change of
    contexts, and not charged: 5 to 7.6 of 4.
    """
    loads = {"kernel": f"bimodal:{most}:14747:94", "gap": 3_880_524}, {"kernel": "fixed:1000000", "wait": 0}
    tenants = [bench.scenario.Tenant(share, [load]) for share, load in zip((4, 96), loads)]
    seed = int(os.environ.get("VGPU_SEED", "1"))
    outcome = bench.workers.run(bench.scenario.Scenario(tenants, (SECOND, 9 * SECOND), seed=seed))
    assert 0.035 < outcome.share(0) < 0.044


@pytest.mark.sample(2)
@pytest.mark.parametrize("shares", [(50, 50), (10, 90), (20, 30, 50), (5, 5, 10, 10, 15, 15, 20, 20)], ids=str)
def test_tenants(bench: Any, shares: tuple[int, ...]) -> None:
    """No container gets more or less than its share. The benchmark measures how close it comes (docs/benchmarks.md)."""
    nodes = [bench.tenants.node(shares, run) for run in range(3)]
    window = (SECOND, 11 * SECOND)  #: 100 kernels of 5 ms under a share of 5
    outcomes = bench.workers.run_all(dataclasses.replace(node, window=window) for node in nodes)
    for outcome in outcomes:
        got = [share * 100 for share in outcome.shares]
        assert got == [pytest.approx(share, rel=0.05) for share in shares]
        assert sum(got) >= 97


def test_a_change_takes_effect_soon(bench: Any) -> None:
    (result,) = bench.change.measure(bench.workers, 1, (4,))
    assert result.max <= 100


@pytest.mark.parametrize(
    "loads",
    [
        [{"cards": 2, "streams": 2, "wait": 0}],
        [{"card": 0, "wait": 0}, {"card": 1, "wait": 0}],
        [{"card": 0, "launches": 10}, {"card": 1, "launches": 10}],
    ],
    ids=["one process", "two processes", "in rounds"],
)
def test_kernels_that_wait_for_each_other(bench: Any, loads: list[dict[str, Any]]) -> None:
    """Kernels on two cards do not wait for ever, and get their share of both."""
    pairs = [{"kernel": "fixed:1000000", "meet": 7, "parties": 2, **load} for load in loads]
    (outcome,) = bench.workers.run_all([one(bench, 30, *pairs, profile="a100x2")])
    assert outcome.share(0) / 2 == pytest.approx(0.3, rel=0.1)
    assert all(load["launched"] > 400 for load in outcome.loads[0])


@pytest.mark.parametrize("duration", [MS, 30 * MS], ids=["short", "long"])
def test_kernels_that_wait_for_each_other_among_tenants(bench: Any, duration: int) -> None:
    """One process on each of two cards, as in data-parallel training, and another container that floods both cards. No
    process waits for ever. The benchmark measures how much of its share each container gets.
    """
    pair = [{"kernel": f"fixed:{duration}", "meet": 7, "parties": 2, "card": card, "wait": 0} for card in (0, 1)]
    flood = [{"kernel": "fixed:2000000", "card": card, "wait": 0} for card in (0, 1)]
    tenants = [bench.scenario.Tenant(50, pair), bench.scenario.Tenant(50, flood)]
    (outcome,) = bench.workers.run_all([bench.scenario.Scenario(tenants, WINDOW, profile="a100x2", every=SECOND // 2)])
    looks = len(outcome.at) - 1
    for tenant in range(2):
        assert all(outcome.share(tenant, look, look + 1) / 2 > 0.2 for look in range(looks))
        assert all(
            load["launched"] * (duration if tenant == 0 else 2 * MS) > 0.3 * SECOND for load in outcome.loads[tenant]
        )
