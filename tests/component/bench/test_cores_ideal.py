"""The reference scheduler of the benchmarks: small cases worked out by hand, and its rules on random programs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

US, MS, SECOND = 1_000, 1_000_000, 1_000_000_000
LAUNCH = 4 * US
CHANGE = 50 * US


def runs(bench: Any, length: int, *tenants: tuple[int, dict[str, Any]]) -> list[tuple[int, int, int]]:
    """(tenant, begin, end) of all runs that begin before `length`."""
    made = [bench.cores_scenario.Tenant(share, [load]) for share, load in tenants]
    _, found = bench.cores_ideal.runs(bench.cores_scenario.Scenario(made, (0, length)))
    return [(run.tenant, run.begin, run.end) for run in found if run.begin < length]


def test_one_program_runs_when_it_has_launched(bench: Any) -> None:
    """Rounds of two kernels: the second launch is over long before the first kernel is."""
    load = {"kernel": f"fixed:{MS}", "launches": 2, "gap": 3 * MS}
    first, second = LAUNCH, LAUNCH + 2 * MS + 3 * MS + LAUNCH
    found = runs(bench, 8 * MS, (100, load))
    assert found == [(0, first, first + 2 * MS), (0, second, second + 2 * MS)]


def test_a_short_round_ends_when_the_calls_are_over(bench: Any) -> None:
    """A kernel of 1 us is done before the synchronization has cost its 2 us."""
    load = {"kernel": "fixed:1000", "gap": 10 * US}
    found = runs(bench, 30 * US, (100, load))
    assert [begin for _, begin, _ in found] == [4 * US, 20 * US]


def test_who_is_behind_comes_at_the_end_of_a_kernel(bench: Any) -> None:
    """The request comes 1 ms into a kernel of 10 ms, waits for its end and for the change, and runs."""
    request = {"kernel": f"fixed:{2 * MS}", "begin": 31 * MS, "rounds": 1}
    found = runs(bench, 50 * MS, (50, {"kernel": f"fixed:{10 * MS}", "wait": 0}), (50, request))
    begin = LAUNCH + 40 * MS + CHANGE
    assert (1, begin, begin + 2 * MS) in found
    assert found[-1][:2] == (0, begin + 2 * MS + CHANGE)


def test_two_floods_change_every_margin(bench: Any) -> None:
    """50 changes for each of two tenants are 5 ms of virtual time, in both directions: 5 ms of half of a card."""
    flood = {"kernel": f"fixed:{100 * US}", "wait": 0}
    found = [run for run in runs(bench, SECOND, (50, flood), (50, flood)) if run[1] > 100 * MS]
    changes = sum(one[0] != other[0] for one, other in zip(found, found[1:]))
    assert changes == pytest.approx(900 / 5, rel=0.05)
    assert sum(end - begin for _, begin, end in found) / (900 * MS) == pytest.approx(1 - 0.01, abs=0.003)


def test_a_gap_shorter_than_a_change_is_waited_for(bench: Any) -> None:
    """A program that waits for each kernel keeps the card over the 4 us of the next launch, until it is 5 ms ahead."""
    every = {"kernel": f"fixed:{MS}"}
    found = runs(bench, 20 * MS, (50, every), (50, {"kernel": f"fixed:{MS}", "wait": 0}))
    assert [run[0] for run in found[:4]] == [0, 0, 0, 1]
    assert found[1][1] - found[0][2] == LAUNCH


def test_soft_shares_borrow_what_nobody_wants(bench: Any) -> None:
    tenant = bench.cores_scenario.Tenant(30, [{"kernel": f"fixed:{MS}", "wait": 0}], 80)
    outcome = bench.cores_ideal.outcome(bench.cores_scenario.Scenario([tenant], (SECOND, 3 * SECOND)))
    assert outcome.share(0) == pytest.approx(0.8, rel=0.01)


def test_a_changed_share_counts_from_its_time_on(bench: Any) -> None:
    tenant = bench.cores_scenario.Tenant(60, [{"kernel": f"fixed:{MS}", "wait": 0}])
    changed = bench.cores_scenario.Scenario(
        [tenant], (SECOND, 3 * SECOND), changes=[(2 * SECOND, 0, 20, 20)], every=SECOND
    )
    outcome = bench.cores_ideal.outcome(changed)
    assert outcome.share(0, 0, 1) == pytest.approx(0.6, rel=0.01)
    assert outcome.share(0, 1, 2) == pytest.approx(0.2, rel=0.02)


def test_latency_counts_from_the_intended_time(bench: Any) -> None:
    """15 requests of 3 ms, one every 2 ms: nine are done within 30 ms; each waits 1 ms longer than the one before."""
    load = {"kernel": f"fixed:{3 * MS}", "arrivals": f"fixed:{2 * MS}"}
    outcome = bench.cores_ideal.outcome(
        bench.cores_scenario.Scenario([bench.cores_scenario.Tenant(100, [load])], (0, 30 * MS))
    )
    report = outcome.loads[0][0]
    assert (len(report["latency_ns"]), report["unfinished"]) == (15, 6)
    steps = [later - first for first, later in zip(report["latency_ns"], report["latency_ns"][1:9])]
    assert all(step == MS + LAUNCH for step in steps)


def test_what_is_not_modelled_is_refused(bench: Any) -> None:
    for load in ({"memset": 1}, {"kernel": "uniform:1"}, {"wait": 0, "gap": MS}):
        with pytest.raises(Exception, match=r"not model|no kernel of that form"):
            runs(bench, MS, (50, load))


#: Floods and programs with rounds; shares that add up to at most 100.
PROGRAMS = st.fixed_dictionaries(
    {"kernel": st.integers(500 * US, 20 * MS).map("fixed:{}".format)},
    optional={
        "launches": st.integers(1, 20),
        "gap": st.integers(0, 20 * MS),
        "begin": st.integers(0, 50 * MS),
        "threads": st.integers(1, 2),
    },
)
FLOODS = st.integers(500 * US, 200 * MS).map(lambda ns: {"kernel": f"fixed:{ns}", "wait": 0})
TENANTS = st.lists(st.tuples(st.integers(1, 33), st.one_of(PROGRAMS, FLOODS)), min_size=1, max_size=3)
LENGTH = 300 * MS


@settings(max_examples=25)
@given(tenants=TENANTS)
def test_caps_are_held_over_every_window(bench: Any, tenants: list[tuple[int, dict[str, Any]]]) -> None:
    """Use is at most the rate x (window + bucket + what the others' kernels took) + one own kernel."""
    found = runs(bench, LENGTH, *tenants)
    longest = [int(str(load["kernel"]).split(":")[1]) for _, load in tenants]
    for number, (share, _) in enumerate(tenants):
        own = [(begin, end) for tenant, begin, end in found if tenant == number]
        kept = 100 * MS + sum(longest) - longest[number]
        for first in range(len(own)):
            used = 0
            for begin, end in own[first:]:
                used += end - begin
                window = end - own[first][0]
                assert used <= share / 100 * (window + kept) + longest[number] + 1


@settings(max_examples=25)
@given(tenants=TENANTS)
def test_one_kernel_at_a_time_and_changes_cost(bench: Any, tenants: list[tuple[int, dict[str, Any]]]) -> None:
    found = runs(bench, LENGTH, *tenants)
    for (tenant, _, end), (after, begin, _) in zip(found, found[1:]):
        assert begin >= end + (CHANGE if tenant != after else 0)


@settings(max_examples=25)
@given(durations=st.lists(st.integers(500 * US, 150 * MS), min_size=1, max_size=4), share=st.integers(1, 25))
def test_the_card_idles_only_when_all_are_at_their_caps(bench: Any, durations: list[int], share: int) -> None:
    """Beyond a change, the card stands still only while each flood has used its share of the time and its bucket.

    The last time that the card idles is checked against plain sums of use, not against the scheduler's tokens.
    """
    floods = [(share, {"kernel": f"fixed:{duration}", "wait": 0}) for duration in durations]
    found = runs(bench, LENGTH, *floods)
    for index, ((_, _, end), (_, begin, _)) in enumerate(zip(found, found[1:])):
        if begin - end <= CHANGE:
            continue
        for number in range(len(floods)):
            used = sum(run[2] - run[1] for run in found[: index + 1] if run[0] == number)
            assert used >= share / 100 * (begin - CHANGE) - 2


@settings(max_examples=25)
@given(tenants=TENANTS)
def test_kernels_in_one_go_are_the_same_as_one_by_one(bench: Any, tenants: list[tuple[int, dict[str, Any]]]) -> None:
    """The simulation takes kernels together where nothing can come in between. Tokens are rounded to the nanosecond, so
    that a tie may be decided otherwise: what a tenant gets differs by one kernel of each and one margin at most.
    """
    longest = sum(int(str(load["kernel"]).split(":")[1]) for _, load in tenants)

    def used() -> list[int]:
        found = runs(bench, LENGTH, *tenants)
        return [sum(end - begin for of, begin, end in found if of == tenant) for tenant in range(len(tenants))]

    together = used()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench.cores_programs.Program, "is_even", property(lambda program: False))
        single = used()
    assert single == [pytest.approx(one, abs=longest + 8 * MS) for one in together]
