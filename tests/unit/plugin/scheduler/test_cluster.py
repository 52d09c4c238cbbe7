"""What each card owes: decisions, what the node says, claims, pods without a decision, and the order of events."""

from __future__ import annotations

import json
import random

from gpu_clusters import GIB, Site, make_cards, node_object, pod_object, share, uid_of
from hypothesis import given, settings
from hypothesis import strategies as st

from vgpu.config.dialects import placements, registration
from vgpu.plugin.scheduler.cluster import SAYS_NOTHING
from vgpu.plugin.scheduler.demand import parse
from vgpu.plugin.scheduler.node_cards import FREE, Held

OWN, OWN_NODE = placements.OWN, placements.OWN_NODE


def node(name: str = "a", count: int = 2, holdings: str = ""):
    found = node_object(name, make_cards(name, count))
    if holdings:
        found["metadata"]["annotations"][registration.HOLDINGS] = holdings
    return found


def bound(name: str, cores: int, card: int | None = None, created: int = 0, memory: int = 1):
    chosen = {OWN: f"c0=GPU-a-{card}:{cores}:{memory << 10}", OWN_NODE: "a"} if card is not None else {}
    return pod_object(name, share(cores, memory * GIB), node="a", annotations=chosen, created=created)


def held(*pods, holdings: str = ""):
    site = Site(node(holdings=holdings))
    for pod in pods:
        site.add(pod)
    return [(one.cores, one.whole) for one in site.cluster.held("a")]


def test_a_decision_counts_on_its_card_by_the_spec() -> None:
    forged = bound("p", 30, 1)
    forged["metadata"]["annotations"][OWN] = "c0=GPU-a-1:99:99999"
    assert held(forged) == [(0, False), (30, False)]


def test_a_pod_without_a_decision_counts_by_its_spec_as_the_node_would_place_it() -> None:
    assert held(bound("p", 30, created=1), bound("q", 80, created=2)) == [(30, False), (80, False)]


def test_a_claim_beyond_the_room_takes_nothing_on_that_card() -> None:
    """The earlier pod keeps its room; the claim's start fails on the node as long as there is none."""
    assert held(bound("p", 60, 0, created=1), bound("claim", 60, 0, created=2)) == [(60, False), (60, False)]


def test_what_the_node_says_decides_where_a_pod_is() -> None:
    says = registration.holdings({uid_of("p"): {"GPU-a-1": (30, 1024)}}, {}, 1.0)
    assert held(bound("p", 30), holdings=says) == [(0, False), (30, False)]


def test_containers_outside_kubernetes_and_pods_that_are_gone_count() -> None:
    says = registration.holdings({"gone": {"GPU-a-0": (20, 512)}}, {"GPU-a-0": (30, 512), "GPU-a-1": (100, 0)}, 1.0)
    assert held(holdings=says) == [(50, False), (100, True)]


def test_a_node_with_too_many_pods_says_the_sums() -> None:
    pods = {f"{at:036d}": {"GPU-a-0": (0, 1)} for at in range(1000)}
    says = registration.holdings({**pods, "x": {"GPU-a-0": (40, 24)}}, {}, 1.0)
    assert len(says) <= registration.MAX_HOLDINGS
    assert json.loads(says)["sums"] == {"GPU-a-0": [40, 1024]}
    site = Site(node(holdings=says))
    assert site.cluster.held("a")[0] == Held(40, GIB)
    site.add(bound("p", 30, 0))
    assert site.cluster.held("a")[0].cores == 40


def test_a_node_that_falls_silent_counts_by_its_pods() -> None:
    says = registration.holdings({"gone": {"GPU-a-0": (20, 512)}}, {"GPU-a-1": (10, 256)}, 1.0)
    site = Site(node(holdings=says))
    site.clock.now += SAYS_NOTHING + 1
    with site.cluster.guard:
        site.cluster.expire(site.clock())
    assert [one.cores for one in site.cluster.held("a")] == [0, 10]
    with site.cluster.guard:
        site.cluster.put_node(node(holdings=says), site.clock())  # kubelet has changed the node, not the plugin
    assert [one.cores for one in site.cluster.held("a")] == [0, 10]
    with site.cluster.guard:
        site.cluster.put_node(node(holdings=says.replace('"time":1', '"time":61')), site.clock())
    assert [one.cores for one in site.cluster.held("a")] == [20, 10]


