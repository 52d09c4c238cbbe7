"""A node as the extender sees it: its cards, its policy, its labels, and what it says that it holds.

Belongs here: JSON of a node -> NodeCards and Holdings, strictly. A node with a damaged or missing annotation has no
cards, and the reason is kept for the answer. Not here: which pods count on it (vgpu.plugin.scheduler.cluster).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from vgpu.config import records
from vgpu.config.dialects import registration
from vgpu.config.errors import VgpuError
from vgpu.config.fields import Fields
from vgpu.config.inventory import Card, Device
from vgpu.config.request import MAX_SIZE, WHOLE_CARD
from vgpu.hook.placement.placement import Commitment, Policy
from vgpu.plugin.apiserver import pod_objects

MAX_CARDS = 128
MIB = 1 << 20
_DO = "look at the device plugin of the node"


class Held(NamedTuple):
    """What one card owes: percent of cores, bytes, and whether it is held whole."""

    cores: int = 0
    memory: int = 0
    whole: bool = False

    def plus(self, other: Held) -> Held:
        return Held(self.cores + other.cores, self.memory + other.memory, self.whole or other.whole)

    def minus(self, other: Held) -> Held:
        """What remains when a holder of `other` goes."""
        cores, memory = max(self.cores - other.cores, 0), max(self.memory - other.memory, 0)
        return Held(cores, memory, self.whole and not other.whole)

    def at_least(self, other: Held) -> Held:
        """The larger of both in every part."""
        return Held(max(self.cores, other.cores), max(self.memory, other.memory), self.whole or other.whole)

    def commitment(self) -> Commitment:
        return Commitment(self.cores, self.memory, self.whole)


FREE = Held()


def sum_of(one: Held, others: list[Held]) -> Held:
    for other in others:
        one = one.plus(other)
    return one


_SHAPES: dict[tuple[object, ...], int] = {}  # each shape of a node -> its number, which is quicker to compare
Usage = dict[str, Held]  #: by a card's uuid


class NodeCards:
    """`all_cards` in the order of their indexes, and those of them that are not `unhealthy` (uuid -> why) as `cards`.

    `problem` says why a node without cards has none.
    `shape` is a number, equal for nodes that differ only in names, uuids and holdings.
    """

    __slots__ = (
        "all_cards", "cards", "driver", "name", "place_of", "policy", "problem", "shape", "split", "unhealthy",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        cards: list[Card],
        policy: Policy | None = None,
        split: int = 2,
        unhealthy: dict[str, str] | None = None,
        driver: str = "",
        problem: str = "",
    ) -> None:
        self.name = name
        self.policy = policy or Policy()
        self.split = split
        self.unhealthy = unhealthy or {}
        self.all_cards = sorted(cards, key=lambda card: (card.index, card.uuid))
        self.cards = [card for card in self.all_cards if card.uuid not in self.unhealthy]
        self.driver = driver
        self.problem = problem or ("" if self.cards else _no_healthy_card(self.unhealthy) or "no card")
        self.place_of = {card.uuid: at for at, card in enumerate(self.cards)}
        self.shape = _SHAPES.setdefault(self._shape(), len(_SHAPES))

    def _shape(self) -> tuple[object, ...]:
        rows = tuple(
            (card.index, card.name, card.memory, card.numa, self.unhealthy.get(card.uuid),
             tuple(card.links.get(other.uuid) for other in self.all_cards))
            for card in self.all_cards
        )  # fmt: skip
        return rows, self.policy.name, self.policy.cores_scaling, self.policy.memory_scaling, self.split

    def held(self, usage: Usage) -> tuple[Held, ...]:
        """What each card owes, in the order of `cards`."""
        return tuple([usage.get(card.uuid, FREE) for card in self.cards])


def _no_healthy_card(unhealthy: dict[str, str]) -> str:
    return "no healthy card: " + "; ".join(sorted(set(unhealthy.values()))) if unhealthy else ""


class Holdings(NamedTuple):
    """What the node itself says that it holds: by pod uid, of all other containers, and of each card together.

    A node with more pods than fit into the annotation writes the sums alone.
    """

    pods: dict[str, Usage]
    other: Usage
    sums: Usage


def read_cards(name: str, annotations: dict[str, str]) -> NodeCards:
    """The node's cards from its annotation; without cards where it has none or a damaged one."""
    text = annotations.get(registration.OWN)
    if text is None:
        return NodeCards(name, [], problem=f"the node has no annotation {registration.OWN}")
    try:
        return _cards(name, Fields(records.decode_object(text.encode(), registration.OWN), registration.OWN, _DO))
    except VgpuError as error:
        return NodeCards(name, [], problem=str(error))


