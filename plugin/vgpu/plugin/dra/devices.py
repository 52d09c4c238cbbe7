"""The node's cards as devices of Dynamic Resource Allocation.

Belongs here: a device's name, attributes, capacity and taint, and the slices that list the devices, as pure functions.
Not here: writing the slices (publisher).
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass

from vgpu.config.inventory import Card
from vgpu.config.prepared import DRIVER
from vgpu.config.request import WHOLE_CARD
from vgpu.hook.placement.placement import Policy, nvlink_groups
from vgpu.plugin.apiserver.client import Object

API_VERSION = "resource.k8s.io/v1"
MAX_DEVICES = 64  #: of a slice whose devices may have taints
MAX_TEXT = 64  #: characters of an attribute
NO_SCHEDULE = "NoSchedule"
TAINT = f"{DRIVER}/ill"
MIB = 1 << 20
_UNITS = ((1 << 40, "Ti"), (1 << 30, "Gi"), (MIB, "Mi"))


@dataclass(frozen=True)
class Device:
    """A card that is offered: its capacity is `cores` percent and `memory` bytes, whole MiB. `ill`: why no container
    should get it now, or "". `faulty`: the card itself is out of order, and not only its driver absent.

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

    def is_whole(self, cores: int, memory: int) -> bool:
        return cores >= WHOLE_CARD and memory >= self.card.memory // MIB * MIB

    @property
    def name(self) -> str:
        """The device's name. It depends only on the card, because allocations name it over reboots."""
        return name_of(self.card)


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


def _pcie_root(card: Card, sys_root: str) -> str:
    """The card's PCIe root complex, such as pci0000:00, as all drivers name it; "" where sysfs does not have it."""
    path = os.path.realpath(f"{sys_root}/bus/pci/devices/{card.bus_id.lower()}")
    return next((part for part in path.split("/") if part.startswith("pci") and ":" in part), "")


def slices(devices: list[Device], node: str, node_uid: str, driver_version: str, effect: str) -> list[Object]:
    """The ResourceSlices of the node, without generation. None where there is no device."""
    parts = [devices[start : start + MAX_DEVICES] for start in range(0, len(devices), MAX_DEVICES)]
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid, "controller": True}
    return [
        {
            "apiVersion": API_VERSION, "kind": "ResourceSlice",
            "metadata": {"name": slice_name(node, number), "ownerReferences": [owner]},
            "spec": {
                "driver": DRIVER, "nodeName": node,
                "pool": {"name": node, "resourceSliceCount": len(parts)},
                "devices": [described(device, driver_version, effect) for device in part],
            },
        }
        for number, part in enumerate(parts)
    ]  # fmt: skip


def slice_name(node: str, number: int) -> str:
    return f"{node}-{DRIVER}-{number}"


def described(device: Device, driver_version: str, effect: str) -> Object:
    """The device as a slice has it, with quantities in the form in which the server returns them."""
    made: Object = {
        "name": device.name, "allowMultipleAllocations": True,
        "attributes": _attributes(device, driver_version),
        "capacity": {
            "cores": _capacity(device.cores, 1), "memory": _capacity(device.memory, MIB),
        },
    }  # fmt: skip
    if device.ill:
        made["taints"] = [taint(effect if device.faulty else NO_SCHEDULE)]
    return made


def taint(effect: str) -> Object:
    return {"key": TAINT, "effect": effect}


def _capacity(value: int, step: int) -> Object:
    """A claim that requests none of it gets all of it."""
    bounds = {"min": canonical(step), "max": canonical(value), "step": canonical(step)}
    return {"value": canonical(value), "requestPolicy": {"default": canonical(value), "validRange": bounds}}


def canonical(amount: int) -> str:
    """A quantity as Kubernetes writes it: with the largest binary unit of which it is a multiple."""
    return next((f"{amount // unit}{name}" for unit, name in _UNITS if amount and not amount % unit), str(amount))


def _attributes(device: Device, driver_version: str) -> Object:
    card = device.card
    found: Object = {"uuid": {"string": card.uuid[:MAX_TEXT]}, "model": {"string": card.name[:MAX_TEXT]}}
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
