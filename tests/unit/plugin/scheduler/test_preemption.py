"""Victims: the fewest, then the lowest priorities, never more than make room."""

from __future__ import annotations

from itertools import combinations

from gpu_clusters import GIB, pod_object, share, uid_of
from hypothesis import given
from hypothesis import strategies as st

from vgpu.plugin.scheduler.demand import PodSpec, parse
from vgpu.plugin.scheduler.preemption import victims


def pod(name: str, priority: int) -> PodSpec:
    found = parse(pod_object(name, share(10, GIB), priority=priority, node="n"))
    assert found is not None
    return found


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40)), max_size=7), st.integers(0, 120))
def test_the_smallest_set_is_chosen_then_the_lowest_priorities(drawn, needed: int) -> None:
    pods = [pod(f"p{at}", priority) for at, (priority, _) in enumerate(drawn)]
    room = {uid_of(f"p{at}"): amount for at, (_, amount) in enumerate(drawn)}

    def fits(gone: frozenset[str]) -> bool:
        return sum(room[uid] for uid in gone) >= needed

    found = victims([], pods, fits)
    enough = [
        set_
        for size in range(len(pods) + 1)
        for set_ in combinations(pods, size)
        if fits(frozenset(one.uid for one in set_))
    ]
    if found is None:
        assert not enough
        return
    best = min((len(set_), sorted((one.priority for one in set_), reverse=True)) for set_ in enough)
    chosen = [one for one in pods if one.uid in found]
    assert (len(chosen), sorted((one.priority for one in chosen), reverse=True)) == best


def test_the_schedulers_own_victims_stay() -> None:
    a, b = pod("a", 1), pod("b", 2)
    assert victims([a.uid], [a, b], lambda gone: True) == [a.uid]
    assert victims([a.uid], [a, b], lambda gone: b.uid in gone) == [a.uid, b.uid]
    assert victims([a.uid], [a, b], lambda gone: False) is None


def test_of_many_pods_the_fewest_are_found_on_one_card() -> None:
    """There are more sets of three pods than are tried. The card with three large pods is the best."""
    pods = [pod(f"p{at:02d}", 0) for at in range(48)]
    cards = [frozenset(one.uid for one in pods[at * 6 : at * 6 + 6]) for at in range(7)]
    cards.append(frozenset(one.uid for one in pods[42:]))

    def fits(gone: frozenset[str]) -> bool:
        return any(len(gone & card) >= 5 for card in cards[:7]) or len(gone & cards[7]) >= 3

    found = victims([], pods, fits, cards)
    assert found is not None
    assert len(found) == 3
    assert set(found) <= cards[7]


def test_of_many_pods_those_of_high_priority_stay() -> None:
    pods = [pod(f"p{at}", at) for at in range(60)]
    found = victims([], pods, lambda gone: len(gone) >= 12)
    assert found is not None
    assert set(found) == {one.uid for one in pods[:12]}
