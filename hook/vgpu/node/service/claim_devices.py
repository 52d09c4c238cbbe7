"""The node's cards as devices of Dynamic Resource Allocation.

Belongs here: a device's name, attributes, capacity and taint, the parts of a card, and the slices that list the
devices, as pure functions. Not here: writing the slices (vgpu.plugin.dra.publisher).

With parts a card is offered for shares, as two halves, four quarters and eight eighths. All draw on a counter of the
card's eighths: shares on all of them, once for however many there are. So a card serves shares or parts at a time.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TypeVar

from vgpu.config.inventory import Card
from vgpu.config.prepared import DRIVER
from vgpu.config.request import WHOLE_CARD
from vgpu.hook.placement.placement import Policy, nvlink_groups
from vgpu.node.service.quantities import canonical

API_VERSION = "resource.k8s.io/v1"
MAX_DEVICES = 64  #: of a slice whose devices may have taints
MAX_TEXT = 64  #: characters of an attribute
NO_SCHEDULE = "NoSchedule"
TAINT = f"{DRIVER}/ill"
MIB = 1 << 20
PARTS = {"half": 4, "quarter": 2, "eighth": 1}  #: how many eighths of a card each has
EIGHTHS = 8
MAX_COUNTER_SETS = 8  #: of a slice
T = TypeVar("T")

Object = dict[str, object]


@dataclass(frozen=True)
class Device:
    """A card that is offered: its capacity is `cores` percent and `memory` bytes, whole MiB. `ill`: why no container
    should get it now, or "". `faulty`: the card itself is out of order, and not only its driver absent. `part`: "" for
    shares, or a part of the card with its number, such as half-0.

    The capacity is the part of the card that scaling leaves to shares, at most the card: no scheduler knows that two
    whole cards do not fit a capacity of 200 cores.
    """

    card: Card
    cores: int
    memory: int
    ill: str = ""
    faulty: bool = False
    pcie_root: str = ""
    nvlink_group: str = ""
    part: str = ""

    def is_whole(self, cores: int, memory: int) -> bool:
        return not self.part and cores >= WHOLE_CARD and memory >= self.card.memory // MIB * MIB

    @property
    def name(self) -> str:
        """The device's name. It depends only on the card, because allocations name it over reboots."""
        return name_of(self.card) + (f"-{self.part}" if self.part else "")

    @property
    def kind(self) -> str:
        """half, quarter, eighth, or "" for shares."""
        return self.part.partition("-")[0]

    @property
    def eighths(self) -> int:
        return PARTS.get(self.kind, EIGHTHS)


def name_of(card: Card) -> str:
    return card.uuid.lower()


def of_cards(
    cards: list[Card], policy: Policy, ill: dict[str, str], faulty: Collection[str] = (), sys_root: str = "/sys"
) -> list[Device]:
    """The devices of all cards. `ill`: card uuid -> why. `faulty`: uuids of cards that are out of order themselves."""
    groups = {card.uuid: group[0] for group in nvlink_groups(cards) for card in group}
    return [
        Device(
            card, min(policy.cores(), WHOLE_CARD), min(policy.memory(card), card.memory) // MIB * MIB,
            ill.get(card.uuid, ""), card.uuid in faulty, _pcie_root(card, sys_root),
            name_of(groups[card.uuid]) if card.uuid in groups else "",
        )
        for card in cards
    ]  # fmt: skip


