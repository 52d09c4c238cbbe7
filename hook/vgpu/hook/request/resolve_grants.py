"""From a container's grants to its request: what schedulers chose and the pod's spec says, beside kubelet's amounts.

Belongs here: whose word counts for what. Cards: a scheduler's choice for this very container, which several dialects
must not contradict. Amounts: the grants'. Only what no grant is of (memory and cores beside vGPUs that kubelet merely
counts) comes from the spec, or from an annotation as far as the spec covers it: annotations are anybody's. Pure.
"""

from __future__ import annotations

from vgpu.config import grants
from vgpu.config.dialects import resources
from vgpu.config.dialects.placements import Choice, Chosen
from vgpu.config.dialects.resources import SpecAmounts
from vgpu.config.errors import VgpuError
from vgpu.config.grants import Grant
from vgpu.config.inventory import Card
from vgpu.config.request import WHOLE_CARD, Request, Wishes
from vgpu.config.settings import Settings
from vgpu.hook.placement.placement import NoFit, Policy

MIB = 1 << 20


class WantedGrants:
    """Grants to be claimed: resource -> grant id, and what annotations add: wishes and a ceiling of cores.

    `choices` are the schedulers', `limits` what the pod's spec says of this container, None where that is not known.
    """

    __slots__ = ("choices", "core_limit", "ids", "limits", "wishes")

    def __init__(
        self,
        ids: dict[str, str],
        core_limit: int,
        wishes: Wishes,
        choices: tuple[Choice, ...] = (),
        limits: dict[str, int] | None = None,
    ) -> None:
        self.ids = ids
        self.core_limit = core_limit
        self.wishes = wishes
        self.choices = choices
        self.limits = limits


class ResolvedGrants:
    """The request that a container's grants come to, and the grants with the share that is to be recorded of each."""

    __slots__ = ("grants", "request")

    def __init__(self, request: Request, grants: list[Grant]) -> None:
        self.request = request
        self.grants = grants


class Terms:
    """What the node's settings say of amounts: `trust` annotations beyond the spec, `proportional` memory for cores."""

    __slots__ = ("policy", "proportional", "trust")

    def __init__(self, policy: Policy, proportional: bool = False, trust: bool = False) -> None:
        self.policy = policy
        self.proportional = proportional
        self.trust = trust


def terms_of(settings: Settings, policy: Policy) -> Terms:
    proportional = settings.text("kubernetes.missing_memory") == "proportional"
    return Terms(policy, proportional, settings.text("kubernetes.scheduler_amounts") == "trust")


def resolve(mine: list[Grant], wanted: WantedGrants, cards: list[Card], terms: Terms) -> ResolvedGrants:
    """What the grants `mine` are worth together, on the cards that a scheduler chose if one did.

    A grant that was redeemed before keeps the share that it was given then.
    """
    fixed = chosen_cards(wanted.choices, cards)
    if not any(grant.share for grant in mine):
        mine = _with_shares(mine, wanted, _among(fixed or grants.preferred(mine), cards), terms)
    return ResolvedGrants(grants.join(mine, wanted.core_limit, wanted.wishes).fixed_on(fixed), mine)


def chosen_cards(choices: tuple[Choice, ...], cards: list[Card]) -> tuple[str, ...]:
    """The uuids of the cards chosen; NoFit for a card that is not here or choices that differ."""
    made = [(choice.key, tuple(_uuid(choice.key, chosen, cards) for chosen in choice.cards)) for choice in choices]
    for key, uuids in made[1:]:
        if set(uuids) != set(made[0][1]):
            expected, found = f"the cards of {made[0][0]}: {', '.join(made[0][1])}", ", ".join(uuids)
            raise NoFit(f"annotation {key}", expected=expected, found=found, do="let one scheduler place the pod")
    return made[0][1] if made else ()


def _uuid(key: str, chosen: Chosen, cards: list[Card]) -> str:
    for card in cards:
        if chosen.uuid == card.uuid or (not chosen.uuid and chosen.index == card.index):
            return card.uuid
    found = chosen.uuid or f"index {chosen.index}"
    raise NoFit(f"annotation {key}", expected="a card of this node", found=found)


def _among(uuids: tuple[str, ...], cards: list[Card]) -> list[Card]:
    """The cards that the container may come to: the smallest of them says what a part of a card is."""
    return [card for card in cards if card.uuid in uuids] or cards


