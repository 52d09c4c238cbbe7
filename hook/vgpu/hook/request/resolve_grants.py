"""A container's request from its grants: kubelet's amounts, the schedulers' choices and the limits in the pod's spec.

Belongs here: which source counts for what, as pure functions. A scheduler's choice for this container decides the
cards; the choices of several dialects must agree. The grants decide the amounts. Only amounts without a grant (memory
and cores beside vGPUs that kubelet merely counts) come from the spec, or from an annotation up to the spec's amount,
because anybody can write annotations. Not here: reading the grants or placing the request.
"""

from __future__ import annotations

from vgpu.config import grants
from vgpu.config.errors import VgpuError
from vgpu.config.grants import Grant
from vgpu.config.inventory import Card
from vgpu.config.request import WHOLE_CARD, Request, Wishes
from vgpu.config.settings import Settings
from vgpu.hook.placement.placement import NoFit, Policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from vgpu.config.dialects.placements import Choice, Chosen
    from vgpu.config.dialects.resources import SpecAmounts

MIB = 1 << 20


class WantedGrants:
    """Grants to be claimed: resource -> grant id, with the wishes and the ceiling of cores from annotations.

    `choices` are the schedulers' choices. `limits` are this container's limits in the pod's spec, None where unknown.
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
    """The request of a container's grants, and the grants with the share to be recorded in each."""

    __slots__ = ("grants", "request")

    def __init__(self, request: Request, grants: list[Grant]) -> None:
        self.request = request
        self.grants = grants


class Terms:
    """The node's settings on amounts: `trust` annotations beyond the spec, `proportional` memory for cores; `mixed`:
    MIG instances go to grants of mig alone.
    """

    __slots__ = ("mixed", "policy", "proportional", "trust")

    def __init__(self, policy: Policy, proportional: bool = False, trust: bool = False, mixed: bool = False) -> None:
        self.mixed = mixed
        self.policy = policy
        self.proportional = proportional
        self.trust = trust


def terms_of(settings: Settings, policy: Policy) -> Terms:
    proportional = settings.text("kubernetes.missing_memory") == "proportional"
    trust = settings.text("kubernetes.scheduler_amounts") == "trust"
    return Terms(policy, proportional, trust, settings.text("resources.mig_strategy") == "mixed")


def resolve(mine: list[Grant], wanted: WantedGrants, cards: list[Card], terms: Terms) -> ResolvedGrants:
    """The request of the grants `mine`, on the cards that a scheduler chose, if one did.

    A grant that was claimed before keeps the share of its first claim.
    """
    profiles = {card.profile for card in cards for grant in mine if card.uuid in (grant.cards or grant.devices)}
    wishes = wanted.wishes
    if any(grant.resource == "mig" for grant in mine):
        wishes = wishes.changed(profiles=tuple(profiles))  # an instance that is gone is refused later
    elif terms.mixed:
        wishes = wishes.changed(nouse_types=(*wishes.nouse_types, "mig"))
        cards = [card for card in cards if not card.parent]
    fixed = chosen_cards(wanted.choices, cards)
    if not any(grant.share for grant in mine):
        mine = _with_shares(mine, wanted, _among(fixed or grants.preferred(mine), cards), terms)
    return ResolvedGrants(grants.join(mine, wanted.core_limit, wishes).fixed_on(fixed), mine)


def chosen_cards(choices: tuple[Choice, ...], cards: list[Card]) -> tuple[str, ...]:
    """The uuids of the chosen cards; NoFit for a card of another node, or for choices that differ."""
    chosen_by_key = [
        (choice.key, tuple(_uuid(choice.key, chosen, cards) for chosen in choice.cards)) for choice in choices
    ]
    for key, uuids in chosen_by_key[1:]:
        first_key, first_uuids = chosen_by_key[0]
        if set(uuids) != set(first_uuids):
            expected, found = f"the cards of {first_key}: {', '.join(first_uuids)}", ", ".join(uuids)
            raise NoFit(f"annotation {key}", expected=expected, found=found, do="let one scheduler place the pod")
    return chosen_by_key[0][1] if chosen_by_key else ()


def _uuid(key: str, chosen: Chosen, cards: list[Card]) -> str:
    for card in cards:  # the number of a MIG instance may be another one's after a change of the instances
        if chosen.uuid == card.uuid or (not chosen.uuid and not card.parent and chosen.index == card.index):
            return card.uuid
    found = chosen.uuid or f"index {chosen.index}"
    raise NoFit(f"annotation {key}", expected="a card of this node", found=found)


