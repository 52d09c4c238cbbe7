"""Commitments: the sums of what each card owes to claims, and to grants whose container is between two lives.

Belongs here: how one claim or grant adds to a card's commitment, and which placed grants no longer count. All grants of
a pod end together, cores and memory and all its containers, when the pod is known to be gone:

1. kubelet has removed the pod's cgroup, in this boot;
2. kubelet has given device ids of one of its grants to a later grant of another pod;
3. kubelet has given them to a later grant that nobody has claimed yet, and no process of the pod is left.

A container that has run before another one of its pod with the same device ids was an init container. Its grants are
not in the way of that one, and for all others the pod holds the larger of the two. Not here: reading the records and
holding the lock, which are the ledger's, and looking at cgroups (pod_cgroups).
"""

from __future__ import annotations

from vgpu.config import grants, ranges
from vgpu.config.errors import VgpuError
from vgpu.config.grants import Grant, Holder
from vgpu.config.limits import CardLimit
from vgpu.config.ranges import Range
from vgpu.config.request import WHOLE_CARD, Wishes
from vgpu.hook.ledger import pod_cgroups
from vgpu.hook.ledger.pod_cgroups import PodCgroups
from vgpu.hook.placement.placement import Commitment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import TypeVar

    Key = TypeVar("Key")


class Totals:
    """The commitments in `cards`, by uuid, and what each pod has of each card."""

    __slots__ = ("_of_pods", "cards")

    def __init__(self) -> None:
        self.cards: dict[str, Commitment] = {}
        self._of_pods: dict[tuple[str, str], CardLimit] = {}

    def add(self, card: CardLimit, exclusive: bool, name: str, pod: str = "") -> None:
        """Add one container's part of one card; `name` is the container's for messages, `pod` its pod's uid."""
        cores = WHOLE_CARD if exclusive else card.cores
        memory = 0 if exclusive else card.memory
        now = self.cards.get(card.uuid, Commitment())
        self.cards[card.uuid] = Commitment(
            now.cores + cores, now.memory + memory, now.exclusive or exclusive, (*now.holders, name),
            (*now.amounts, (cores, memory)),
        )  # fmt: skip
        if pod:
            before = self._of_pods.get((pod, card.uuid), CardLimit(card.uuid, 0, 0, 0))
            total = CardLimit(card.uuid, before.memory + memory, before.cores + cores, 0)
            self._of_pods[pod, card.uuid] = total

    def add_excess(self, card: CardLimit, exclusive: bool, name: str, pod: str) -> None:
        """Add what a container of `pod` would have of a card beyond what the pod has there."""
        rest = self._of_pods.get((pod, card.uuid), CardLimit(card.uuid, 0, 0, 0))
        if rest.cores >= WHOLE_CARD:
            return
        if exclusive:
            self.add(CardLimit(card.uuid, 0, WHOLE_CARD - rest.cores, 0), False, name, pod)
            self.cards[card.uuid].exclusive = True
            return
        cores, memory = max(card.cores - rest.cores, 0), max(card.memory - rest.memory, 0)
        if cores or memory:
            self.add(CardLimit(card.uuid, memory, cores, 0), False, name, pod)

    def has(self, pod: str, uuid: str) -> bool:
        """Whether the pod has a part of the card."""
        return (pod, uuid) in self._of_pods


