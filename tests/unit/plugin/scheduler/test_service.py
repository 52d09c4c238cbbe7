"""The verbs over a cluster in this process: what is decided, written, assumed and taken back."""

from __future__ import annotations

import json
from collections import Counter
from itertools import product

import pytest
from gpu_clusters import GIB, Site, args, make_cards, node_object, pod_object, share, uid_of
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from vgpu.config.dialects import placements, registration
from vgpu.config.errors import VgpuError
from vgpu.plugin.scheduler import demand, quota
from vgpu.plugin.scheduler.cluster import CONFIRMS
from vgpu.plugin.scheduler.service import Refused

OWN, OWN_NODE = placements.OWN, placements.OWN_NODE


def node(name: str, count: int = 2, **more):
    return node_object(name, make_cards(name, count), **more)


def test_filter_returns_one_node_and_has_patched_the_pod() -> None:
    site = Site(node("a"), node("b"))
    pod = site.add(pod_object("p", share(30, 4 * GIB)))
    found = site.filter(pod)
    assert (found.NodeNames, found.Error) == (["a"], "")
    annotations = site.found(pod)["metadata"]["annotations"]
    assert annotations == {OWN: "c0=GPU-a-0:30:4096", OWN_NODE: "a"}


def test_with_bind_filter_returns_all_nodes_and_one_write_has_it_all() -> None:
    site = Site(node("a"), node("b"), bind=True)
    pod = site.add(pod_object("p", share(200, 0)))
    assert site.filter(pod).NodeNames == ["a", "b"]
    assert site.found(pod)["metadata"]["annotations"] == {}
    assert site.bind(pod, "b") == ""
    found = site.found(pod)
    assert found["spec"]["nodeName"] == "b"
    assert found["metadata"]["annotations"] == {OWN: "c0=GPU-b-0,GPU-b-1", OWN_NODE: "b"}


def test_whole_nodes_come_back_as_they_came() -> None:
    site = Site(node("a"), bind=True)
    pod = site.add(pod_object("p", share(30, GIB)))
    body = json.dumps({"Pod": pod, "Nodes": {"items": [node("a"), node("x")]}}).encode()
    found = site.service.filter(body)
    assert [json.loads(bytes(item))["metadata"]["name"] for item in found.Nodes["items"]] == ["a"]
    assert "no node of this name" in found.FailedNodes["x"]


def test_assumed_room_is_not_given_twice() -> None:
    site = Site(node("a", 1))
    first, second = (site.add(pod_object(name, share(60, GIB))) for name in "pq")
    assert site.filter(first).NodeNames == ["a"]
    found = site.filter(second)
    assert found.NodeNames == []
    assert found.FailedNodes == {"a": "no card fits 1 card, 60 cores and 1024 MiB: 40 cores free of 100 (1 card)"}


def test_refusals_that_differ_in_free_amounts_alone_are_one_in_a_large_cluster() -> None:
    site = Site(*(node(f"n{at}", 2, reasons={f"GPU-n{at}-1": "Xid 79"}) for at in range(9)))
    for at in range(9):
        chosen = {OWN: f"c0=GPU-n{at}-0:{50 + at}:1024", OWN_NODE: f"n{at}"}
        site.add(pod_object(f"p{at}", share(50 + at, GIB), node=f"n{at}", annotations=chosen))
    head = "no card fits 1 card, 60 cores and 1024 MiB: "
    asks = site.add(pod_object("asks", share(60, GIB)))
    assert set(site.filter(asks).FailedNodes.values()) == {head + "too little free; unhealthy: Xid 79"}
    few = site.filter(asks, [f"n{at}" for at in range(8)]).FailedNodes
    assert few["n7"] == head + "43 cores free of 100 (1 card); unhealthy: Xid 79 (1 card)"


def test_a_pod_that_comes_again_is_decided_afresh() -> None:
    site = Site(node("a", 1), node("b", 1))
    pod = site.add(pod_object("p", share(60, GIB), annotations={OWN: "c0=GPU-x", OWN_NODE: "gone"}))
    assert site.filter(pod, ["a"]).NodeNames == ["a"]
    assert site.filter(pod, ["b"]).NodeNames == ["b"]
    assert site.found(pod)["metadata"]["annotations"] == {OWN: "c0=GPU-b-0:60:1024", OWN_NODE: "b"}
    other = site.add(pod_object("q", share(60, GIB)))
    assert site.filter(other).NodeNames == ["a"]