def _among(uuids: tuple[str, ...], cards: list[Card]) -> list[Card]:
    """The cards that the container may get. The smallest of them decides the size of a part of a card."""
    return [card for card in cards if card.uuid in uuids] or cards


def _with_shares(mine: list[Grant], wanted: WantedGrants, among: list[Card], terms: Terms) -> list[Grant]:
    """The grants; the one whose amount does not give each card's share gets that share."""
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
    """((cores, memory) of each vGPU of `gpu`, memory by uuid). A grant of cores or memory beside it decides that half.

    The memory by uuid is for a scheduler that chose different memory on the cards (HAMi's percentage of unlike cards);
    the share then has the largest.
    """
    from vgpu.config.dialects import resources  # noqa: PLC0415

    spec = resources.spec_amounts(wanted.limits or {})
    key, scheduled_cores, scheduled_memory = _chosen_amounts(wanted.choices, among)
    cores = by["cores"].amount if "cores" in by else spec.cores or gpu.cores
    if scheduled_cores and "cores" not in by:
        cores = _within(f"annotation {key}: cores", scheduled_cores, cores, wanted, terms)
    memories: dict[str, int] = {}
    if scheduled_memory and "memory" not in by:
        for card in among:
            bound = _bound(gpu, spec, [card], terms) or _part(100, [card], terms.policy)
            mib = _within(f"annotation {key}: MiB", scheduled_memory[card.uuid] // MIB, bound // MIB, wanted, terms)
            memories[card.uuid] = mib * MIB
    sizes = set(memories.values())
    memory = max(sizes) if sizes else _bound(gpu, spec, among, terms)
    if cores >= WHOLE_CARD:
        return (cores, min(sizes, default=memory)), {}
    return (cores, memory or _part(100, among, terms.policy)), memories if len(sizes) > 1 else {}


def _bound(gpu: Grant, spec: SpecAmounts, among: list[Card], terms: Terms) -> int:
    """The memory that the spec allows of each of these cards, else the vGPU's own part; 0 for a whole card."""
    return spec.memory or (_part(spec.percent, among, terms.policy) if spec.percent else gpu.memory)


def _chosen_amounts(choices: tuple[Choice, ...], among: list[Card]) -> tuple[str, int, dict[str, int]]:
    """(annotation, cores of each card, memory by uuid of `among`) in the choices; 0 and {} where they have none.

    Cards that no choice names get the first one's memory.
    """
    named = [(choice.key, chosen) for choice in choices for chosen in choice.cards if chosen.cores or chosen.memory]
    if not named:
        return "", 0, {}
    cores, first = named[0][1].cores, named[0][1].memory
    memories: dict[str, int] = {}
    for key, chosen in named:
        memory = memories.setdefault(_uuid(key, chosen, among), chosen.memory)
        if (chosen.cores, chosen.memory) != (cores, memory) or bool(memory) != bool(first):
            expected = f"{cores} cores and {(memory or first) >> 20} MiB, of cards of one container the same cores"
            raise VgpuError(
                f"annotation {key}", expected=expected, found=f"{chosen.cores} cores and {chosen.memory >> 20} MiB"
            )
    return named[0][0], cores, {card.uuid: memories.get(card.uuid, first) for card in among} if first else {}


def _within(what: str, chosen: int, bound: int, wanted: WantedGrants, terms: Terms) -> int:
    """The amount `chosen`; VgpuError when it is above `bound`, from the pod's spec or the split of a card."""
    if chosen <= bound or terms.trust:
        return chosen
    known = "the limits in the pod's spec" if wanted.limits is not None else "one vGPU, as the pod's spec is not known"
    do = "name the amount in the pod's limits, or set kubernetes.scheduler_amounts: trust"
    raise VgpuError(what, expected=f"at most {bound}, by {known}", found=chosen, do=do)


def _part(percent: int, among: list[Card], policy: Policy) -> int:
    """`percent` of the memory for shares of the smallest card of `among`, in whole MiB, at most that card's memory."""
    sizes = [min(policy.memory(card) * percent // 100, card.memory) for card in among]
    return min(sizes, default=0) // MIB * MIB


def _proportion(cores: int, among: list[Card], policy: Policy) -> int:
    """Memory in proportion to `cores`: shares that fill a card's cores fill its memory."""
    sizes = [min(policy.memory(card) * cores // policy.cores(), card.memory) for card in among]
    return min(sizes, default=0) // MIB * MIB
