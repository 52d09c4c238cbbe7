"""What the resource claims of a manifest would get on this node, without a scheduler, a claim or a pod.

Belongs here: from a manifest to an allocation as the scheduler writes one, each claim by itself, on the first cards
that fit. Whether that can be prepared, and with which limits, says the function that the DRA driver asks
(vgpu.node.service.claim_allocation). Does not belong here: the printing (vgpu.node.ctl.explain). It reads the ledger
and changes nothing. Selectors are not evaluated: DeviceClasses of parts of a card are known by their names.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import NamedTuple

from vgpu.config import prepared
from vgpu.config.errors import VgpuError, shown
from vgpu.config.inventory import Card
from vgpu.config.prepared import DRIVER, Result
from vgpu.config.request import WHOLE_CARD, Request
from vgpu.config.settings import Settings
from vgpu.hook.ledger.ledger import Ledger
from vgpu.hook.placement import placement
from vgpu.hook.placement.placement import Policy
from vgpu.node.ctl.pod_manifest import Placed, committed
from vgpu.node.service import claim_allocation, claim_configuration, claim_devices
from vgpu.node.service.claim_allocation import inner, objects
from vgpu.node.service.claim_devices import MIB, PARTS, Device, Object
from vgpu.node.service.quantities import canonical, rounded_up

CLASS, CLAIM, TEMPLATE = "DeviceClass", "ResourceClaim", "ResourceClaimTemplate"
TRIES = 5000  #: of a claim's devices beside each other; alternatives and devices multiply
_UID = "00000000-0000-0000-0000-000000000000"


class Asked(NamedTuple):
    """One device of a request: `label` as a result has it, `part` of a card or "" for a share of one."""

    label: str
    device_class: str
    part: str
    cores: str
    memory: str


class Taken(NamedTuple):
    """The device that a request of this claim would get."""

    asked: Asked
    device: Device
    request: Request

    def result(self, pool: str) -> Object:
        """As the scheduler writes it."""
        found: Object = {"request": self.asked.label, "driver": DRIVER, "pool": pool, "device": self.device.name}
        cores, memory = self.request.cores, self.request.memory or self.device.memory
        consumed = {"cores": str(cores), "memory": canonical(memory)}
        return found if self.device.part else {**found, "consumedCapacity": consumed}


@dataclass(frozen=True)
class Explained:
    """What each request of a claim would get, with the `results` of Prepare, or why the claim is refused; `notes` say
    what was not looked at."""

    claim: str
    requests: list[Placed]
    results: list[Result]
    error: str
    notes: list[str]


class Node:
    """The devices of the node, and what is taken of them."""

    def __init__(self, settings: Settings, ledger: Ledger) -> None:
        policy = ledger.policy
        self.held = ledger.commitments()
        self.name = settings.node
        self.ledger = ledger
        self.policy = Policy(policy.name, min(policy.cores_scaling, 1.0), min(policy.memory_scaling, 1.0))
        whole = claim_devices.of_cards(ledger.cards, policy, ledger.ill())
        self.offers = settings.flag("kubernetes.dra")
        self.counted = settings.flag("kubernetes.dra_parts")
        parts = [part for device in whole for part in claim_devices.parts_of(device)] if self.counted else []
        self.devices = {device.name: device for device in [*whole, *parts]}
        claims, _ = prepared.read_all(settings.state_dir)
        self.in_use = [result.device for claim in claims for result in claim.results]
        self.tries = 0

    def of(self, part: str) -> list[Device]:
        return [device for device in self.devices.values() if device.kind == part]

    def fit(self, slots: list[Asked], constraints: list[Object], taken: list[Taken]) -> list[Taken] | None:
        """Devices for the slots after `taken`, going back where one finds none. VgpuError after TRIES."""
        self.tries += 1
        if self.tries > TRIES:
            raise VgpuError("alternatives and devices", expected=f"an answer within {TRIES} tries of combinations",
                            found="more of them", do="ask for fewer alternatives, constraints or devices")  # fmt: skip
        if len(taken) == len(slots):
            return taken
        slot = slots[len(taken)]
        for device in self.of(slot.part):
            request = self.request(slot, device)
            if not self.refusal(slot, device, request, taken):
                more = [*taken, Taken(slot, device, request)]
                found = self.fit(slots, constraints, more) if _hold(constraints, more) else None
                if found is not None:
                    return found
        return None

    def request(self, slot: Asked, device: Device) -> Request:
        """What the slot consumes of the device, rounded as its policy says."""
        if device.part:
            return Request(1, device.cores, device.memory, limited=True)
        cores = _consumed(slot, "cores", slot.cores, 1, device.cores)
        memory = _consumed(slot, "memory", slot.memory, MIB, device.memory)
        whole = device.is_whole(cores, memory) and cores <= device.cores and memory <= device.memory
        return Request(1, WHOLE_CARD, 0) if whole else Request(1, cores, memory, limited=True)

    def refusal(self, slot: Asked, device: Device, request: Request, taken: list[Taken]) -> str:
        """Why the device cannot be the slot's beside `taken`, or ""."""
        if any(one.asked == slot and one.device == device for one in taken):
            return "the request has it already"
        held = self.held
        for one in taken:
            held = committed(held, [one.device.card], one.request, f"request {one.asked.label}")
        in_use = [*self.in_use, *(one.device.name for one in taken)]
        [reason] = placement.refusals(request, [device.card], held, self.policy, self.ledger.ill())
        return reason or (claim_devices.counted_out(device, in_use) if self.counted else "")

    def placed(self, slot: Asked, taken: list[Taken], results: list[Result]) -> Placed:
        """What the slot's request gets, and why no other card is its."""
        mine = [one.device.card for one in taken if one.asked == slot]
        reasons: dict[str, tuple[Card, str]] = {}
        for device in self.of(slot.part):
            reason = self.refusal(slot, device, self.request(slot, device), [])
            if device.card not in mine and (device.card.uuid not in reasons or not reason):
                reasons[device.card.uuid] = (device.card, reason)
        return Placed(slot.label, "; ".join(map(_says, results)), mine, "", list(reasons.values()))


