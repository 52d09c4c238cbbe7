"""What the containers of a pod's manifest would get on this node, without a pod, a grant or a claim.

Belongs here: from a manifest to one request for each container, and their placement one after the other. Does not
belong here: the rules of amounts and of placement, which are the hook's (vgpu.hook.request.resolve_grants,
vgpu.hook.placement), and the printing (vgpu.node.ctl.explain). It reads the ledger and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from vgpu.config import grants, pods, request
from vgpu.config.dialects import placements
from vgpu.config.errors import VgpuError, shown
from vgpu.config.grants import Grant
from vgpu.config.inventory import Card
from vgpu.config.pods import Pod
from vgpu.config.request import MIG_RESOURCE, WHOLE_CARD, Request
from vgpu.config.settings import Settings
from vgpu.hook.ledger.ledger import Ledger
from vgpu.hook.placement import placement
from vgpu.hook.placement.placement import Commitment, NoFit
from vgpu.hook.request.resolve_grants import WantedGrants, resolve

KINDS_WITH_TEMPLATE = ("Deployment", "DaemonSet", "StatefulSet", "ReplicaSet", "Job")
_EXPECTED = f"the manifest of a claim, of a Pod, or of one of {', '.join(KINDS_WITH_TEMPLATE)}"
SIDECAR = "Always"  #: restartPolicy of an init container that runs beside the others


@dataclass(frozen=True)
class Placed:
    """One container: what it asks for, the cards that it would get, or the error; and of each other card why not."""

    container: str
    wanted: str
    cards: list[Card]
    error: str
    reasons: list[tuple[Card, str]]


@dataclass(frozen=True)
class Manifest:
    """A pod, and the names of its init containers that end before the others start."""

    pod: Pod
    passing: frozenset[str]


def documents_of(path: str) -> list[dict[str, Any]]:
    """The objects in the file. VgpuError where it is none."""
    try:
        with open(path, encoding="utf-8") as stream:
            return [item for item in yaml.safe_load_all(stream) if isinstance(item, dict)]
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise VgpuError(path, expected=_EXPECTED, found=" ".join(str(error).split())) from error


def read(documents: list[dict[str, Any]], path: str, settings: Settings) -> Manifest:
    """The pod of the manifest `path`: a Pod, or the template of a workload. VgpuError for any other file."""
    found = [document for document in documents if document.get("kind") in ("Pod", *KINDS_WITH_TEMPLATE)]
    if len(found) != 1:
        raise VgpuError(path, expected=_EXPECTED, found=f"{len(found)} of them")
    manifest = found[0]
    template = manifest if manifest["kind"] == "Pod" else _inner(_inner(manifest, "spec", path), "template", path)
    return _pod(template, _inner(manifest, "metadata", path), path, settings)


def _pod(template: dict[str, Any], metadata: dict[str, Any], path: str, settings: Settings) -> Manifest:
    spec = _inner(template, "spec", path)
    init, plain = (_containers(spec, key, path) for key in ("initContainers", "containers"))
    annotations = template.get("metadata", {}).get("annotations") or {}
    pod = Pod(
        "", str(metadata.get("namespace", "default")), str(metadata.get("name", "")), settings.node,
        [item["name"] for item in init], [item["name"] for item in plain],
        {str(key): str(value) for key, value in annotations.items()},
        {item["name"]: _limits(item, path) for item in (*init, *plain)},
    )  # fmt: skip
    return Manifest(pod, frozenset(item["name"] for item in init if item.get("restartPolicy") != SIDECAR))


def _inner(record: dict[str, Any], key: str, path: str) -> dict[str, Any]:
    value = record.get(key)
    if not isinstance(value, dict):
        raise VgpuError(path, expected=f"an object under {key}", found=shown(str(value)))
    return value


def _containers(spec: dict[str, Any], key: str, path: str) -> list[dict[str, Any]]:
    found = spec.get(key) or []
    if not isinstance(found, list) or not all(
        isinstance(item, dict) and isinstance(item.get("name"), str) for item in found
    ):
        raise VgpuError(path, expected=f"containers with names under {key}", found=shown(str(found)))
    return found


def _limits(container: dict[str, Any], path: str) -> dict[str, int]:
    """The whole numbers of the limits of extended resources; requests count where there is no limit."""
    resources = container.get("resources") or {}
    merged = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    found = {}
    for name, value in merged.items():
        if "/" not in str(name):
            continue  # cpu, memory: no device
        if not str(value).isdigit():
            raise VgpuError(f"{path}: container {container['name']}: {name}", expected="a whole number", found=value)
        found[str(name)] = int(value)
    return found


def explain(manifest: Manifest, settings: Settings, ledger: Ledger) -> list[Placed]:
    """What each container that asks for a card would get, in the order of their starts."""
    held = dict(ledger.commitments())
    found = []
    for name in manifest.pod.names():
        mine = list(_grants(manifest.pod.limits[name], settings, ledger.cards))
        if mine:
            placed, wanted = _placed(manifest.pod, name, mine, settings, ledger, held)
            found.append(placed)
            if wanted and name not in manifest.passing:
                held = committed(held, placed.cards, wanted, f"{manifest.pod.name}/{name}")
    return found


def _grants(limits: dict[str, int], settings: Settings, cards: list[Card]) -> Iterator[Grant]:
    """What the plugin would grant for these limits, in the node's mode."""
    units = {
        "cores": (settings.text("resources.core_name"), int(settings.number("resources.core_unit"))),
        "memory": (settings.text("resources.memory_name"), int(settings.number("resources.memory_unit"))),
    }
    if settings.text("resources.mig_strategy") == "mixed":
        for name in [name for name, count in limits.items() if name.startswith(MIG_RESOURCE) and count]:
            devices = {card.uuid: "0" for card in cards if card.profile and MIG_RESOURCE + card.profile == name}
            if not devices:
                raise VgpuError(name, expected="a MIG profile of this node's instances", found="another one")
            yield Grant(grants.new_id(), "mig", 1, 0.0, devices=devices)
    if settings.text("resources.mode") == "gpu":
        count, parts = limits.get(settings.text("resources.gpu_name"), 0), int(settings.number("resources.split_count"))
        memory = min((card.memory for card in cards), default=0) // parts if parts > 1 else 0
        if count:
            yield Grant(grants.new_id(), "gpu", count, 0.0, cores=WHOLE_CARD // parts, memory=memory)
        return
    for resource, (name, unit) in units.items():
        if limits.get(name):
            yield Grant(grants.new_id(), resource, limits[name] * unit, 0.0)


def _placed(
    pod: Pod, name: str, mine: list[Grant], settings: Settings, ledger: Ledger, held: dict[str, Commitment]
) -> tuple[Placed, Request | None]:
    """The container `name` on cards of which `held` is committed."""
    try:
        wanted = resolve(mine, _wanted(pod, name, mine, settings), ledger.cards, ledger.terms).request
    except VgpuError as error:
        return Placed(name, "", [], str(error), []), None
    reasons = list(zip(ledger.cards, placement.refusals(wanted, ledger.cards, held, ledger.policy, ledger.ill())))
    try:
        cards = placement.place(wanted, ledger.cards, held, ledger.policy, by_kubelet=True, ill=ledger.ill())
    except NoFit as error:
        return Placed(name, wanted.describe(), [], str(error), reasons), None
    return Placed(name, wanted.describe(), cards, "", reasons), wanted


def _wanted(pod: pods.Pod, name: str, mine: Iterable[Grant], settings: Settings) -> WantedGrants:
    """As vgpu.hook.request.pod_record completes it from the pod's record."""
    limits, dialects = pod.limits[name], settings.texts("kubernetes.dialects")
    wishes = request.wishes_from(pod.annotations, limits.get(request.PRIORITIES[-1], request.LOW_PRIORITY))
    read_any = placements.read(pod, dialects)
    choices = tuple(placements.choices(pod, name, pod.node, dialects)) if read_any else ()
    ids = {grant.resource: grant.id for grant in mine}
    return WantedGrants(ids, request.core_limit_wish(pod.annotations), wishes, choices, limits)


def committed(held: dict[str, Commitment], cards: list[Card], wanted: Request, holder: str) -> dict[str, Commitment]:
    """The commitments with this holder on its cards."""
    result = dict(held)
    for card in cards:
        before = held.get(card.uuid) or Commitment()
        amount = (wanted.cores, wanted.memory_of(card.uuid))
        result[card.uuid] = Commitment(
            before.cores + amount[0], before.memory + amount[1], before.exclusive or wanted.exclusive,
            (*before.holders, holder), (*before.amounts, amount),
        )  # fmt: skip
    return result