def _cards(name: str, fields: Fields) -> NodeCards:
    fields.version(registration.VERSION)
    listed = fields.objects("cards")
    if len(listed) > MAX_CARDS:
        raise VgpuError(registration.OWN, expected=f"at most {MAX_CARDS} cards", found=len(listed))
    uuids = {str(item.whole("index")): item.text("uuid", empty=False) for item in listed}
    if len(uuids) != len(listed) or len(set(uuids.values())) != len(listed):
        raise VgpuError(registration.OWN, expected="cards of different indexes and uuids", found="one twice")
    cards = [_card(item, uuids) for item in listed]
    unhealthy = {item.text("uuid"): item.text("unhealthy") for item in listed if item.text("unhealthy")}
    policy = Policy(fields.text("policy"), _factor(fields, "cores"), _factor(fields, "memory"))
    split = fields.whole("split", 1, 1000)
    return NodeCards(name, cards, policy, split, unhealthy, fields.text("driver"))


def _factor(fields: Fields, key: str) -> float:
    value = fields.record.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise fields.wrong(key, "a scaling factor")
    return float(value)


def _card(fields: Fields, uuids: dict[str, str]) -> Card:
    index = fields.whole("index", 0, 1 << 16)
    links = {uuids[at]: link for at, link in fields.mapping("links").items() if at in uuids}
    memory = fields.whole("memory", 0, MAX_SIZE // MIB) * MIB
    device = Device(f"/dev/nvidia{index}", f"nvidia{index}", 195, index)
    return Card(fields.text("uuid"), index, index, "", fields.text("name"), memory, device,
                fields.whole("numa", -1, 1 << 16), links,
                parent=fields.text("parent") if "parent" in fields.record else "")  # fmt: skip


def read_holdings(annotations: dict[str, str], cards: NodeCards) -> Holdings | None:
    """What the node says that it holds; None where it says nothing, or nothing that can be read."""
    text = annotations.get(registration.HOLDINGS)
    if text is None or not cards.cards:
        return None
    try:
        fields = Fields(records.decode_object(text.encode(), registration.HOLDINGS), registration.HOLDINGS, _DO)
        fields.version(registration.VERSION)
        pods = fields.inner("pods")
        held = {uid: _usage(pods.inner(uid)) for uid in pods.record}
        return Holdings(held, _usage(fields.inner("other")), _usage(fields.inner("sums")))
    except VgpuError:
        return None


def _usage(fields: Fields) -> Usage:
    found = {}
    for uuid in fields.record:
        amounts: Any = fields.record[uuid]
        right = isinstance(amounts, list) and len(amounts) == 2
        if not right or not all(type(one) is int and 0 <= one < MAX_SIZE for one in amounts):
            raise fields.wrong(uuid, "[cores, MiB]")
        cores, mib = amounts
        found[uuid] = Held(cores, mib * MIB, cores >= WHOLE_CARD and mib == 0)
    return found


def labels_of(value: Any) -> dict[str, str]:
    meta = value.get("metadata") if isinstance(value, dict) else None
    labels = meta.get("labels") if isinstance(meta, dict) else None
    return {key: text for key, text in labels.items() if isinstance(text, str)} if isinstance(labels, dict) else {}


def annotations_of(value: Any) -> dict[str, str]:
    return pod_objects.annotations_of(value)
