"""What pods ask for: the resources of three kinds, the kinds of containers, and what is wrong in a pod."""

from __future__ import annotations

import pytest
from gpu_clusters import CORES, GIB, MEMORY, MIB, pod_object, share

from vgpu.plugin.scheduler.demand import APP, INIT, SIDECAR, Demand, Part, parse

HAMI = "nvidia.com/gpu"


def demand_of(*containers, **more) -> Demand:
    pod = parse(pod_object("p", *containers, **more))
    assert pod is not None
    assert not pod.error
    assert pod.demand is not None
    return pod.demand


def parts_of(*containers, **more):
    return demand_of(*containers, **more).parts


def test_shares_and_whole_cards() -> None:
    assert parts_of(share(30, GIB), share(200, 0), share(100, GIB)) == (
        Part("c0", APP, 1, 30, GIB),
        Part("c1", APP, 2, 100),
        Part("c2", APP, 1, 100, 0, GIB),
    )


def test_the_forks_memory_is_in_mib() -> None:
    limits = {"nvidia.com/vcuda-core": "30", "nvidia.com/vcuda-memory": "3k"}
    assert parts_of(limits) == (Part("c0", APP, 1, 30, 3000 * MIB),)


def test_vgpus_of_hami() -> None:
    limits = {HAMI: "2", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"}
    assert parts_of(limits) == (Part("c0", APP, 2, 30, 3000 * MIB, 0, 0, True),)
    found = demand_of({HAMI: "1", "nvidia.com/gpumem-percentage": "50"})
    assert (found.dialect, found.parts[0].percent) == ("hami", 50)


def test_init_containers_and_sidecars() -> None:
    found = parts_of(share(10, GIB), inits=(share(20, GIB),), sidecars=(share(30, GIB),))
    assert [(part.name, part.kind) for part in found] == [("i0", INIT), ("s0", SIDECAR), ("c0", APP)]


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({CORES: "150", MEMORY: "4"}, "150"),
        ({CORES: "250"}, "250"),
        ({CORES: "30"}, "memory beside"),
        ({MEMORY: "4"}, "cores beside"),
        ({CORES: "30", MEMORY: "4", HAMI: "1"}, "one kind"),
        ({CORES: "30", MEMORY: "4", "nvidia.com/vcuda-core": "30"}, "one kind"),
        ({"nvidia.com/gpumem": "3000"}, "no number"),
        ({HAMI: "1", "nvidia.com/gpucores": "101"}, "at most 100"),
        ({CORES: "30", MEMORY: "9000000000000"}, "amounts that a node can have"),
    ],
)
def test_what_is_wrong_is_named(limits, message: str) -> None:
    pod = parse(pod_object("p", limits))
    assert pod is not None
    assert pod.demand is None
    assert message in pod.error


def test_two_kinds_in_two_containers_are_wrong() -> None:
    pod = parse(pod_object("p", share(30, GIB), {HAMI: "1"}))
    assert pod is not None
    assert "one kind" in pod.error


@pytest.mark.parametrize(
    "value", [None, 5, {}, {"metadata": {}}, pod_object("p", {"cpu": "1"}), pod_object("p", {CORES: "0"})]
)
def test_what_asks_for_no_card_is_none(value) -> None:
    assert parse(value) is None


def test_wishes_and_policies_are_read() -> None:
    found = demand_of(share(30, GIB), annotations={"vgpu.io/policy": "spread", "vgpu.io/use-gputype": "A10"})
    assert found.node_policy == "spread"
    assert found.to_wishes().use_types == ("a10",)
    both = {"hami.io/gpu-scheduler-policy": "spread", "hami.io/node-scheduler-policy": "binpack"}
    found = demand_of(share(30, GIB), annotations=both)
    assert (found.node_policy, found.to_wishes().policy) == ("binpack", "spread")


def test_a_wrong_wish_is_named() -> None:
    pod = parse(pod_object("p", share(30, GIB), annotations={"vgpu.io/priority": "high"}))
    assert pod is not None
    assert "vgpu.io/priority" in pod.error


def test_placements_of_other_schedulers_are_seen() -> None:
    pod = parse(pod_object("p", share(30, GIB), annotations={"tencent.com/predicate-gpu-idx-0": "1", "a/b": "c"}))
    assert pod is not None
    assert pod.foreign == ("tencent.com/predicate-gpu-idx-0",)
