"""What the node advertises: settings and cards -> resources with their device ids.

Belongs here: names, units and counts of both modes, the form of an id, and the limit of kubelet's message. The
functions are pure. The device plugin advertises these resources; vgpuctl checks with them whether the plugin would
refuse a configuration. Does not belong here: which card an allocation gets, which vgpu.hook.placement decides.

A device id stands for an *amount*; the card in it is a preference. The id depends only on the card's uuid and a running
number, so a reboot, another order of the cards or a change of a card's health does not change it. This matters because
kubelet keeps ids in its checkpoint: if the ids of a pod are gone, kubelet fails the pod for good.

In mode gpu a card is split into K units. Each unit is worth 1/K of the card's memory and cores after scaling, but never
100 cores: that would be the whole card, without limits (vgpu.config.request). Such a unit is a share of 99 cores with
its memory. K = 1 means whole cards.

With the MIG strategy mixed each instance is one id of the resource of its profile, and no part of another resource.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from vgpu.config import ranges
from vgpu.config.errors import VgpuError
from vgpu.config.inventory import Card
from vgpu.config.request import MIG_RESOURCE, WHOLE_CARD
from vgpu.config.settings import Settings
from vgpu.hook.placement.placement import Policy

MESSAGE_LIMIT = 4 << 20  #: kubelet's gRPC client accepts no larger message
MARGIN = MESSAGE_LIMIT // 32
LARGEST_SHARE = WHOLE_CARD - 1
MIB = 1 << 20
TAG_LENGTH = 8
UNHEALTHY = "Unhealthy"


class Device(NamedTuple):
    """One id as kubelet sees it. `card` is a uuid; `numa` is -1 if the NUMA node is unknown."""

    id: str
    card: str
    numa: int


@dataclass(frozen=True)
class Slot:
    """A card's part of a resource: the `count` ids `<tag>-0` to `<tag>-<count - 1>`."""

    card: Card
    tag: str
    count: int

    def ids(self) -> list[str]:
        return [f"{self.tag}-{number}" for number in range(self.count)]


@dataclass(frozen=True)
class Resource:
    """A resource of kubelet's. `unit` is the amount of one id: percent, bytes, or 1 for gpu and mig."""

    name: str
    kind: str
    unit: int
    slots: tuple[Slot, ...]

    @property
    def devices(self) -> list[Device]:
        """All devices of the resource. There may be 100,000, so the list is created for each call and not kept."""
        return [Device(one, slot.card.uuid, slot.card.numa) for slot in self.slots for one in slot.ids()]

    @cached_property
    def by_tag(self) -> dict[str, Slot]:
        return {slot.tag: slot for slot in self.slots}

    def place_of(self, device_id: str) -> tuple[Slot, int] | None:
        """The card's slot and the number of an id; None for an id that was never advertised."""
        tag, _, digits = device_id.partition("-")
        slot = self.by_tag.get(tag)
        if slot is None or not ranges.is_number(digits):
            return None
        number = int(digits)
        return (slot, number) if number < slot.count and str(number) == digits else None

    @property
    def stem(self) -> str:
        """The kind in a file's name. A profile has dots, and another profile may begin with it: 1g.10gb, 1g.10gb.me."""
        return self.name.rpartition("/")[2].replace(".", "_") if self.kind == "mig" else self.kind

    def count(self) -> int:
        return sum(slot.count for slot in self.slots)

    def size(self) -> int:
        """Bytes of the ListAndWatchResponse when all devices are unhealthy, which is the longer word."""
        return sum(_size_of(slot) for slot in self.slots)


