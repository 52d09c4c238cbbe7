"""What `vgpuctl explain` says of random claims, beside the stand-in for the scheduler and the driver's own answer.

Belongs here: the node's cards with some of them taken, and claims with alternatives, constraints, odd amounts, parts of
cards and configuration, by a seed given at the run. The stand-in follows recordings of a real scheduler
(component/kubelet/test_dra_stand_in.py).
"""

from __future__ import annotations

import collections
import os
import random
import shutil
import uuid
from pathlib import Path
from typing import Any

import helm
import pytest
from dra_scheduler import Allocator
from ledger_node import Node

from vgpu.config import paths, prepared
from vgpu.config.errors import VgpuError
from vgpu.hook.placement.placement import Policy
from vgpu.node.ctl import claim_manifest
from vgpu.node.service import claim_allocation, claim_devices

SEED = int(os.environ.get("VGPU_SEED") or random.randrange(1 << 30))
HEAD = {"apiVersion": "gpu.vgpu.io/v1", "kind": "ShareConfig"}
Object = dict[str, Any]


def classes_of_the_chart() -> list[Object]:
    made = helm.objects(values={"dra": {"enabled": True, "parts": True}})
    return [one for one in made if one["kind"] == "DeviceClass"]


def config(chance: random.Random, requests: list[str] | None) -> list[Object]:
    """Of a claim with these requests, or of a DeviceClass. Mostly right."""
    values = {
        "core-limit": chance.choice((1, 50, 100, "soft", "hard", 101)),
        "priority": chance.choice((0, 1, 7, 7, -1)),
    }
    kept = {name: value for name, value in values.items() if chance.random() < 0.5}
    driver = chance.choice(("gpu.vgpu.io",) * 5 + ("other",))
    entry: Object = {"opaque": {"driver": driver, "parameters": {**HEAD, **kept}}}
    if requests:
        entry["requests"] = chance.sample(requests, chance.randrange(len(requests) + 1))
    return [entry] if chance.random() < 0.3 else []


def one_request(chance: random.Random, classes: list[Object]) -> Object:
    name = chance.choice([one["metadata"]["name"] for one in classes] + ["gpu.vgpu.io"] * 4)
    made: Object = {"deviceClassName": name, "count": chance.choice((1, 1, 1, 2))}
    amounts = {"cores": chance.choice(("30", "500m", "50", "100", "101")),
               "memory": chance.choice(("1Gi", "1.5Gi", "8Gi", "16Gi", "3000M", "17Gi"))}  # fmt: skip
    if name == "gpu.vgpu.io":
        made["capacity"] = {"requests": {key: one for key, one in amounts.items() if chance.random() < 0.8}}
    return made


def claim(chance: random.Random, classes: list[Object]) -> Object:
    names = ["a", "b"][: chance.choice((1, 1, 2))]
    requests = []
    for name in names:
        options = [{"name": f"o{at}", **one_request(chance, classes)} for at in range(2)]
        several = chance.random() < 0.2
        requests.append(
            {"name": name, **({"firstAvailable": options} if several else {"exactly": one_request(chance, classes)})}
        )
    kind = chance.choice(("distinctAttribute", "matchAttribute"))
    constraints = [{"requests": names, kind: f"gpu.vgpu.io/{chance.choice(('uuid', 'model'))}"}]
    devices = {"requests": requests, "constraints": constraints if chance.random() < 0.3 else [],
               "config": config(chance, names) + config(chance, names)}  # fmt: skip
    metadata = {"name": "c", "namespace": "default", "uid": str(uuid.UUID(int=chance.getrandbits(128)))}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": metadata,
        "spec": {"devices": devices},
    }


def answer(made: Object, allocation: Object | None, node: Node, devices: Object) -> Any:
    """The prepared claim, the driver's refusal, or None where the scheduler finds no room."""
    if allocation is None:
        return None
    status = {"allocation": allocation, "reservedFor": [{"resource": "pods", "uid": made["metadata"]["uid"]}]}
    try:
        uid = made["metadata"]["uid"]
        return claim_allocation.prepared({**made, "status": status}, uid, "boot", node.settings.node, devices)
    except VgpuError as error:
        return str(error)


def test_explain_agrees_with_the_scheduler_and_the_driver(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    print(f"VGPU_SEED={SEED}")
    chance, node = random.Random(SEED), Node(tmp_path, 2, **{"kubernetes.dra_parts": True})
    offered = claim_devices.of_cards(node.cards, Policy(), {})
    slices = claim_devices.slices(offered, node.settings.node, "u", "", "NoSchedule", parts=True)
    devices = {one.name: one for card in offered for one in [card, *claim_devices.parts_of(card)]}
    plain, seen = classes_of_the_chart(), collections.Counter[str]()
    for _ in range(3000 if request.config.getoption("--long") else 150):
        shutil.rmtree(paths.prepared_claims(node.settings.state_dir), ignore_errors=True)
        classes = [{**one, "spec": {**one["spec"], "config": config(chance, None)}} for one in plain]
        taken: list[Object] = []
        for left in range(chance.randrange(5), -1, -1):
            made = claim(chance, classes)
            scheduler = Allocator(slices, {one["metadata"]["name"]: one for one in classes}, taken)
            allocation = scheduler.allocate(made)
            expected = answer(made, allocation, node, devices)
            [said] = claim_manifest.explain([made, *classes], node.settings, node.ledger())
            kind = "none" if expected is None else "refused" if isinstance(expected, str) else "prepared"
            seen[kind] += 1
            if kind == "prepared":
                assert (said.error, [one.record() for one in said.results]) == ("", without_share(expected)), made
                if left:
                    prepared.write(node.settings.state_dir, expected)
                    taken.append(allocation)
            else:
                assert said.error == (expected or said.error) != "", (made, taken)
    assert all(seen[kind] > 10 for kind in ("none", "refused", "prepared")), seen


def test_explain_gives_up_a_claim_with_too_many_alternatives(tmp_path: Path) -> None:
    """As many as Kubernetes takes, which no two cards have room for."""
    node, wanted = Node(tmp_path, 2), {"deviceClassName": "gpu.vgpu.io", "capacity": {"requests": {"cores": "60"}}}
    options = [{"name": f"o{at}", **wanted} for at in range(8)]
    requests = [{"name": f"r{at}", "firstAvailable": options} for at in range(32)]
    made = {"kind": "ResourceClaim", "metadata": {"name": "c"}, "spec": {"devices": {"requests": requests}}}
    [said] = claim_manifest.explain([made], node.settings, node.ledger())
    assert f"expected an answer within {claim_manifest.TRIES} tries" in said.error


def without_share(claim: prepared.PreparedClaim) -> list[Object]:
    """The scheduler alone gives a share its id."""
    return [{**one.record(), "share_id": ""} for one in claim.results]
