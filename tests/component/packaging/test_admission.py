"""The chart's admission policies: whom they refuse, by the API server's own code. The beds' Kubernetes is too old."""

from __future__ import annotations

import json
import os
import random
from typing import Any

import helm
import kubernetes_go
import pytest
from cards import GIB, card

from vgpu.config.errors import VgpuError
from vgpu.config.grants import Grant, new_id
from vgpu.config.inventory import Card
from vgpu.config.request import Wishes
from vgpu.config.settings import Settings
from vgpu.hook.placement.placement import place
from vgpu.hook.request import resolve_grants
from vgpu.hook.request.resolve_grants import WantedGrants
from vgpu.node.service import kubelet_resources
from vgpu.plugin.kubelet import allocate
from vgpu.plugin.scheduler.decide import brief

pytestmark = pytest.mark.long

ACCOUNT = "system:serviceaccount:vgpu-system:vgpu-node"


def policies(**values: Any) -> dict[str, Any]:
    """The policies by name; each is in force."""
    kinds = {(one["kind"], one["metadata"]["name"]): one.get("spec") for one in helm.objects(values=values)}
    found = {name: spec for (kind, name), spec in kinds.items() if kind == "ValidatingAdmissionPolicy"}
    for name in found:
        bound = {"policyName": name, "validationActions": ["Deny"]}
        assert kinds["ValidatingAdmissionPolicyBinding", name] == bound
    return found


def evaluated(found: dict[str, Any], cases: list[dict[str, Any]]) -> list[str]:
    """For each case the message of its refusal, "" where it is admitted. `found`: name -> spec; see policies.go."""
    return list(json.loads(kubernetes_go.run("policies", given=json.dumps({"policies": found, "cases": cases}))))


def answer(policy: str, value: dict[str, Any], **request: Any) -> str:
    case = {"policy": policy, "object": {"apiVersion": "v1", **value}, **request}
    (found,) = evaluated(policies(admission={"enabled": True}, dra={"enabled": True}), [case])
    return "refused" if found else "admitted"


@pytest.mark.parametrize(
    ("annotations", "variable", "kind", "expected"),
    [
        ({}, "PATH", "containers", "admitted"),
        ({"vgpu.io/cores": "30"}, "PATH", "initContainers", "admitted"),
        ({"vgpu.io/grant-cores": "1"}, "PATH", "containers", "refused"),
        ({"cdi.k8s.io/vgpu_share": "vgpu.io/share=grant"}, "PATH", "containers", "refused"),
        ({"cdi.k8s.io/other": "example.com/device=0"}, "PATH", "containers", "admitted"),
        ({}, "VGPU_GRANT_CORES", "containers", "refused"),
        ({}, "VGPU_GRANT_GPU", "initContainers", "refused"),
    ],
)
def test_a_pod_names_no_grant(annotations: dict[str, str], variable: str, kind: str, expected: str) -> None:
    bare, set_ = {"name": "bare"}, {"name": "set", "env": [{"name": variable, "value": "1"}]}
    spec = {"containers": [bare], kind: [bare, set_]}
    metadata = {"name": "p", **({"annotations": annotations} if annotations else {})}
    assert answer("vgpu-pods", {"kind": "Pod", "metadata": metadata, "spec": spec}) == expected


@pytest.mark.parametrize(
    ("user", "node", "kind", "target", "expected"),
    [
        (ACCOUNT, "n1", "Node", "n1", "admitted"),
        (ACCOUNT, "n1", "Node", "n2", "refused"),
        (ACCOUNT, "n1", "Pod", "n1", "admitted"),
        (ACCOUNT, "n1", "Pod", "n2", "refused"),
        (ACCOUNT, "n1", "Pod", "", "refused"),
        (ACCOUNT, "", "Node", "n1", "refused"),
        ("somebody", "", "Node", "n1", "admitted"),
        *(
            (ACCOUNT, "n1", f"{verb} ResourceSlice", node, said)
            for verb in ("CREATE", "UPDATE", "DELETE")
            for node, said in (("n1", "admitted"), ("n2", "refused"), ("", "refused"))
        ),
        ("somebody", "", "DELETE ResourceSlice", "n2", "admitted"),
    ],
)
def test_a_node_changes_what_is_its_own_only(user: str, node: str, kind: str, target: str, expected: str) -> None:
    extra = {"authentication.kubernetes.io/node-name": [node]} if node else {}
    verb, _, kind = kind.rpartition(" ")
    changed: dict[str, Any] = {"kind": kind, "metadata": {"name": target or "p"}}
    if kind == "Pod":
        changed["spec"] = {"containers": [{"name": "c"}], "nodeName": target}
    if kind == "ResourceSlice":
        changed |= {"apiVersion": "resource.k8s.io/v1", "spec": {"driver": "gpu.vgpu.io", "pool": {"name": "p"}}}
        changed["spec"] |= {"nodeName": target} if target else {"allNodes": True}
        chart = policies(admission={"enabled": True}, dra={"enabled": True})
        rules = chart["vgpu-own-node"]["matchConstraints"]["resourceRules"]
        assert any("resourceslices" in one["resources"] and verb in one["operations"] for one in rules)
    assert answer("vgpu-own-node", changed, username=user, extra=extra, operation=verb) == expected