def _consumed(slot: Asked, name: str, text: str, step: int, default: int) -> int:
    amount = rounded_up(text, step) if text else default
    if amount is None:
        raise VgpuError(f"request {slot.label}: {name}", expected="an amount such as 30 or 8Gi", found=text)
    return max(amount, step)


def _says(result: Result) -> str:
    amounts = "a whole card" if result.whole else f"{result.cores} cores and {result.memory // MIB} MiB"
    limit = f", at most {result.core_limit} cores while the card is idle" if result.core_limit > result.cores else ""
    return amounts + limit + (", first with idle time" if result.priority == 0 else "")


def _hold(constraints: list[Object], taken: list[Taken]) -> bool:
    for one in constraints:
        meant, name = one.get("requests"), str(one.get("matchAttribute") or one.get("distinctAttribute"))
        values = [
            str(claim_devices.attributes(each.device).get(name.removeprefix(f"{DRIVER}/")))
            for each in taken
            if not isinstance(meant, list) or {each.asked.label, each.asked.label.partition("/")[0]} & set(meant)
        ]
        different = min(1, len(values)) if "matchAttribute" in one else len(values)
        if "None" in values or len(set(values)) != different:
            return False
    return True


def explain(documents: list[Object], settings: Settings, ledger: Ledger) -> list[Explained]:
    """Of each claim. A template is a claim; where there are DeviceClasses alone, each is a claim of one device."""
    classes = {str(inner(one, "metadata").get("name")): one for one in documents if one.get("kind") == CLASS}
    claims = [(one, inner(one, "spec")) for one in documents if one.get("kind") == CLAIM]
    claims += [(one, inner(inner(one, "spec"), "spec")) for one in documents if one.get("kind") == TEMPLATE]
    if not claims:
        requests = {name: [{"name": "device", "exactly": {"deviceClassName": name}}] for name in classes}
        claims = [(classes[name], {"devices": {"requests": one}}) for name, one in requests.items()]
    node = Node(settings, ledger)
    return [_explained(inner(one, "metadata"), inner(spec, "devices"), classes, node) for one, spec in claims]