class OpenGrants:
    """The placed grants without a living claim, sorted by how they count.

    An init container and the containers after it never run at once: of a pod, the larger of the two counts.

    `known` are all grants of the node, `claimed` the ids of those that count by a claim. The grants with the ids `own`
    are left out: they are those of a container that starts now, or is looked at. It is `holder`, where its grants have
    none yet. The pods with the uids `without` count as gone.
    """

    __slots__ = (
        "_cgroups", "_claimed", "_known", "_later", "_mine", "_own_pod", "counted", "followed", "leaving", "waiting",
    )  # fmt: skip

    def __init__(
        self,
        known: list[Grant],
        claimed: set[str],
        own: tuple[str, ...],
        holder: Holder | None,
        cgroups: PodCgroups,
        without: Collection[str] = (),
    ) -> None:
        self._known = [_held_by(grant, holder) if grant.id in own else grant for grant in known]
        self._later = LaterGrants(self._known)
        self._mine = [grant for grant in self._known if grant.id in own]
        self._own_pod = next((pod_of(grant) for grant in self._mine), "")
        self._cgroups = cgroups
        self.counted: list[Grant] = []
        self.followed: list[list[Grant]] = []  #: of init containers that others of their pod have followed
        self.waiting: dict[str, list[list[Grant]]] = {}  #: pod uid -> containers that wait for its init containers
        self.leaving: dict[str, list[Grant]] = {}  #: pod uid -> all grants of a pod that counts, and may just be ending
        self._claimed = claimed
        taken = claimed.union(own)
        pods = dict(_grouped(self._known, pod_of))
        for pod, open_ones in _grouped([grant for grant in known if grant.cards and grant.id not in taken], pod_of):
            if pod not in without:
                self._judge(pod, pods[pod], open_ones)

    def add_to(self, totals: Totals) -> list[str]:
        """Add what counts to `totals`, which has the claims already. Returns messages about wrong grants."""
        notes = []
        for _, group in _grouped(self.counted, lambda grant: grant.holder):
            parts, wrong = _parts_of(group)
            notes += wrong
            for card, exclusive in parts:
                totals.add(card, exclusive, _name_of(group[0]), pod_of(group[0]))
        for pod, groups in self.waiting.items():
            for card, exclusive in _summed(groups):
                totals.add_excess(card, exclusive, _name_of(groups[0][0]), pod)
        for group in self.followed:
            pod = pod_of(group[0])
            for card, exclusive in _parts_of(group)[0]:
                if totals.has(pod, card.uuid):  # else the init container is placed again when it runs again
                    totals.add_excess(card, exclusive, _name_of(group[0]), pod)
        return notes

    def _judge(self, pod: str, whole: list[Grant], open_ones: list[Grant]) -> None:
        """Sort the grants `open_ones` of one pod; `whole` are all its grants."""
        if not pod:
            self.counted += [grant for grant in open_ones if not self._later.of(grant)]
            return
        starts = pod == self._own_pod
        state = pod_cgroups.UNKNOWN if starts else self._state(pod, whole)
        if state == pod_cgroups.GONE:
            return
        before = self._mine if starts else [grant for grant in whole if grant.id in self._claimed]
        counted = []
        for _, group in _grouped([grant for grant in open_ones if not self._is_replaced(grant, whole)], _container_of):
            if self._is_followed(group):
                self.followed += [] if starts else [group]
            elif self._follows(group, before):
                self.waiting.setdefault(pod, []).extend([] if starts else [group])
            else:
                counted += group
        self.counted += counted
        if counted and state == pod_cgroups.EMPTY:
            self.leaving[pod] = whole

    def _state(self, pod: str, whole: list[Grant]) -> str:
        """The pod's state: that of its cgroup, or gone because kubelet has given its device ids away."""
        later = [other for grant in whole for other in self._later.of(grant)]
        if any(other.holder and other.holder.pod_uid != pod for other in later):
            return pod_cgroups.GONE
        state = self._cgroups.state(whole)
        newest = max(grant.newest for grant in whole)
        unclaimed = [other for other in later if not other.holder and other.created > newest > 0]
        return pod_cgroups.GONE if unclaimed and state != pod_cgroups.BUSY else state

    def _is_replaced(self, grant: Grant, whole: list[Grant]) -> bool:
        """Whether kubelet has allocated anew for the same container, or so it seems in a record without `newest`."""
        anew = [other for other in whole if other.holder == grant.holder and other.resource == grant.resource]
        if grant.holder and grant.holder.container and any(other.created > grant.created for other in anew):
            return True
        old = not any(other.newest for other in whole)
        return old and any(not other.holder for other in self._later.of(grant))

    def _is_followed(self, group: list[Grant]) -> bool:
        """Whether another container of the pod has begun with device ids of this one."""
        return any(pod_of(other) == pod_of(grant) for grant in group for other in self._later.of(grant))

    def _follows(self, group: list[Grant], before: list[Grant]) -> bool:
        """Whether the container of `group` comes after one of the grants `before`, an init container's."""
        ids = {grant.id for grant in group}
        return any(other.id in ids for earlier in before for other in self._later.of(earlier))