# Amounts that no node can serve

CORE, MEMORY = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"
FORK = {"core_name": "nvidia.com/vcuda-core", "memory_name": "nvidia.com/vcuda-memory", "memory_unit": "1Mi"}
#: Settings of the chart, and the node's cards: their number and GiB. The last row has no sizes in the policy.
CLUSTERS: list[tuple[dict[str, Any], int, int, bool]] = [
    ({}, 4, 40, True),
    ({"resources": FORK}, 2, 8, True),
    ({"resources": {"core_unit": 10}, "scaling": {"cores": 1.5, "memory": 1.2}}, 2, 16, True),
    ({"kubernetes": {"missing_memory": "proportional"}}, 8, 80, True),
    ({"resources": {"mode": "gpu"}}, 4, 16, True),
    ({}, 16, 141, False),
]


def flat(settings: dict[str, Any]) -> Settings:
    found = {f"{section}.{key}": value for section, keys in settings.items() for key, value in keys.items()}
    if found.get("resources.memory_unit") == "1Mi":
        found["resources.memory_unit"] = 1 << 20
    return Settings(found, "n")


def lines_of_the_node(settings: Settings, cards: list[Card], limits: dict[str, int]) -> list[str]:
    """What plugin and hook of an empty node say against a container with these limits; none where it starts."""
    policy, found, mine = kubelet_resources.policy_of(settings), [], []
    for resource in kubelet_resources.advertised(settings, cards):
        number = limits.get(resource.name, 0)
        if not number:
            continue
        amount = number * resource.unit
        try:
            if resource.kind == "gpu":
                slots = list(resource.slots)
                mine.append(allocate._of_gpu(resource, amount, slots, {}, settings, 1.0))
            else:
                mine.append(Grant(new_id(), resource.kind, amount, 1.0))
                allocate._CHECKS[resource.kind](resource, amount, settings)
        except VgpuError as error:
            found.append(str(error))
    try:
        if mine:
            terms = resolve_grants.terms_of(settings, policy)
            resolved = resolve_grants.resolve(mine, WantedGrants({}, 0, Wishes()), cards, terms)
            place(resolved.request, cards, {}, policy)
    except VgpuError as error:
        found.append(brief(error))
    return found


def limits_of(rng: random.Random, settings: Settings, count: int, size: int) -> dict[str, int]:
    """Limits at and around what a card and a node have."""
    if settings.text("resources.mode") == "gpu":
        return {settings.text("resources.gpu_name"): rng.randrange(2 * count)}
    unit = int(settings.number("resources.memory_unit"))
    cores = rng.choice((0, 1, 5, 30, 99, 100, 100, 101, 150, 200, 200, 250, 100 * count, 100 * count + 100, 10**12))
    units = size * GIB // unit * rng.choice((0, 1, 1, 2, count)) + rng.choice((-1, 0, 1, 10))
    found = {
        settings.text("resources.core_name"): cores // int(settings.number("resources.core_unit")),
        settings.text("resources.memory_name"): max(rng.choice((units, units, 1, 0)), 0),
    }
    return {name: number for name, number in found.items() if number or rng.random() < 0.5}


def pod_of(containers: list[dict[str, int]], inits: int) -> dict[str, Any]:
    made = [
        {"name": f"c{at}", "resources": {"limits": {name: str(number) for name, number in limits.items()}}}
        if limits else {"name": f"c{at}"}
        for at, limits in enumerate(containers)
    ]  # fmt: skip
    spec = {"containers": made[inits:] or made, "initContainers": made[:inits]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}


@pytest.mark.parametrize("at", range(len(CLUSTERS)))
def test_amounts_are_refused_where_no_node_starts_them_in_the_nodes_words(at: int) -> None:
    chart, count, size, sized = CLUSTERS[at]
    seed = int(os.environ.get("VGPU_SEED") or random.randrange(1 << 32))
    print("seed", seed)
    rng, settings = random.Random(seed), flat(chart)
    cards = [card(index, size * GIB, uuid=f"GPU-{index}") for index in range(count)]
    sizes = {"largestCard": f"{size}Gi", "mostCards": count} if sized else {}
    found = policies(admission={"enabled": True, **sizes}, settings=chart)
    pods = [[limits_of(rng, settings, count, size) for _ in range(rng.randrange(1, 4))] for _ in range(300)]
    cases = [{"policy": "vgpu-requests", "object": pod_of(one, rng.randrange(len(one)))} for one in pods]
    refused = 0
    for pod, line in zip(pods, evaluated(found, cases)):
        lines = [f"container c{at}: {one}" for at, limits in enumerate(pod)
                 for one in lines_of_the_node(settings, cards, limits)]  # fmt: skip
        assert any(one.startswith(line) for one in lines) if line else not (lines and sized), (pod, line, lines)
        refused += bool(line)
    assert 10 < refused < 290


POOL = {"name": "fork", "node_labels": {"pool": "fork"}, "resources": FORK}


@pytest.mark.parametrize("pools", [{"profiles": [POOL]}, {"nodes": {"n1": {"resources": FORK}}}])
def test_pools_with_other_resources_are_not_judged(pools: dict[str, Any]) -> None:
    assert "vgpu-requests" not in policies(admission={"enabled": True}, settings=pools)