def test_damaged_annotations_make_a_node_without_cards() -> None:
    for text in ("", "{", "[]", '{"version": 1}', '{"version": 2, "cards": []}'):
        broken = node()
        broken["metadata"]["annotations"][registration.OWN] = text
        site = Site(broken)
        pod = site.add(pod_object("p", share(30, GIB)))
        assert site.filter(pod).FailedNodes["a"] != ""
        assert site.filter(pod).NodeNames == []


def test_damaged_holdings_say_nothing() -> None:
    for text in ("{", '{"version": 1, "pods": {"p": {"GPU-a-0": 5}}, "other": {}, "sums": {}}'):
        assert held(holdings=text) == [(0, False), (0, False)]


def test_an_ended_pod_takes_nothing() -> None:
    site = Site(node())
    pod = bound("p", 30, 0)
    site.add(pod)
    pod["status"]["phase"] = "Succeeded"
    site.show(pod)
    assert site.cluster.held("a") == (FREE, FREE)


def test_the_state_does_not_depend_on_the_order_of_events() -> None:
    pods = [bound(f"p{at}", 20 + at, at % 2 if at % 3 else None, created=at) for at in range(6)]
    rng = random.Random(1)
    found = set()
    for _ in range(20):
        rng.shuffle(pods)
        found.add(tuple(held(*pods)))
    assert len(found) == 1


def test_a_list_takes_over_from_what_was_known() -> None:
    site = Site(node())
    site.add(bound("p", 30, 0))
    keep = parse(bound("q", 40, 1))
    assert keep is not None
    with site.cluster.guard:
        site.cluster.replace_pods([keep], {})
        site.cluster.replace_nodes([node(), node("b")], 0.0)
    assert [one.cores for one in site.cluster.held("a")] == [0, 40]
    with site.cluster.guard:
        site.cluster.replace_nodes([node("b")], 0.0)
    assert site.cluster.held("a") == ()
    assert list(site.cluster.names()) == ["b"]


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(("", "a", "1", "100", "GPU-a-0")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from((
        "metadata", "spec", "status", "name", "uid", "namespace", "annotations", "labels", "containers", "resources",
        "limits", "initContainers", "restartPolicy", "nodeName", "phase", "priority", "tencent.com/vcuda-core", "cards",
        "nvidia.com/gpu", "version", "pods", "other", "sums", "GPU-a-0", "index", "uuid", "memory", "links", OWN,
    )), inner, max_size=5),
    max_leaves=12,
)  # fmt: skip
places = st.lists(st.sampled_from(("metadata", "spec", "containers", 0, "resources", "limits", "annotations", "status",
                                   "labels", "initContainers", "restartPolicy", "nodeName", "cards", "memory", "pods",
                                   "GPU-a-0", "uuid", "links", "policy", "split")), min_size=1, max_size=5)  # fmt: skip


def damaged(value, where, by):
    """`value` with another value at the place that the steps of `where` that exist lead to."""
    for at, step in enumerate(where):
        inside = step in value if isinstance(value, dict) else step == 0 and isinstance(value, list) and value
        if inside:
            copy = dict(value) if isinstance(value, dict) else list(value)
            copy[step] = damaged(value[step], where[at + 1 :], by)
            return copy
    return by


@settings(max_examples=150)
@given(places, anything)
def test_no_object_of_the_server_breaks_the_state(where, by) -> None:
    """Whatever stands in the place of a part of a node or a pod is an answer with a reason, or is left out."""
    site = Site(node())
    spec = parse(damaged(bound("p", 30, 0), where, by))
    says = {"version": 1, "time": 1, "pods": {"p": {"GPU-a-0": [5, 5]}}, "other": {}, "sums": {}}
    one = node()
    cards = json.loads(one["metadata"]["annotations"][registration.OWN])
    texts = {registration.OWN: cards, registration.HOLDINGS: says}
    one["metadata"]["annotations"] = {key: json.dumps(damaged(text, where, by)) for key, text in texts.items()}
    whole = damaged(node(), where, by)
    meta = whole.get("metadata") if isinstance(whole, dict) else None
    with site.cluster.guard:
        if spec is not None:
            site.cluster.put_pod(spec)
        site.cluster.put_node(one, 1.0)
        if isinstance(meta, dict) and meta.get("name") == "a":
            site.cluster.put_node(whole, 2.0)
    found = site.filter(site.add(pod_object("asks", share(30, GIB))))
    assert found.NodeNames == ["a"] or found.FailedNodes.get("a")
