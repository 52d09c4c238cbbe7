"""The register annotations: a node's cards in its own annotations, in the form that each scheduler extender reads.

Belongs here: the annotation keys and values, as pure functions. Not here: when the annotations are patched, which is
the plugin's (vgpu.plugin.apiserver). Times are seconds since 1970.
"""

from __future__ import annotations

import time

from vgpu.config import records
from vgpu.config.inventory import Card

VERSION = 1
OWN = "vgpu.io/node-cards"
HOLDINGS, MAX_HOLDINGS = "vgpu.io/node-holdings", 32 << 10  #: the latter in characters
HAMI, HAMI_HANDSHAKE = "hami.io/node-nvidia-register", "hami.io/node-handshake"
VOLCANO, VOLCANO_HANDSHAKE = "volcano.sh/node-vgpu-register", "volcano.sh/node-vgpu-handshake"
TYDIC, TYDIC_HEARTBEAT = "tydic.io/nvidia-device-register", "tydic.io/node-gpu-heartbeat"
HEARTBEATS = (HAMI_HANDSHAKE, VOLCANO_HANDSHAKE, TYDIC_HEARTBEAT)
BEATING = ("nvidia", "hami-2.7", "volcano")  #: the dialects whose scheduler forgets a node without heartbeats
MODE = "hami-core"  #: the name in HAMi and Volcano of cards that a library in the container shares


class Offer:
    """What the node offers: its cards, why some of them are unhealthy, and how far they may be shared.

    `reasons` maps uuids to the reason, absent or "" for a healthy card. `cores` and `memory` are the scaling
    factors, `split` is the number of vGPUs of one card.
    """

    __slots__ = ("cards", "cores", "driver", "memory", "policy", "reasons", "split")

    def __init__(
        self,
        cards: list[Card],
        reasons: dict[str, str],
        driver: str,
        policy: str = "binpack",
        cores: float = 1.0,
        memory: float = 1.0,
        split: int = 2,
    ) -> None:
        self.cards = sorted(cards, key=lambda card: card.index)
        self.reasons = reasons
        self.driver = driver
        self.policy = policy
        self.cores = cores
        self.memory = memory
        self.split = split

    def healthy(self, card: Card) -> bool:
        return not self.reasons.get(card.uuid)


def registered(offer: Offer, dialects: list[str], now: float) -> dict[str, str]:
    """All annotations that register `offer` in `dialects`, with the heartbeats."""
    annotations: dict[str, str] = {}
    if "vgpu" in dialects:
        annotations[OWN] = own(offer)
    if "nvidia" in dialects:
        annotations.update({TYDIC: _tydic(offer), TYDIC_HEARTBEAT: str(int(now * 1e9))})
    if "hami" in dialects:
        annotations[HAMI] = _hami(offer)
    elif "hami-2.7" in dialects:
        annotations.update({HAMI: _hami_text(offer), HAMI_HANDSHAKE: _reported(now)})
    if "volcano" in dialects:
        annotations.update({VOLCANO: _volcano(offer), VOLCANO_HANDSHAKE: _reported(now)})
    return annotations


def _reported(now: float) -> str:
    return time.strftime("Reported %Y-%m-%d %H:%M:%S", time.gmtime(now))


# vgpu's own


def own(offer: Offer) -> str:
    """All that placement needs of the node; links by card index, sizes in MiB."""
    index = {card.uuid: str(card.index) for card in offer.cards}
    cards = [
        {
            "uuid": card.uuid, "index": card.index, "name": card.name, "memory": card.memory >> 20, "numa": card.numa,
            "links": {index[uuid]: link for uuid, link in card.links.items() if uuid in index},
            "unhealthy": offer.reasons.get(card.uuid, ""),
            **({"parent": card.parent} if card.parent else {}),
        }
        for card in offer.cards
    ]  # fmt: skip
    record = {
        "version": VERSION, "driver": offer.driver, "policy": offer.policy, "cores": offer.cores,
        "memory": offer.memory, "split": offer.split, "cards": cards,
    }  # fmt: skip
    return records.encode(record)


Amounts = dict[str, tuple[int, int]]  #: by a card's uuid: cores in percent and MiB; a whole card is (100, 0)


def holdings(pods: dict[str, Amounts], other: Amounts, now: float) -> str:
    """What the node holds: of each pod by its uid, and of all other containers.

    The time is a sign of life. Where the text would be too long, it has the sums of each card alone.
    """
    record = {"version": VERSION, "time": int(now), "pods": pods, "other": other, "sums": {}}
    text = records.encode(record)
    if len(text) <= MAX_HOLDINGS:
        return text
    sums: Amounts = {}
    for amounts in (*pods.values(), other):
        for uuid, (cores, mib) in amounts.items():
            before = sums.get(uuid, (0, 0))
            sums[uuid] = (before[0] + cores, before[1] + mib)
    return records.encode({**record, "pods": {}, "other": {}, "sums": sums})


# Those of other projects


def _tydic(offer: Offer) -> str:
    """The form of gpu-admission's fork: cards by index, memory in the units of its resource, 1 MiB."""
    cards = [
        {"id": card.uuid, "core": 100, "memory": _mib(card, offer), "type": card.name, "isMig": False,
         "health": offer.healthy(card)}
        for card in offer.cards
    ]  # fmt: skip
    return records.encode(cards)


def _hami(offer: Offer) -> str:
    """From HAMi 2.8 on. Zero values are left out, as HAMi's encoder does."""
    cards = [
        {"id": card.uuid, "index": card.index, "count": offer.split, "devmem": _mib(card, offer),
         "devcore": _percent(offer), "type": _model(card), "numa": max(card.numa, 0), "mode": MODE,
         "health": offer.healthy(card)}
        for card in offer.cards
    ]  # fmt: skip
    return records.encode([{name: value for name, value in card.items() if value} for card in cards])


def _hami_text(offer: Offer) -> str:
    """Up to HAMi 2.7: UUID,count,MiB,cores,type,numa,health,index,mode: of each card."""
    return "".join(
        f"{card.uuid},{offer.split},{_mib(card, offer)},{_percent(offer)},{_model(card)},{max(card.numa, 0)},"
        f"{_boolean(offer.healthy(card))},{card.index},{MODE}:"
        for card in offer.cards
    )


def _volcano(offer: Offer) -> str:
    """UUID,count,MiB,type,health,mode: of each card; Volcano identifies a card by its place here."""
    return "".join(
        f"{card.uuid},{offer.split},{_mib(card, offer)},{_model(card)},{_boolean(offer.healthy(card))},{MODE}:"
        for card in offer.cards
    )


def _mib(card: Card, offer: Offer) -> int:
    return int((card.memory >> 20) * offer.memory)


def _percent(offer: Offer) -> int:
    return int(100 * offer.cores + 1e-6)


def _model(card: Card) -> str:
    """The model's name as in HAMi, without the characters that end a field or a card in its text form."""
    name = card.name.replace(",", " ").replace(":", " ")
    return name if name.startswith("NVIDIA") else f"NVIDIA-{name}"


def _boolean(value: bool) -> str:
    return "true" if value else "false"
