"""One container's allocation: the cards that it gets and their limits. A value without policy.

Belongs here: the value, and its making from a request and its placement. Not here: the choice of cards (placement). The
plan, the limits file and the claim are derived from it.
"""

from __future__ import annotations

from vgpu.config.inventory import Card
from vgpu.config.limits import UNLIMITED, CardLimit
from vgpu.config.request import Request


class Allocation:
    """`cards`, each with its limits in `limits` (same order). `exclusive`: whole cards, without limits.

    `presence`: card uuid -> its presence file on the host, of a share. `region`: (pid, start time) of the init of a
    container whose usage region this one shares, None for a region of its own. The ledger chooses both.
    """

    __slots__ = ("cards", "exclusive", "limits", "presence", "region")

    def __init__(self, cards: list[Card], limits: list[CardLimit], exclusive: bool) -> None:
        self.cards = cards
        self.limits = limits
        self.exclusive = exclusive
        self.presence: dict[str, str] = {}
        self.region: tuple[int, int] | None = None


def from_request(request: Request, cards: list[Card], virtual_memory: bool = False) -> Allocation:
    """`request`, placed on `cards`. With `virtual_memory` allocations on a full card may be managed memory."""
    if request.exclusive:
        return Allocation(cards, [CardLimit(card.uuid, UNLIMITED, 100, 100) for card in cards], True)
    cores, ceiling = request.cores, request.core_limit
    limits = [CardLimit(card.uuid, request.memory_of(card.uuid), cores, ceiling, virtual_memory) for card in cards]
    return Allocation(cards, limits, False)
