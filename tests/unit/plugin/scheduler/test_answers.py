"""Kept answers: equal to asking each node, after any change, for shapes of all kinds."""

from __future__ import annotations

import random

from gpu_clusters import GIB, Site, make_cards, node_object, pod_object, share

from vgpu.hook.placement.placement import NoFit
from vgpu.plugin.scheduler import answers
from vgpu.plugin.scheduler.decide import decide, short
from vgpu.plugin.scheduler.demand import Demand, parse
from vgpu.plugin.scheduler.rank import rank


def demands() -> list[Demand]:
    wish = {"vgpu.io/use-gpuuuid": "GPU-n1-0,GPU-n2-1"}
    pods = [
        pod_object("a", share(30, 4 * GIB)), pod_object("b", share(100, 0)), pod_object("c", share(200, 0)),
        pod_object("d", share(30, GIB), share(80, GIB)), pod_object("e", share(100, 0), annotations=wish),
        pod_object("f", share(20, GIB), annotations=wish), pod_object("g", {"nvidia.com/gpu": "2"}),
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
            for asked, answer in site.service.answers.to(demand, site.names()).items():
                cards, held = site.cluster.cards(asked), site.cluster.held(asked)
                assert cards is not None
                try:
                    decision = decide(demand, cards, held)
                except NoFit as error:
                    assert answer.reason == short(error)
                else:
                    expected = rank(cards, held, decision, "binpack")
                    assert (answer.reason, answer.decision, answer.rank) == ("", decision, expected)


def test_nodes_that_differ_only_in_names_are_asked_once(monkeypatch) -> None:
    calls = []
    monkeypatch.setattr(answers, "decide", lambda *given: calls.append(given) or decide(*given))
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
    assert len(site.service.answers._asked) == answers.MAX_DEMANDS