def test_placements_of_other_schedulers_are_removed() -> None:
    foreign = {"tencent.com/predicate-gpu-idx-0": "1", "hami.io/vgpu-devices-allocated": "x", "keep": "this"}
    for bind in (False, True):
        site = Site(node("a"), bind=bind)
        pod = site.add(pod_object("p", share(60, GIB), annotations=foreign))
        assert site.filter(pod).NodeNames == ["a"]
        assert not bind or site.bind(pod, "a") == ""
        expected = {OWN: "c0=GPU-a-0:60:1024", OWN_NODE: "a", "keep": "this"}
        assert site.found(pod)["metadata"]["annotations"] == expected


def test_hamis_resources_get_hamis_annotations() -> None:
    site = Site(node("a"), bind=True)
    limits = {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"}
    pod = site.add(pod_object("p", limits, {"cpu": "1"}, inits=({"cpu": "1"},)))
    assert site.bind(pod, "a") == ""
    annotations = site.found(pod)["metadata"]["annotations"]
    assert annotations[placements.HAMI] == ";GPU-a-0,NVIDIA,3000,30:GPU-a-1,NVIDIA,3000,30:;;"
    assert annotations[placements.HAMI_NODE] == "a"
    assert OWN not in annotations


def test_a_pod_without_cards_passes_and_is_bound() -> None:
    site = Site(node("a"), bind=True)
    pod = site.add(pod_object("p", {"cpu": "1"}))
    assert site.filter(pod, ["a", "cpu-only"]).NodeNames == ["a", "cpu-only"]
    assert site.bind(pod, "cpu-only") == ""
    assert site.found(pod)["spec"]["nodeName"] == "cpu-only"


@pytest.mark.parametrize("limits", [{"tencent.com/vcuda-core": "150"}, {"tencent.com/vcuda-core": "30"}])
def test_a_wrong_pod_is_an_error_that_names_it(limits) -> None:
    site = Site(node("a"))
    found = site.filter(site.add(pod_object("p", limits)))
    assert found.Error.startswith("default/p: container c0: tencent.com/vcuda")
    assert not found.NodeNames


def test_a_pod_that_the_watch_does_not_know_is_an_error_whatever_the_body_says() -> None:
    site = Site(node("a"), bind=True)
    pod = pod_object("p", share(30, GIB))
    assert "has not shown the pod" in site.filter(pod).Error
    assert "has not shown the pod" in site.bind(pod, "a")


def test_amounts_in_a_body_do_not_count() -> None:
    site = Site(node("a", 1))
    site.add(pod_object("p", share(90, GIB)))
    forged = pod_object("p", share(10, GIB))
    assert site.filter(forged).NodeNames == ["a"]
    assert site.service.cluster.held("a")[0].cores == 90


def test_a_bound_pod_is_not_bound_again() -> None:
    site = Site(node("a"), node("b"), bind=True)
    pod = site.add(pod_object("p", share(90, GIB)))
    assert site.bind(pod, "a") == ""
    assert site.bind(pod, "b") != ""
    site.show(site.found(pod))
    assert "bound to a already" in site.bind(pod, "b")


def test_a_replica_that_does_not_lead_decides_nothing() -> None:
    site = Site(node("a"), bind=True)
    pod = site.add(pod_object("p", share(30, GIB)))
    site.problem = "another replica leads"
    assert "another replica leads" in site.filter(pod).Error
    assert "another replica leads" in site.bind(pod, "a")
    with pytest.raises(Refused):
        site.service.prioritize(args(pod, ["a"]))


@pytest.mark.parametrize("fault", ["unreachable", "conflict", "forbidden", "missing", "failing"])
def test_a_patch_that_fails_takes_the_decision_back(fault: str) -> None:
    site = Site(node("a", 1))
    pod, other = (site.add(pod_object(name, share(60, GIB))) for name in "pq")
    site.server.faults = [fault] * 3
    assert "a fault" in site.filter(pod).Error
    site.server.faults = []
    assert site.filter(other).NodeNames == ["a"]


def test_a_pod_whose_decision_is_being_written_is_not_decided_again(monkeypatch) -> None:
    """Its first decision would be dropped, and its room given to another pod before the watch shows the binding."""
    site = Site(node("a", 1), bind=True)
    pod, other = (site.add(pod_object(name, share(60, GIB))) for name in "pq")
    post, again = site.server.post, []

    def slow(path, body):
        again.append(site.filter(pod))
        return post(path, body)

    monkeypatch.setattr(site.server, "post", slow)
    assert site.bind(pod, "a") == ""
    assert "another request decides about it" in again[0].Error
    assert site.filter(other).NodeNames == []


def test_a_look_up_at_the_server_delays_no_other_request(monkeypatch) -> None:
    site = Site(node("a", 1), bind=True)
    pod = site.add(pod_object("p", share(60, GIB)))
    site.server.faults = ["unreachable"]
    assert "a fault" in site.bind(pod, "a")
    get, held = site.server.get, []

    def slow(path, **query):
        held.append(site.cluster.guard._is_owned())
        return get(path, **query)

    monkeypatch.setattr(site.server, "get", slow)
    assert site.filter(pod).NodeNames == ["a"]
    assert held == [False]


def test_a_binding_of_unknown_outcome_counts_until_it_expires() -> None:
    site = Site(node("a", 1), bind=True)
    pod, other = (site.add(pod_object(name, share(60, GIB))) for name in "pq")
    site.server.faults = ["late-unreachable"]
    assert "a fault" in site.bind(pod, "a")
    assert site.filter(other).NodeNames == []
    site.clock.now += 301
    with site.cluster.guard:
        assert site.cluster.expire(site.clock()) == [uid_of("p")]
    assert site.filter(other).NodeNames == ["a"]


def test_a_pod_that_is_deleted_gives_its_room_back() -> None:
    site = Site(node("a", 1))
    pod, other = (site.add(pod_object(name, share(60, GIB))) for name in "pq")
    assert site.filter(pod).NodeNames == ["a"]
    with site.cluster.guard:
        site.cluster.remove_pod(uid_of("p"))
    assert site.filter(other).NodeNames == ["a"]


def test_a_claim_by_annotation_takes_nothing() -> None:
    claim = {OWN: "c0=GPU-a-0:90:1024", OWN_NODE: "a"}
    site = Site(node("a", 1))
    site.add(pod_object("claims", share(90, GIB), annotations=claim))
    pod = site.add(pod_object("p", share(60, GIB)))
    assert site.filter(pod).NodeNames == ["a"]


def test_prioritize_prefers_the_fullest_card_and_by_policy_the_emptiest() -> None:
    site = Site(node("a"), node("b"), node("c"), bind=True)
    site.add(pod_object("x", share(30, GIB), node="b", annotations={OWN: "c0=GPU-b-0:30:1024", OWN_NODE: "b"}))
    pod = site.add(pod_object("p", share(30, GIB)))
    found = {one.Host: one.Score for one in site.service.prioritize(args(pod, ["a", "b", "c"]))}
    assert found == {"a": 0, "b": 10, "c": 0}
    spread = site.add(pod_object("s", share(30, GIB), annotations={"vgpu.io/policy": "spread"}))
    found = {one.Host: one.Score for one in site.service.prioritize(args(spread, ["a", "b", "c"]))}
    assert found == {"a": 10, "b": 0, "c": 10}


def test_an_unhealthy_card_gets_nobody() -> None:
    site = Site(node("a", 2, reasons={"GPU-a-0": "Xid 79"}))
    pod = site.add(pod_object("p", share(100, 0)))
    assert site.filter(pod).NodeNames == ["a"]
    assert site.found(pod)["metadata"]["annotations"][OWN] == "c0=GPU-a-1"


def test_the_dry_run_has_a_reason_for_each_node_and_card_and_writes_nothing() -> None:
    site = Site(node("a", 2, reasons={"GPU-a-0": "Xid 79"}), node("b", 1))
    site.add(pod_object("x", share(80, GIB), node="a", annotations={OWN: "c0=GPU-a-1:80:1024", OWN_NODE: "a"}))
    found = site.service.dry_run(json.dumps({"Pod": pod_object("new", share(30, GIB))}).encode())
    assert found["chosen"] == "b"
    assert found["nodes"]["b"]["placement"] == {"c0": ["GPU-b-0"]}
    why = "20 cores free of 100 (1 card); unhealthy: Xid 79 (1 card)"
    assert found["nodes"]["a"]["reason"] == f"no card fits 1 card, 30 cores and 1024 MiB: {why}"
    cards = found["nodes"]["a"]["cards"]
    assert cards[0]["reason"] == {"c0": "20 cores free of 100"}
    assert cards[0]["pods"] == ["default/x"]
    assert cards[1] == {"uuid": "GPU-a-0", "reason": "unhealthy: Xid 79"}
    assert not site.cluster.assumed


# Quotas


def test_a_quota_names_used_asked_and_limit() -> None:
    site = Site(node("a", labels={quota.MODEL_LABEL: "M40"}), bind=True)
    site.service.quotas = quota.parse('{"default": {"quota": {"M40": 1}}}')
    first, second = site.add(pod_object("p", share(50, GIB))), site.add(pod_object("q", share(60, GIB)))
    assert site.bind(first, "a") == ""
    found = site.filter(second)
    assert found.FailedNodes == {"a": "ExceedsGPUQuota: M40: used 0.5, asked 0.6, limit 1"}
    assert "ExceedsGPUQuota" in site.bind(second, "a")


def test_a_pool_keeps_other_nodes_away() -> None:
    site = Site(node("a", labels={quota.POOL_LABEL: "public"}), node("b"))
    site.service.quotas = quota.parse('{"default": {"pool": ["public"]}}')
    found = site.filter(site.add(pod_object("p", share(50, GIB))))
    assert found.NodeNames == ["a"]
    assert "pool none" in found.FailedNodes["b"]


def mixed(*names: str):
    """A node with one card of each of these models, without a label that names one for all."""
    cards = make_cards("a", len(names))
    for card, name in zip(cards, names):
        card.name = name
    return node_object("a", cards)


def test_a_node_with_cards_of_two_models_gives_that_which_the_quota_allows() -> None:
    for bind in (False, True):
        site = Site(mixed("Tesla M40", "Tesla P40"), bind=bind)
        site.service.quotas = quota.parse('{"default": {"quota": {"P40": 1}}}')
        pod = site.add(pod_object("p", share(50, GIB)))
        assert site.filter(pod).NodeNames == ["a"]
        assert not bind or site.bind(pod, "a") == ""
        assert site.found(pod)["metadata"]["annotations"][OWN] == "c0=GPU-a-1:50:1024"


@settings(max_examples=150)
@given(
    st.lists(st.sampled_from((20, 30, 50, 60, 100)), min_size=1, max_size=3),
    st.lists(st.sampled_from(("M40", "P40", "T4")), min_size=1, max_size=3),
    st.dictionaries(st.sampled_from(("M40", "P40")), st.sampled_from((0.2, 0.5, 1, 2))),
)
def test_a_refusal_by_quota_is_true_against_brute_force(asked, models, limits) -> None:
    site = Site(mixed(*models), bind=True)
    site.service.quotas = quota.parse(json.dumps({"default": {"quota": limits}}))
    pod = site.add(pod_object("p", *(share(cores, 0 if cores == 100 else GIB) for cores in asked)))
    fits = False
    for chosen in product(range(len(models)), repeat=len(asked)):
        cards: Counter[int] = Counter()
        sums: Counter[str] = Counter()
        for cores, at in zip(asked, chosen):
            cards[at] += cores
            sums[models[at]] += cores
        within = all(sums[model] <= round(100 * limits.get(model, 0)) for model in sums)
        fits = fits or (within and max(cards.values()) <= 100)
    assert (site.filter(pod).NodeNames == ["a"]) == fits


def test_a_pod_of_vgpus_without_a_place_counts_with_its_part_of_a_card() -> None:
    """Its spec names no cores: the node gives it half a card."""
    site = Site(node("a", 1))
    site.service.quotas = quota.parse('{"default": {"quota": {"Tesla T4": 8}}}')
    site.add(pod_object("x", share(80, GIB), node="a", annotations={OWN: "c0=GPU-a-0:80:1024", OWN_NODE: "a"}))
    site.add(pod_object("waits", {"nvidia.com/gpu": "1"}, node="a", created=5))
    assert site.service.used("default") == {"Tesla T4": 130}


# Preemption


def preempt(site: Site, pod, victims):
    meta = {
        name: {"Pods": [{"UID": uid_of(one)} for one in pods], "NumPDBViolations": 1} for name, pods in victims.items()
    }
    found = site.service.preempt(json.dumps({"Pod": pod, "NodeNameToMetaVictims": meta}).encode())
    return {name: (one.uids, one.violations) for name, one in found.items()}


def test_preemption_takes_the_fewest_of_lower_priority_and_keeps_the_violations() -> None:
    site = Site(node("a", 2), node("b", 1))
    for name, card, cores, priority in (("low", 0, 60, 1), ("mid", 1, 60, 2), ("high", 1, 20, 9)):
        chosen = {OWN: f"c0=GPU-a-{card}:{cores}:1024", OWN_NODE: "a"}
        site.add(pod_object(name, share(cores, GIB), node="a", annotations=chosen, priority=priority))
    site.add(pod_object("top", share(100, 0), node="b", annotations={OWN: "c0=GPU-b-0", OWN_NODE: "b"}, priority=9))
    pod = site.add(pod_object("p", share(50, GIB), priority=5))
    assert preempt(site, pod, {"a": [], "b": []}) == {"a": ([uid_of("low")], 1)}
    assert preempt(site, pod, {"a": ["mid"]}) == {"a": ([uid_of("mid")], 1)}


def test_preemption_on_a_full_node_takes_the_card_with_the_fewest_pods() -> None:
    """45 pods on eight cards: six of 15 cores each on seven of them, three of 30 on the last."""
    site = Site(node("a", 8), bind=True)
    for number in range(45):
        card, cores = (number // 6, 15) if number < 42 else (7, 30)
        chosen = {OWN: f"c0=GPU-a-{card}:{cores}:1024", OWN_NODE: "a"}
        site.add(pod_object(f"x{number}", share(cores, GIB), node="a", annotations=chosen, created=number))
    pod = site.add(pod_object("p", share(100, 0), priority=5))
    expected = sorted(uid_of(f"x{number}") for number in (42, 43, 44))
    (found,) = preempt(site, pod, {"a": []}).values()
    assert sorted(found[0]) == expected


def test_a_pod_that_waits_for_room_on_the_node_would_take_a_victims_place() -> None:
    """Both have to go: without the first one alone, the one that waits would have the card."""
    site = Site(node("a", 1), bind=True)
    for name, at in (("x", 1), ("waits", 2)):
        chosen = {OWN: f"c0=GPU-a-0:{60 + at}:1024", OWN_NODE: "a"}
        site.add(pod_object(name, share(60 + at, GIB), node="a", annotations=chosen, created=at))
    pod = site.add(pod_object("p", share(50, GIB), priority=5))
    (found,) = preempt(site, pod, {"a": []}).values()
    assert sorted(found[0]) == sorted((uid_of("x"), uid_of("waits")))


def test_preemption_on_a_node_that_says_sums_alone() -> None:
    pods = {f"{at:036d}": {"GPU-a-0": (0, 1)} for at in range(1000)}
    says = registration.holdings({**pods, uid_of("x"): {"GPU-a-0": (60, 1024)}}, {}, 1.0)
    one = node("a", 1)
    one["metadata"]["annotations"][registration.HOLDINGS] = says
    site = Site(one, bind=True)
    site.add(pod_object("x", share(60, GIB), node="a", annotations={OWN: "c0=GPU-a-0:60:1024", OWN_NODE: "a"}))
    pod = site.add(pod_object("p", share(50, GIB), priority=5))
    assert preempt(site, pod, {"a": []}) == {"a": ([uid_of("x")], 1)}


# Room that has just become free


def holds(*names: str):
    """Node a, which says that it holds 60 cores of its card for each of these pods."""
    found = node("a", 1)
    pods = {uid_of(name): {"GPU-a-0": (60, 1024)} for name in names}
    found["metadata"]["annotations"][registration.HOLDINGS] = registration.holdings(pods, {}, 1.0)
    return found


@pytest.mark.parametrize("end", ["deleted", "Succeeded"])
@pytest.mark.parametrize("lives_on", [False, True])
def test_filter_waits_for_the_nodes_word_on_a_pod_that_has_just_ended(monkeypatch, end: str, lives_on: bool) -> None:
    """kube-scheduler asks at once. The node's word comes a moment later, or not, while a process lives on."""
    site = Site(holds("old"), bind=True)
    old = site.add(pod_object("old", share(60, GIB), node="a", annotations={OWN: "c0=GPU-a-0:60:1024", OWN_NODE: "a"}))
    pod, larger = (site.add(pod_object(name, limits)) for name, limits in (("p", share(60, GIB)), ("q", share(200, 0))))
    waits: list[float] = []

    def arrives(seconds: float) -> None:
        waits.append(seconds)
        site.clock.now += seconds if lives_on else 0
        site.cluster.put_node(holds("old") if lives_on else holds(), site.clock())

    monkeypatch.setattr(site.cluster.arrived, "wait", arrives)
    assert site.filter(pod).NodeNames == [], "the pod is there"
    site.show({**old, "status": {"phase": end}}) if end == "Succeeded" else site.cluster.remove_pod(uid_of("old"))
    site.clock.now += 1
    assert site.filter(larger).NodeNames == [], "it would not fit anyway"
    assert waits == []
    assert site.filter(pod).NodeNames == ([] if lives_on else ["a"])
    assert waits == [CONFIRMS - 1]
    assert site.filter(pod).NodeNames == ([] if lives_on else ["a"])
    assert len(waits) == 1


def test_filter_waits_for_an_end_that_kube_scheduler_has_seen_before(monkeypatch) -> None:
    site = Site(holds("old"), bind=True)
    old = site.add(pod_object("old", share(60, GIB), node="a", annotations={OWN: "c0=GPU-a-0:60:1024", OWN_NODE: "a"}))
    pod = site.add(pod_object("p", share(60, GIB)))
    waits: list[float] = []

    def arrives(seconds: float) -> None:
        waits.append(seconds)
        site.show({**old, "status": {"phase": "Succeeded"}}) if len(waits) == 1 else site.cluster.put_node(holds(), 0)

    monkeypatch.setattr(site.cluster.arrived, "wait", arrives)
    assert site.filter(pod).NodeNames == []
    assert waits == [], "nothing has made kube-scheduler ask again"
    assert site.filter(pod).NodeNames == ["a"]
    assert len(waits) == 2


@pytest.mark.parametrize(("deleted", "named", "fits"), [(True, True, True), (False, True, False), (True, False, False)])
def test_a_pod_that_is_being_deleted_takes_nothing_once_the_node_names_it_no_longer(
    deleted: bool, named: bool, fits: bool
) -> None:
    """kube-scheduler may see the end of its object before the extender. A pod that was never named may yet start."""
    site = Site(holds("old") if named else holds(), bind=True)
    old = pod_object("old", share(60, GIB), node="a", annotations={OWN: "c0=GPU-a-0:60:1024", OWN_NODE: "a"})
    site.add(old)
    pod = site.add(pod_object("p", share(60, GIB)))
    site.cluster.put_node(holds("other"), site.clock())
    site.cluster.put_node(holds(), site.clock())
    assert site.filter(pod).NodeNames == []
    if deleted:
        site.show({**old, "metadata": {**old["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}})
    assert site.filter(pod).NodeNames == (["a"] if fits else [])


# Interleavings

NODES = ("a", "b")
FAULTS = st.sampled_from(("", "", "conflict", "late-unreachable"))


class Interleaved(RuleBasedStateMachine):
    """Schedulers, watches that lag, faults of the server, and restarts, in any order, with the bind verb."""

    @initialize()
    def begin(self) -> None:
        self.site = Site(*(node(name, 2) for name in NODES), bind=True)
        self.site.service.quotas = self.quotas = quota.parse('{"default": {"quota": {"Tesla T4": 3}}}')
        self.shown: dict[str, object] = {}
        self.number = 0

    def pods(self) -> list:
        return sorted(self.site.server.objects)

    @rule(cores=st.sampled_from((20, 50, 60, 100, 200)), memory=st.sampled_from((1, 7, 12)))
    def create(self, cores: int, memory: int) -> None:
        self.number += 1
        pod = pod_object(f"p{self.number}", share(cores, memory * GIB if cores < 100 else 0), created=self.number)
        self.site.add(pod)

    @rule(at=st.integers(0, 50), node=st.sampled_from(NODES), fault=FAULTS)
    def schedule(self, at: int, node: str, fault: str) -> None:
        if self.pods():
            self.site.server.faults = [fault] if fault else []
            self.cycle(self.pods()[at % len(self.pods())], node)
            self.site.server.faults = []

    def cycle(self, path: str, node: str) -> None:
        """The scheduler's cycle of one pod, which it would like to have on `node`."""
        pod = self.site.server.get(path)
        found = self.site.filter(pod)
        if not found.Error and node in found.NodeNames:
            self.site.bind(pod, node)

    @rule(at=st.integers(0, 50))
    def watch(self, at: int) -> None:
        """One event arrives: the state of one pod as it is now."""
        if self.pods():
            self.site.show(self.site.server.get(self.pods()[at % len(self.pods())]))

    @rule(at=st.integers(0, 50))
    def delete(self, at: int) -> None:
        if self.pods():
            pod = self.site.server.objects.pop(self.pods()[at % len(self.pods())])
            with self.site.cluster.guard:
                self.site.cluster.remove_pod(pod["metadata"]["uid"])

    @rule()
    def restart(self) -> None:
        self.site.restart()
        self.site.service.quotas = self.quotas

    @invariant()
    def nothing_is_given_twice(self) -> None:
        cores: Counter[str] = Counter()
        memory: Counter[str] = Counter()
        for path in self.pods():
            pod = self.site.server.get(path)
            if not pod["spec"].get("nodeName"):
                continue
            limits = pod["spec"]["containers"][0]["resources"]["limits"]
            text = pod["metadata"]["annotations"][OWN].partition("=")[2]
            for card in text.split(","):
                uuid, *amounts = card.split(":")
                assert uuid.split("-")[1] == pod["spec"]["nodeName"]
                cores[uuid] += int(amounts[0]) if amounts else 100
                memory[uuid] += int(amounts[1]) if amounts else 16 * 1024
            assert len(text.split(",")) == max(int(limits["tencent.com/vcuda-core"]) // 100, 1)
        assert max(cores.values(), default=0) <= 100
        assert max(memory.values(), default=0) <= 16 * 1024
        assert sum(cores.values()) <= 300

    @invariant()
    def answers_are_those_of_now(self) -> None:
        """Each cached answer is that of `decide` on the node, in any order of the nodes."""
        asked = demand.parse(pod_object("asked", share(50, 7 * GIB)))
        assert asked is not None
        assert asked.demand is not None
        for names in (list(NODES), list(reversed(NODES))):
            self.site.check_answers(asked.demand, names)


class InterleavedByFilter(Interleaved):
    """The same without the bind verb: filter patches, and the scheduler binds by itself, sometimes much later."""

    @initialize()
    def begin(self) -> None:
        super().begin()
        self.site.options.bind = False
        self.waiting: list[tuple[str, str, dict]] = []

    def cycle(self, path: str, node: str) -> None:
        pod = self.site.server.get(path)
        self.waiting = [one for one in self.waiting if one[0] != path]  # the scheduler has one cycle of a pod at a time
        found = self.site.filter(pod)
        if not found.Error and found.NodeNames:
            self.waiting.append((path, found.NodeNames[0], pod["metadata"]))

    @rule()
    def bind_one(self) -> None:
        if not self.waiting:
            return
        path, name, meta = self.waiting.pop(0)
        if path in self.site.server.objects and not self.site.server.objects[path]["spec"].get("nodeName"):
            body = {"metadata": {"uid": meta["uid"], "annotations": {}}, "target": {"name": name}}
            self.site.server.post(f"{path}/binding", body)

    @rule()
    def restart(self) -> None:
        """The scheduler's bindings under way are done before the next process decides: see main's SETTLE."""
        while self.waiting:
            self.bind_one()
        super().restart()


TestInterleaved = Interleaved.TestCase
TestInterleaved.settings = settings(max_examples=25, stateful_step_count=25)
TestInterleavedByFilter = InterleavedByFilter.TestCase
TestInterleavedByFilter.settings = settings(max_examples=25, stateful_step_count=25)


def test_a_malformed_body_is_an_error() -> None:
    for verb in ("filter", "prioritize", "bind", "preempt", "dry_run"):
        with pytest.raises(VgpuError):
            getattr(Site(node("a")).service, verb)(b"{")