def advertised(settings: Settings, cards: list[Card], known: dict[str, str] | None = None) -> list[Resource]:
    """The node's resources; VgpuError if a card is smaller than a unit, or if the list is too long for kubelet.

    `known`: the tags that cards have already, by uuid.
    """
    policy = policy_of(settings)
    tags = tags_of([card.uuid for card in cards], known or {})
    offered: list[Resource] = []
    if settings.text("resources.mig_strategy") == "mixed":
        for profile in sorted({card.profile for card in cards} - {""}):
            instances = [card for card in cards if card.profile == profile]
            offered.append(_resource(MIG_RESOURCE + profile, "mig", 1, instances, tags, [1] * len(instances)))
        cards = [card for card in cards if not card.parent]
    if settings.text("resources.mode") == "gpu":
        split = int(settings.number("resources.split_count"))
        return [_resource(settings.text("resources.gpu_name"), "gpu", 1, cards, tags, [split] * len(cards)), *offered]
    core_unit, memory_unit = (int(settings.number(f"resources.{name}_unit")) for name in ("core", "memory"))
    cores = [policy.cores() // core_unit for _ in cards]
    memory = [policy.memory(card) // memory_unit for card in cards]
    return [
        _resource(settings.text("resources.core_name"), "cores", core_unit, cards, tags, cores),
        _resource(settings.text("resources.memory_name"), "memory", memory_unit, cards, tags, memory),
        *offered,
    ]


def policy_of(settings: Settings) -> Policy:
    return Policy(
        settings.text("placement.policy"), settings.number("scaling.cores"), settings.number("scaling.memory")
    )


def worth(settings: Settings, card: Card) -> tuple[int, int]:
    """(cores, bytes) of one gpu unit of `card`; (100, 0) is the whole card."""
    split = int(settings.number("resources.split_count"))
    if split == 1:
        return WHOLE_CARD, 0
    policy = policy_of(settings)
    cores = min(max(policy.cores() // split, 1), LARGEST_SHARE)
    memory = min(policy.memory(card) // split, card.memory)
    return cores, max(memory // MIB * MIB, MIB)


def _resource(name: str, kind: str, unit: int, cards: list[Card], tags: dict[str, str], counts: list[int]) -> Resource:
    slots = tuple(Slot(card, tags[card.uuid], count) for card, count in zip(cards, counts))
    empty = [slot.card for slot in slots if not slot.count]
    if empty:
        found = f"{empty[0].label()}, which is smaller"
        raise VgpuError(name, expected=f"cards of at least one unit ({_unit_text(kind, unit)})", found=found,
                        do=f"set {_SETTINGS[kind]} to a smaller unit")  # fmt: skip
    resource = Resource(name, kind, unit, slots)
    _check_size(resource)
    return resource


_SETTINGS = {"cores": "resources.core_unit", "memory": "resources.memory_unit", "gpu": "resources.split_count"}


def _unit_text(kind: str, unit: int) -> str:
    return f"{unit // MIB}Mi" if kind == "memory" else str(unit)


def _check_size(resource: Resource) -> None:
    if resource.size() <= MESSAGE_LIMIT - MARGIN:
        return
    expected = f"a list of devices within kubelet's {MESSAGE_LIMIT // MIB} MiB"
    found = f"{resource.count()} devices, {resource.size()} bytes"
    raise VgpuError(resource.name, expected=expected, found=found, do=_advice(resource))


def _advice(resource: Resource) -> str:
    """The setting that would fit. With a unit n times as large, a card has 1/n of its ids."""
    if resource.kind == "gpu":
        return "set resources.split_count lower"
    sizes = [1 << power for power in range(1, 31)] if resource.kind == "memory" else [2, 4, 5, 10, 20, 25, 50, 100]
    for unit in (size * MIB if resource.kind == "memory" else size for size in sizes):
        if unit > resource.unit:
            slots = tuple(Slot(slot.card, slot.tag, slot.count * resource.unit // unit) for slot in resource.slots)
            if Resource(resource.name, resource.kind, unit, slots).size() <= MESSAGE_LIMIT - MARGIN:
                return f"set {_SETTINGS[resource.kind]}: {_unit_text(resource.kind, unit)} or more"
    return f"set scaling.{resource.kind} lower"


def tag_of(uuid: str) -> str:
    """The text for a card in ids, computed from the uuid alone. It is short because kubelet's message has a limit."""
    return f"{zlib.crc32(uuid.encode()):08x}"


def is_tag(text: str) -> bool:
    return len(text) == TAG_LENGTH and all(c in "0123456789abcdef" for c in text)


def tags_of(uuids: Iterable[str], known: dict[str, str]) -> dict[str, str]:
    """uuid -> tag. `known` cards keep theirs. Of two new cards with one checksum, the later uuid gets the next tag."""
    tags = dict(known)
    taken = set(known.values())
    for uuid in sorted(set(uuids) - set(known)):
        tag = tag_of(uuid)
        while tag in taken:
            tag = f"{(int(tag, 16) + 1) % (1 << 32):08x}"
        tags[uuid] = tag
        taken.add(tag)
    return tags


def _size_of(slot: Slot) -> int:
    """Bytes of a card's devices in protobuf. Each field has one byte of key, one byte of length, and its content."""
    topology = 0
    if slot.card.numa >= 0:
        node = 1 + _varint(slot.card.numa) if slot.card.numa else 0  # protobuf does not write a 0
        topology = 2 + 2 + node
    fixed = 2 + len(slot.tag) + 1 + 2 + len(UNHEALTHY) + topology
    total, digits, low = 0, 1, 0
    while low < slot.count:
        high = min(10**digits, slot.count)
        total += (high - low) * (2 + fixed + digits)
        digits, low = digits + 1, high
    return total


def _varint(value: int) -> int:
    return max((value.bit_length() + 6) // 7, 1)
