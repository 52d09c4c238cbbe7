"""A node's cards in its own annotations, in the form that each scheduler extender reads.

Belongs here: the annotation keys and values, pure. When they are patched, and that nothing is
patched that has not changed, is the plugin's (vgpu.plugin.apiserver). Times are seconds since 1970.
"""

from __future__ import annotations

import time

from vgpu.config import records
from vgpu.config.inventory import Card

VERSION = 1
OWN = "vgpu.io/node-cards"
HAMI, HAMI_HANDSHAKE = "hami.io/node-nvidia-register", "hami.io/node-handshake"
VOLCANO, VOLCANO_HANDSHAKE = "volcano.sh/node-vgpu-register", "volcano.sh/node-vgpu-handshake"
TYDIC, TYDIC_HEARTBEAT = "tydic.io/nvidia-device-register", "tydic.io/node-gpu-heartbeat"
HEARTBEATS = (HAMI_HANDSHAKE, VOLCANO_HANDSHAKE, TYDIC_HEARTBEAT)
BEATING = ("nvidia", "hami-2.7", "volcano")  #: the dialects whose scheduler forgets a node that falls silent
MODE = "hami-core"  #: how HAMi and Volcano call cards that are shared by a library in the container


class Offer:
    """What the node has: its cards, why some of them are unhealthy, and how far they may be shared.

    `reasons`: uuid -> why, absent or "" for a healthy card. `cores` and `memory` are the scaling factors, `split` the
    vGPUs of one card.
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
    """All annotations that register `offer` in `dialects`, heartbeats included."""
    made: dict[str, str] = {}
    if "vgpu" in dialects:
        made[OWN] = own(offer)
    if "nvidia" in dialects:
        made.update({TYDIC: _tydic(offer), TYDIC_HEARTBEAT: str(int(now * 1e9))})
    if "hami" in dialects:
        made[HAMI] = _hami(offer)
    elif "hami-2.7" in dialects:
        made.update({HAMI: _hami_text(offer), HAMI_HANDSHAKE: _reported(now)})
    if "volcano" in dialects:
        made.update({VOLCANO: _volcano(offer), VOLCANO_HANDSHAKE: _reported(now)})
    return made


def _reported(now: float) -> str:
    return time.strftime("Reported %Y-%m-%d %H:%M:%S", time.gmtime(now))


# Our own


def own(offer: Offer) -> str:
    """All that placement needs to know of the node; links by card index, sizes in MiB."""
    index = {card.uuid: str(card.index) for card in offer.cards}
    cards = [
        {
            "uuid": card.uuid, "index": card.index, "name": card.name, "memory": card.memory >> 20, "numa": card.numa,
            "links": {index[uuid]: link for uuid, link in card.links.items() if uuid in index},
            "unhealthy": offer.reasons.get(card.uuid, ""),
        }
        for card in offer.cards
    ]  # fmt: skip
    record = {
        "version": VERSION, "driver": offer.driver, "policy": offer.policy, "cores": offer.cores,
        "memory": offer.memory, "split": offer.split, "cards": cards,
    }  # fmt: skip
    return records.encode(record)


# Others'


def _tydic(offer: Offer) -> str:
    """The fork's: cards in the order of their indexes, memory in the units of its resource, 1 MiB."""
    cards = [
        {"id": card.uuid, "core": 100, "memory": _mib(card, offer), "type": card.name, "isMig": False,
         "health": offer.healthy(card)}
        for card in offer.cards
    ]  # fmt: skip
    return records.encode(cards)


def _hami(offer: Offer) -> str:
    """From HAMi 2.8 on. Zero values are left out, as its own encoder does."""
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
        f"{_truth(offer.healthy(card))},{card.index},{MODE}:"
        for card in offer.cards
    )


def _volcano(offer: Offer) -> str:
    """UUID,count,MiB,type,health,mode: of each card; Volcano knows a card by its place here."""
    return "".join(
        f"{card.uuid},{offer.split},{_mib(card, offer)},{_model(card)},{_truth(offer.healthy(card))},{MODE}:"
        for card in offer.cards
    )


def _mib(card: Card, offer: Offer) -> int:
    return int((card.memory >> 20) * offer.memory)


def _percent(offer: Offer) -> int:
    return int(100 * offer.cores + 1e-6)


def _model(card: Card) -> str:
    """As HAMi names models; what would end a field or a card in its text form is left out."""
    name = card.name.replace(",", " ").replace(":", " ")
    return name if name.startswith("NVIDIA") else f"NVIDIA-{name}"


def _truth(value: bool) -> str:
    return "true" if value else "false"