class LaterGrants:
    """Which of the grants `known` kubelet has made later, with device ids of an earlier one."""

    __slots__ = ("_by_card",)

    def __init__(self, known: list[Grant]) -> None:
        self._by_card: dict[tuple[str, str], list[tuple[Grant, list[Range]]]] = {}
        for grant in known:
            for uuid, ids in grant.devices.items():
                self._by_card.setdefault((grant.resource, uuid), []).append((grant, ranges.read(ids)))

    def of(self, grant: Grant) -> list[Grant]:
        """The later grants with device ids of `grant`."""
        return [
            other
            for uuid, ids in grant.devices.items()
            for other, found in self._by_card.get((grant.resource, uuid), ())
            if other.created > grant.created and ranges.overlap(ranges.read(ids), found)
        ]


def superseded(grant: Grant, known: list[Grant]) -> bool:
    """Whether kubelet has since given device ids of `grant` to another one, after an init container or a pod's end."""
    return bool(LaterGrants(known).of(grant))


def pod_of(grant: Grant) -> str:
    """The uid of the holder's pod; "" where nobody has claimed the grant."""
    return grant.holder.pod_uid if grant.holder else ""


def _container_of(grant: Grant) -> object:
    """Equal for the grants of one container. Where its runtime passes on no name, each grant stands for itself."""
    return grant.holder if grant.holder and grant.holder.container else grant.id


def _held_by(grant: Grant, holder: Holder | None) -> Grant:
    return grants.changed(grant, holder=grant.holder or holder)


def _grouped(known: list[Grant], key: Callable[[Grant], Key]) -> list[tuple[Key, list[Grant]]]:
    groups: dict[Key, list[Grant]] = {}
    for grant in known:
        groups.setdefault(key(grant), []).append(grant)
    return list(groups.items())


def _parts_of(group: list[Grant]) -> tuple[list[tuple[CardLimit, bool]], list[str]]:
    """(each card's limit and whether it is exclusive, messages) for the grants of one container between two lives."""
    try:
        request = grants.join(group, 0, Wishes())
    except VgpuError as error:
        return [part for grant in group for part in _alone(grant)], [str(error)]
    limits = [CardLimit(uuid, request.memory_of(uuid), request.cores, request.core_limit) for uuid in group[0].cards]
    return [(limit, request.exclusive) for limit in limits], []


def _summed(groups: list[list[Grant]]) -> list[tuple[CardLimit, bool]]:
    """What several containers have of each card together."""
    totals = Totals()
    for card, exclusive in [part for group in groups for part in _parts_of(group)[0]]:
        totals.add(card, exclusive, "")
    return [(CardLimit(uuid, held.memory, held.cores, 0), held.exclusive) for uuid, held in totals.cards.items()]


def _alone(grant: Grant) -> list[tuple[CardLimit, bool]]:
    """One grant by itself: its other half is missing, or no container's name tells several grants apart."""
    share = grant.share or (grant.cores, grant.memory)
    cores = {"cores": min(grant.amount, WHOLE_CARD), "memory": 0, "gpu": share[0]}[grant.resource]
    memory = {"cores": grant.share[1] if grant.share else 0, "memory": grant.amount, "gpu": share[1]}[grant.resource]
    return [
        (CardLimit(uuid, grant.memories.get(uuid, memory), cores, cores), cores == WHOLE_CARD) for uuid in grant.cards
    ]


def _name_of(grant: Grant) -> str:
    return grant.name or (grant.holder.describe() if grant.holder else grant.id[:8])