def _with_shares(mine: list[Grant], wanted: WantedGrants, among: list[Card], terms: Terms) -> list[Grant]:
    """The grants, the one whose amount does not say the share of each card with that share."""
    by = {grant.resource: grant for grant in mine}
    gpu, cores = by.get("gpu"), by.get("cores")
    if gpu is not None:
        share, memories = _share_of_gpu(gpu, by, wanted, among, terms)
        shared = grants.changed(gpu, share=share, memories=memories)
    elif terms.proportional and cores is not None and cores.amount < WHOLE_CARD and "memory" not in by:
        memory = _proportion(cores.amount, among, terms.policy)
        shared = grants.changed(cores, share=(cores.amount, memory))
    else:
        return mine
    return [shared if grant.id == shared.id else grant for grant in mine]


def _share_of_gpu(
    gpu: Grant, by: dict[str, Grant], wanted: WantedGrants, among: list[Card], terms: Terms
) -> tuple[tuple[int, int], dict[str, int]]:
    """(cores, memory) of each of the vGPUs that `gpu` counts; a grant of either beside it says that half itself.

    Where a scheduler names different memory of the cards (HAMi's percentage of unlike ones), that by uuid, and the
    largest in its place.
    """
    spec = resources.spec_amounts(wanted.limits or {})
    key, told_cores, told = _told(wanted.choices, among)
    cores = by["cores"].amount if "cores" in by else spec.cores or gpu.cores
    if told_cores and "cores" not in by:
        cores = _within(f"annotation {key}: cores", told_cores, cores, wanted, terms)
    memories: dict[str, int] = {}
    if told and "memory" not in by:
        for card in among:
            bound = _bound(gpu, spec, [card], terms) or _part(100, [card], terms.policy)
            mib = _within(f"annotation {key}: MiB", told[card.uuid] // MIB, bound // MIB, wanted, terms)
            memories[card.uuid] = mib * MIB
    sizes = set(memories.values())
    memory = max(sizes) if sizes else _bound(gpu, spec, among, terms)
    if cores >= WHOLE_CARD:
        return (cores, min(sizes, default=memory)), {}
    return (cores, memory or _part(100, among, terms.policy)), memories if len(sizes) > 1 else {}


def _bound(gpu: Grant, spec: SpecAmounts, among: list[Card], terms: Terms) -> int:
    """What the spec allows of the memory of each of these cards, else the vGPU's own part; 0 for a whole card."""
    return spec.memory or (_part(spec.percent, among, terms.policy) if spec.percent else gpu.memory)


def _told(choices: tuple[Choice, ...], among: list[Card]) -> tuple[str, int, dict[str, int]]:
    """(annotation, cores of each card, memory by uuid of `among`) that the choices name; 0 and {} say nothing.

    Cards of which none is named have what the first one has.
    """
    told = [(choice.key, chosen) for choice in choices for chosen in choice.cards if chosen.cores or chosen.memory]
    if not told:
        return "", 0, {}
    cores, first = told[0][1].cores, told[0][1].memory
    memories: dict[str, int] = {}
    for key, chosen in told:
        memory = memories.setdefault(_uuid(key, chosen, among), chosen.memory)
        if (chosen.cores, chosen.memory) != (cores, memory) or bool(memory) != bool(first):
            expected = f"{cores} cores and {(memory or first) >> 20} MiB, of cards of one container the same cores"
            raise VgpuError(
                f"annotation {key}", expected=expected, found=f"{chosen.cores} cores and {chosen.memory >> 20} MiB"
            )
    return told[0][0], cores, {card.uuid: memories.get(card.uuid, first) for card in among} if first else {}


def _within(what: str, told: int, bound: int, wanted: WantedGrants, terms: Terms) -> int:
    """`told`, which must not be more than the pod's spec, or else its split of a card, allows."""
    if told <= bound or terms.trust:
        return told
    known = "the limits in the pod's spec" if wanted.limits is not None else "one vGPU, as the pod's spec is not known"
    do = "name the amount in the pod's limits, or set kubernetes.scheduler_amounts: trust"
    raise VgpuError(what, expected=f"at most {bound}, by {known}", found=told, do=do)


def _part(percent: int, among: list[Card], policy: Policy) -> int:
    """`percent` of what the smallest card of `among` has for shares, in whole MiB, and never more than it has."""
    sizes = [min(policy.memory(card) * percent // 100, card.memory) for card in among]
    return min(sizes, default=0) // MIB * MIB


def _proportion(cores: int, among: list[Card], policy: Policy) -> int:
    """The part of a card's memory that `cores` are of its cores: shares that fill the one fill the other."""
    sizes = [min(policy.memory(card) * cores // policy.cores(), card.memory) for card in among]
    return min(sizes, default=0) // MIB * MIB