def parts_of(device: Device) -> list[Device]:
    """The halves, quarters and eighths of what the device has for shares, rounded down."""
    found = [
        replace(device, part=f"{kind}-{number}", cores=device.cores * size // EIGHTHS,
                memory=device.memory * size // EIGHTHS // MIB * MIB)
        for kind, size in PARTS.items() for number in range(EIGHTHS // size)
    ]  # fmt: skip
    return [one for one in found if one.cores and one.memory]


def counted_out(device: Device, in_use: Collection[str]) -> str:
    """Why the card's counter leaves no room for the device beside those with the names `in_use`; "" where it does."""
    shared = name_of(device.card)
    parts = {name for name in in_use if name.startswith(f"{shared}-")}
    if not device.part:
        return "it serves parts now" if parts else ""
    if shared in in_use or device.name in parts:
        return "it serves shares now" if shared in in_use else "in use"
    free = EIGHTHS - sum(PARTS.get(name[len(shared) + 1 :].partition("-")[0], 0) for name in parts)
    return "" if device.eighths <= free else f"{free} eighths of it free"


def _pcie_root(card: Card, sys_root: str) -> str:
    """The card's PCIe root complex, such as pci0000:00, as all drivers name it; "" where sysfs does not have it."""
    path = os.path.realpath(f"{sys_root}/bus/pci/devices/{card.bus_id.lower()}")
    return next((part for part in path.split("/") if part.startswith("pci") and ":" in part), "")


def slices(
    offered: list[Device], node: str, node_uid: str, driver_version: str, effect: str, parts: bool = False
) -> list[Object]:
    """The ResourceSlices of the node, without generation. None where there is no device. With `parts` the last ones
    have the counters: Kubernetes has no slice with devices and counters."""
    everything = [*offered, *(part for device in offered for part in parts_of(device) if parts)]
    listed: list[Object] = [
        {"devices": [described(device, driver_version, effect, parts) for device in some]}
        for some in _split(everything, MAX_DEVICES)
    ]  # fmt: skip
    if parts:
        sets = [{"name": name_of(device.card), "counters": _counters(EIGHTHS)} for device in offered]
        listed += [{"sharedCounters": some} for some in _split(sets, MAX_COUNTER_SETS)]
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid, "controller": True}
    return [
        {
            "apiVersion": API_VERSION, "kind": "ResourceSlice",
            "metadata": {"name": slice_name(node, number), "ownerReferences": [owner]},
            "spec": {
                "driver": DRIVER, "nodeName": node,
                "pool": {"name": node, "resourceSliceCount": len(listed)},
                **content,
            },
        }
        for number, content in enumerate(listed)
    ]  # fmt: skip


def _split(items: list[T], size: int) -> list[list[T]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def _counters(eighths: int) -> Object:
    return {"eighths": {"value": str(eighths)}}


def slice_name(node: str, number: int) -> str:
    return f"{node}-{DRIVER}-{number}"


def described(device: Device, driver_version: str, effect: str, counted: bool = False) -> Object:
    """The device as a slice has it, with quantities in the form in which the server returns them. `counted`: it draws
    on the counter of its card."""
    shared: Object = {} if device.part else {"allowMultipleAllocations": True}
    made: Object = {
        "name": device.name, **shared,
        "attributes": attributes(device, driver_version),
        "capacity": {
            "cores": _capacity(device, device.cores, 1), "memory": _capacity(device, device.memory, MIB),
        },
    }  # fmt: skip
    if counted:
        made["consumesCounters"] = [{"counterSet": name_of(device.card), "counters": _counters(device.eighths)}]
    if device.ill:
        made["taints"] = [taint(effect if device.faulty else NO_SCHEDULE)]
    return made


def taint(effect: str) -> Object:
    return {"key": TAINT, "effect": effect}


def _capacity(device: Device, value: int, step: int) -> Object:
    """A claim that requests none of it gets all of it. A part is given as it is."""
    if device.part:
        return {"value": canonical(value)}
    bounds = {"min": canonical(step), "max": canonical(value), "step": canonical(step)}
    return {"value": canonical(value), "requestPolicy": {"default": canonical(value), "validRange": bounds}}


def attributes(device: Device, driver_version: str = "") -> Object:
    """Those that are known, in the driver's own domain where a name has none."""
    card = device.card
    found: Object = {"uuid": {"string": card.uuid[:MAX_TEXT]}, "model": {"string": card.name[:MAX_TEXT]}}
    if device.part:
        found["part"] = {"string": device.kind}
    if card.architecture:
        found["architecture"] = {"string": card.architecture[:MAX_TEXT]}
    for name, text in (("driverVersion", driver_version), ("cudaDriverVersion", card.cuda_version)):
        if version := _version(text):
            found[name] = {"version": version}
    if card.numa >= 0:
        found["numaNode"] = {"int": card.numa}
    if card.parent:
        found.update({"profile": {"string": card.profile}, "parentUUID": {"string": card.parent[:MAX_TEXT]}})
    if device.nvlink_group:
        found["nvlinkGroup"] = {"string": device.nvlink_group}
    if device.pcie_root:
        found["resource.kubernetes.io/pcieRoot"] = {"string": device.pcie_root}
    return found


def _version(text: str) -> str:
    """A driver's version as a semantic one, which has three numbers without leading zeros; "" for another text."""
    parts = text.split(".")
    if len(parts) > 3 or not all(part.isascii() and part.isdigit() for part in parts):
        return ""
    return ".".join(str(int(part)) for part in [*parts, "0", "0"][:3])
