"""Kept answers: equal to asking each node, after any change, for shapes of all kinds."""

from __future__ import annotations

import random

from gpu_clusters import GIB, Site, make_cards, node_object, pod_object, share, uid_of
from hypothesis import given, settings
from hypothesis import strategies as st

from vgpu.config.dialects import registration
from vgpu.hook.placement.placement import Commitment, NoFit, place
from vgpu.plugin.scheduler import node_answers
from vgpu.plugin.scheduler.decide import decide, requests_of, short
from vgpu.plugin.scheduler.demand import Demand, parse


def demands() -> list[Demand]:
    wish = {"vgpu.io/use-gpuuuid": "GPU-n1-0,GPU-n2-1"}
    pods = [
        pod_object("a", share(30, 4 * GIB)), pod_object("b", share(100, 0)), pod_object("c", share(200, 0)),
        pod_object("d", share(30, GIB), share(80, GIB)), pod_object("e", share(100, 0), annotations=wish),
        pod_object("f", share(20, GIB), annotations=wish), pod_object("g", {"nvidia.com/gpu": "2"}),
        pod_object("h", share(200, 0), annotations={"nvidia.com/numa-bind": "true"}),
    ]  # fmt: skip
    found = [pod.demand for pod in map(parse, pods) if pod is not None]
    return [demand for demand in found if demand is not None]


def test_every_kept_answer_is_that_of_the_node_now() -> None:
    rng = random.Random(3)
    nodes = [node_object(f"n{at}", make_cards(f"n{at}", 1 + at % 4, (8 + 8 * (at % 2)) * GIB)) for at in range(12)]
    site = Site(*nodes, bind=True)
    for step in range(60):
        name = rng.choice(site.names())
        pod = site.add(pod_object(f"p{step}", share(rng.choice((20, 50, 100, 200)), 0 if step % 2 else GIB)))
        if not pod["metadata"]["annotations"] and site.filter(pod).NodeNames:
            site.bind(pod, name)
            site.show(site.found(pod))
        for demand in demands():
            site.check_answers(demand, site.names())


def test_nodes_that_differ_only_in_names_are_asked_once(monkeypatch) -> None:
    calls = []
    monkeypatch.setattr(node_answers, "decide", lambda *given: calls.append(given) or decide(*given))
    site = Site(*(node_object(f"n{at}", make_cards(f"n{at}", 4)) for at in range(50)), bind=True)
    asked = demands()[1]
    assert len(site.service.answers.to(asked, site.names())) == 50
    assert len(calls) == 1
    site.service.answers.to(asked, site.names())
    assert len(calls) == 1


def test_old_demands_are_forgotten() -> None:
    site = Site(node_object("n", make_cards("n")), bind=True)
    for cores in range(1, 99):
        pod = parse(pod_object("p", share(cores, GIB)))
        assert pod is not None
        assert pod.demand is not None
        site.service.answers.to(pod.demand, ["n"])
    assert len(site.service.answers._asked) == node_answers.MAX_DEMANDS


CHANGES = ("ill", "whole", "size", "holds", "spread", "split", "numa", "ill numa")
#: What changes on a node: its health, its cards, what it says that it holds, or its policy.
changes = st.tuples(st.integers(0, 3), st.sampled_from((*CHANGES, "bound")))


def changed(number: int, name: str, change: str) -> dict:
    """The node `name` after a change."""
    cards = make_cards(name, 3, (8 if change == "size" else 16) * GIB, "Tesla T4", "NV2" if change == "whole" else "")
    for card, numa in zip(cards, (-1, 0, -1) if "numa" in change else ()):
        card.numa = numa
    reasons = {f"GPU-{name}-1": "Xid 79"} if "ill" in change else {}
    policy = {"policy": "spread"} if change == "spread" else {"split": 4} if change == "split" else {}
    found = node_object(name, cards, reasons=reasons, **policy)
    if change == "holds":
        says = registration.holdings({"gone": {f"GPU-{name}-0": (60, 1024)}}, {}, float(number))
        found["metadata"]["annotations"][registration.HOLDINGS] = says
    return found


@settings(max_examples=30)
@given(st.lists(changes, min_size=1, max_size=8))
def test_each_kept_answer_for_one_container_is_that_of_place(drawn) -> None:
    site = Site(*(node_object(f"n{at}", make_cards(f"n{at}", 3)) for at in range(4)), bind=True)
    for number, (at, change) in enumerate(drawn):
        name = f"n{at}"
        if change == "bound":
            site.add(pod_object(f"p{number}", share(40, GIB), node=name))
        else:
            with site.cluster.guard:
                site.cluster.put_node(changed(number, name, change), float(number))
        for demand in demands():
            if len(demand.parts) == 1:
                is_that_of_place(site, demand)


def is_that_of_place(site: Site, demand: Demand) -> None:
    """The node's hook has all cards and knows which are ill."""
    for name, answer in site.service.answers.to(demand, site.names()).items():
        cards, held = site.cluster.cards(name), site.cluster.held(name)
        assert cards is not None
        owed = {card.uuid: Commitment(*one) for card, one in zip(cards.cards, held)}
        request = requests_of(demand, cards)[demand.parts[0].name]
        try:
            found = place(request, cards.all_cards, owed, cards.policy, ill=cards.unhealthy)
        except NoFit as error:
            assert answer.reason == short(error)
            continue
        assert answer.decision is not None
        picks = answer.decision.cards[demand.parts[0].name]
        assert [cards.cards[at].uuid for at in picks] == [card.uuid for card in found]


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from((20, 50, 80, 100, 200))), max_size=10),
    st.permutations(range(5)), st.permutations(range(5)), st.sampled_from((0, 1, 3)),
)  # fmt: skip
def test_decisions_do_not_depend_on_the_order_of_nodes_and_pods(bound, arrival, asked, kind) -> None:
    """Whatever order nodes have in the watch and in the request, filter chooses the same node and the same cards."""
    nodes = [node_object(f"n{at}", make_cards(f"n{at}", 2)) for at in range(5)]
    pods = [
        pod_object(f"p{number}", share(cores, 0 if cores >= 100 else GIB), node=f"n{at}", created=number)
        for number, (at, cores) in enumerate(bound)
    ]
    wanted = (share(30, GIB), share(100, 0), share(30, GIB), share(200, 0))[kind]
    found = []
    for one, other in ((range(5), range(5)), (arrival, asked)):
        site = Site(*(nodes[at] for at in one))
        for pod in pods if one is arrival else reversed(pods):
            site.add(pod)
        pod = site.add(pod_object("asks", wanted))
        result = site.filter(pod, [f"n{at}" for at in other])
        found.append((result.NodeNames, result.FailedNodes, site.found(pod)["metadata"]["annotations"]))
    assert found[0] == found[1]
    assert uid_of("asks") in site.cluster.assumed or not found[0][0]
