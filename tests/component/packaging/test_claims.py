"""Objects of resource.k8s.io that we ship or write: decoded strictly by Kubernetes' own types, and allocated.

The types are Debian's packages of Kubernetes 1.36. The scheduler is the stand-in that follows the recordings of a real
one (component/kubelet/test_dra_stand_in.py).
"""

from __future__ import annotations

import os
import random
import re
from pathlib import Path
from typing import Any

import helm
import kubernetes_types
import pytest
import topologies
import yaml
from cards import GIB, card
from checkout import CHECKOUT
from dra_scheduler import Allocator

from vgpu.config.inventory import Card
from vgpu.hook.placement.placement import Policy
from vgpu.node.service import claim_devices as devices

GROUP = "resource.k8s.io/v1"
#: A template's requests on two quads of linked cards -> (request, number of the card, cores) of each result.
SHIPPED = {
    "share": [("gpu", 0, "30")], "soft-share": [("gpu", 0, "30")], "whole-card": [("gpu", 0, "100")],
    "first-available": [("gpu/small", 0, "30")],
    "two-linked-cards": [("gpus", 0, "100"), ("gpus", 1, "100")],
    "halves-of-two-cards": [("one", 0, "50"), ("other", 1, "50")],
}  # fmt: skip


def documents(text: str) -> list[Any]:
    return [one for one in yaml.safe_load_all(text) if isinstance(one, dict) and one.get("apiVersion") == GROUP]


def templates() -> dict[str, Any]:
    folder = CHECKOUT / "packaging/kubernetes/claims"
    return {path.stem: documents(path.read_text())[0] for path in sorted(folder.glob("*.yaml"))}


def blocks() -> list[Any]:
    """The objects in blocks of YAML of the documents."""
    pages = [CHECKOUT / "README.md", *Path(CHECKOUT / "docs").rglob("*.md")]
    found = [block for page in pages for block in re.findall(r"```ya?ml\n(.*?)```", page.read_text(), re.S)]
    return [one for block in found if GROUP in block for one in documents(block)]


def chart() -> list[Any]:
    made = helm.objects(values={"dra": {"enabled": True, "parts": True}})
    return [one for one in made if one["apiVersion"] == GROUP]


def classes() -> dict[str, Any]:
    return {one["metadata"]["name"]: one for one in chart()}


def slices(cards: list[Card] | None = None) -> list[Any]:
    """Of a node with two quads of linked cards, of which the last card is ill; or of these cards."""
    cards, ill = (cards, {}) if cards else (found := topologies.quads(), {found[-1].uuid: "XID 79"})
    offered = devices.of_cards(cards, Policy(), ill, ill)
    made = devices.slices(offered, "n", "uid", "570.124.06", "NoExecute", parts=True)
    for one in made:
        one["spec"]["pool"]["generation"] = 1  # type: ignore[index]
    return list(made)


def test_everything_is_what_kubernetes_reads() -> None:
    objects = [*templates().values(), *blocks(), *chart(), *slices()]
    kinds = {one["kind"] for one in objects}
    assert kinds >= {"DeviceClass", "ResourceClaimTemplate", "ResourceSlice"}
    assert dict(zip(map(str, objects), kubernetes_types.errors(objects))) == dict.fromkeys(map(str, objects), "")


def test_what_kubernetes_does_not_know_is_found() -> None:
    """The decoder is strict: a field of another name or place, and a value of another type."""
    good = slices()[0]
    good["spec"]["devices"] = good["spec"]["devices"][:1]
    for change in ({"sharedCounter": []}, {"nodeName": 1}, {"capacity": {}}):
        (error,) = kubernetes_types.errors([{**good, "spec": {**good["spec"], **change}}])
        assert next(iter(change)) in error
    assert kubernetes_types.errors([good]) == [""]


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_a_shipped_template_is_allocated(name: str) -> None:
    claim = {"metadata": {"namespace": "n", "name": name}, "spec": templates()[name]["spec"]["spec"]}
    found = Allocator(slices(), classes(), []).allocate(claim)
    cards = {card.uuid.lower(): number for number, card in enumerate(topologies.quads())}
    assert found is not None
    got = [
        (one["request"], cards[one["device"]], one["consumedCapacity"]["cores"]) for one in found["devices"]["results"]
    ]
    assert got == SHIPPED[name]


def test_every_shipped_template_is_looked_at() -> None:
    assert set(templates()) == set(SHIPPED)


# Parts of cards


def test_a_card_serves_shares_or_parts_at_a_time_and_no_more_than_it_has() -> None:
    """Random claims come and go, by a seed. What a card serves is counted from the allocations."""
    seed = int(os.environ.get("VGPU_SEED") or random.randrange(1 << 30))
    print(f"VGPU_SEED={seed}")
    chance, living, seen = random.Random(seed), list[Any](), set[str]()
    made, known = slices([card(at, 40 * GIB) for at in range(2)]), classes()
    for _ in range(400):
        name = chance.choice(sorted(known))
        if living and chance.random() < 0.45:
            living.pop(chance.randrange(len(living)))
        elif found := Allocator(made, known, living).allocate(claim_of(name, chance.choice(("10", "30", "60", "100")))):
            living.append(found)
            seen.add(name)
        else:
            seen.add("refused")
        results = [one for each in living for one in each["devices"]["results"]]
        for shared in [one["name"] for one in made[0]["spec"]["devices"] if "part" not in one["attributes"]]:
            shares = [int(one["consumedCapacity"]["cores"]) for one in results if one["device"] == shared]
            parts = [one["device"].split("-")[-2:] for one in results if one["device"].startswith(f"{shared}-")]
            assert not (shares and parts)
            assert sum(shares) <= 100 and len({*map(tuple, parts)}) == len(parts)
            assert sum({"half": 4, "quarter": 2, "eighth": 1}[kind] for kind, _ in parts) <= 8
    assert seen == {*known, "refused"}


def claim_of(name: str, cores: str) -> Any:
    exactly = {"deviceClassName": name}
    if name == "gpu.vgpu.io":
        exactly["capacity"] = {"requests": {"cores": cores, "memory": "1Gi"}}  # type: ignore[assignment]
    requests = [{"name": "gpu", "exactly": exactly}]
    return {"metadata": {"namespace": "n", "name": "c"}, "spec": {"devices": {"requests": requests}}}
