"""Totals: the sums of what each card owes, and how one container's part adds to them.

Belongs here: adding claims, which count in every start. Not here: which placed grants count besides (commitments).
"""

from __future__ import annotations

from vgpu.config.claims import Claim
from vgpu.config.limits import CardLimit
from vgpu.config.request import WHOLE_CARD
from vgpu.hook.placement.placement import Commitment

Part = tuple[CardLimit, bool]  #: of one card, and whether it is a whole one


class Totals:
    """The commitments in `cards`, by uuid; `of_claims`, by the id of a grant: what its claim has of each card."""

    __slots__ = ("_of_pods", "cards", "of_claims")

    def __init__(self) -> None:
        self.cards: dict[str, Commitment] = {}
        self.of_claims: dict[str, list[Part]] = {}
        self._of_pods: set[tuple[str, str]] = set()

    def add(self, part: Part, name: str, pod: str = "") -> None:
        """Add one container's part of one card; `name` is the container's for messages, `pod` its pod's uid."""
        card, exclusive = part
        cores = WHOLE_CARD if exclusive else card.cores
        memory = 0 if exclusive else card.memory
        now = self.cards.get(card.uuid, Commitment())
        self.cards[card.uuid] = Commitment(
            now.cores + cores, now.memory + memory, now.exclusive or exclusive, (*now.holders, name),
            (*now.amounts, (cores, memory)),
        )  # fmt: skip
        self._of_pods.add((pod, card.uuid))

    def add_claim(self, claim: Claim) -> None:
        """Add the claim of a living container."""
        parts = []
        for card in claim.cards:
            cores, memory = claim.committed(card)
            parts.append((CardLimit(card.uuid, memory, cores, cores), claim.exclusive))
        for part in parts:
            self.add(part, claim.name or claim.container, claim.holder.pod_uid if claim.holder else "")
        self.of_claims.update((grant_id, parts) for grant_id in claim.grants)

    def add_excess(self, uuid: str, wanted: Commitment, has: Commitment, name: str, pod: str) -> None:
        """Add what a pod that `has` a part of the card still wants of it."""
        cores, memory = max(wanted.cores - has.cores, 0), max(wanted.memory - has.memory, 0)
        if has.cores >= WHOLE_CARD or not (cores or memory):
            return
        self.add((CardLimit(uuid, 0 if wanted.exclusive else memory, cores, 0), False), name, pod)
        self.cards[uuid].exclusive = self.cards[uuid].exclusive or wanted.exclusive

    def has(self, pod: str, uuid: str) -> bool:
        """Whether the pod has a part of the card."""
        return (pod, uuid) in self._of_pods
