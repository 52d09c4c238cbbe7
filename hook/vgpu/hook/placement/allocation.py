"""One container's allocation: what it gets, as the plan needs it. A value, no policy.

Made by the ledger from a request and its placement; the plan, the limits file and the claim are derived from it.
"""

from __future__ import annotations

from vgpu.config.inventory import Card
from vgpu.config.limits import UNLIMITED, CardLimit
from vgpu.config.request import Request


class Allocation:
    """`cards`, each with the limits in `limits` (same order); `exclusive`: whole cards, the driver without limits."""

    __slots__ = ("cards", "exclusive", "limits")

    def __init__(self, cards: list[Card], limits: list[CardLimit], exclusive: bool) -> None:
        self.cards = cards
        self.limits = limits
        self.exclusive = exclusive


def from_request(request: Request, cards: list[Card], virtual_memory: bool = False) -> Allocation:
    """`request`, placed on `cards`. `virtual_memory`: what a full card has no room for may lie in managed memory."""
    if request.exclusive:
        return Allocation(cards, [CardLimit(card.uuid, UNLIMITED, 100, 100) for card in cards], True)
    cores, ceiling = request.cores, request.core_limit
    limits = [CardLimit(card.uuid, request.memory_of(card.uuid), cores, ceiling, virtual_memory) for card in cards]
    return Allocation(cards, limits, False)
