"""The best of the nodes that fit, and scores."""

from __future__ import annotations

from gpu_clusters import GIB, make_cards

from vgpu.plugin.scheduler.decide import decide
from vgpu.plugin.scheduler.demand import APP, Demand, Part
from vgpu.plugin.scheduler.node_cards import FREE, Held, NodeCards
from vgpu.plugin.scheduler.rank import Rank, rank, scores

SHARE = Demand((Part("a", APP, 1, 30, GIB),))


def whole(gpus: int) -> Demand:
    return Demand((Part("a", APP, gpus, 100),))


def of(demand: Demand, *held: Held, link: str = "", policy: str = "binpack") -> Rank:
    node = NodeCards("n", make_cards("n", len(held), link=link))
    return rank(node, held, decide(demand, node, held), policy)


def test_a_share_opens_no_free_card_if_it_can_help_it() -> None:
    assert of(SHARE, FREE, Held(50, GIB)) < of(SHARE, FREE)


def test_a_share_goes_where_the_least_is_left() -> None:
    assert of(SHARE, Held(60, GIB)) < of(SHARE, Held(30, GIB))


def test_a_card_is_opened_where_the_fewest_are_free() -> None:
    assert of(SHARE, FREE, Held(90, GIB)) < of(SHARE, FREE, FREE)


def test_whole_cards_go_to_the_best_links_then_where_the_fewest_are_left() -> None:
    assert of(whole(2), FREE, FREE, FREE, link="NV4") < of(whole(2), FREE, FREE)
    assert of(whole(2), FREE, FREE) < of(whole(2), FREE, FREE, FREE)


def test_spread_takes_the_emptiest() -> None:
    assert of(SHARE, FREE, FREE, policy="spread") < of(SHARE, FREE, Held(10, GIB), policy="spread")


def test_scores_go_from_the_best_to_the_worst() -> None:
    assert scores({"a": (1,), "b": (2,), "c": (3,), "d": (1,)}) == {"a": 10, "b": 5, "c": 0, "d": 10}
    assert scores({"a": (7,)}) == {"a": 10}
    assert scores({}) == {}