def _explained(metadata: Object, devices: Object, classes: dict[str, Object], node: Node) -> Explained:
    named = {"namespace": metadata.get("namespace") or "default", "name": metadata.get("name"), "uid": _UID}
    label = claim_allocation.label(named)
    requests: list[Placed] = []
    notes = [] if node.offers else ["this node offers no card by claims: kubernetes.dra is false"]
    try:
        alternatives = _alternatives(label, devices, classes, node, notes)
        last = [slot for options in alternatives for slot in options[-1]]
        node.tries = 0
        choices = (list(itertools.chain(*slots)) for slots in itertools.product(*alternatives))
        fits = (node.fit(slots, objects(devices, "constraints"), []) for slots in choices)
        taken = next((one for one in fits if one is not None), None)
        config = _config(devices, classes, [one.asked for one in taken] if taken else last)
        if taken is None:
            claim_configuration.entries(label, config)
            requests = [node.placed(slot, [], []) for slot in dict.fromkeys(last)]
            raise VgpuError(label, expected="devices for all of its requests", found=_missing(requests))
        allocation = {"devices": {"results": [one.result(node.name) for one in taken], "config": config}}
        status = {"allocation": allocation, "reservedFor": [{"resource": "pods", "uid": _UID}]}
        made = claim_allocation.prepared({"metadata": named, "status": status}, _UID, "", node.name, node.devices)
        for slot in dict.fromkeys(one.asked for one in taken):
            mine = [result for one, result in zip(taken, made.results) if one.asked == slot]
            requests.append(node.placed(slot, taken, mine))
    except VgpuError as error:
        return Explained(label, requests, [], str(error), notes)
    return Explained(label, requests, made.results, "", notes)


def _missing(requests: list[Placed]) -> str:
    alone = next((one.container for one in requests if all(reason for _, reason in one.reasons)), "")
    return f"none for request {alone}" if alone else "devices for each of them alone, but not for all together"


def _alternatives(
    claim: str, devices: Object, classes: dict[str, Object], node: Node, notes: list[str]
) -> list[list[list[Asked]]]:
    """The alternatives of each request, each with its devices."""
    requests = []
    for request in objects(devices, "requests"):
        name = str(request.get("name"))
        options = [(f"{name}/{one.get('name')}", one) for one in objects(request, "firstAvailable")]
        options = options or [(name, inner(request, "exactly"))]
        requests.append([_asked(claim, label, one, classes, node, notes) for label, one in options])
    if not requests:
        raise VgpuError(claim, expected="requests", found="none")
    return requests


def _asked(
    claim: str, label: str, request: Object, classes: dict[str, Object], node: Node, notes: list[str]
) -> list[Asked]:
    name = str(request.get("deviceClassName"))
    part = name.removesuffix(f".{DRIVER}") if name.removesuffix(f".{DRIVER}") in PARTS else ""
    if name not in (DRIVER, *classes) and not part:
        do = "put the DeviceClass into the file"
        raise VgpuError(f"{claim}: {label}: deviceClassName", expected=f"{DRIVER}", found=name, do=do)
    if objects(request, "selectors"):
        notes.append(f"request {shown(label)}: nobody evaluated its selectors")
    amounts = inner(inner(request, "capacity"), "requests")
    cores, memory = (str(amounts.get(key) or "") for key in ("cores", "memory"))
    everything = request.get("allocationMode") == "All"
    count = len(node.of(part)) if everything else request.get("count", 1)
    if type(count) is not int or not 0 < count <= prepared.MAX_RESULTS:
        raise VgpuError(f"{claim}: {label}: count", expected=f"1 to {prepared.MAX_RESULTS}", found=count)
    return [Asked(label, name, part, cores, memory)] * count


def _config(devices: Object, classes: dict[str, Object], slots: list[Asked]) -> list[Object]:
    """The configuration as the scheduler copies it into the allocation: that of the chosen classes first."""
    names = {slot.label: slot.device_class for slot in slots}
    found = [
        {**one, "source": "FromClass", "requests": [label]}
        for label, name in names.items()
        for one in objects(inner(classes.get(name, {}), "spec"), "config")
    ]
    return [*found, *({**one, "source": "FromClaim"} for one in objects(devices, "config"))]
