"""Commitments to grants whose container is between two lives.

Belongs here: which placed grants no longer count, and how the others add to a card's commitment. All grants of a pod
end together, cores and memory and all its containers, when the pod is known to be gone:

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
from vgpu.hook.ledger.totals import Part, Totals
from vgpu.hook.placement.placement import Commitment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import TypeVar

    Key = TypeVar("Key")


class Phases:
    """The containers of a pod that never run together: its init containers, one by one, and the others after them."""

    __slots__ = ("followers", "inits", "pod", "running")

    def __init__(self, pod: str, inits: list[list[Grant]], followers: list[list[Grant]], running: bool) -> None:
        self.pod = pod
        self.inits = inits
        self.followers = followers
        self.running = running  #: an init container runs, again or still

    def add_to(self, totals: Totals, claimed: set[str]) -> None:
        """Add what the largest phase would have beyond what counts already: claims, and followers after the inits.

        Where its pod has nothing else on the card, an init container that has ended is placed anew when it runs again.
        """
        counted = [group for group in self.followers if not self.running or group[0].id in claimed]
        counted += [group for group in self.inits if group[0].id in claimed]
        has = _together(counted, totals)
        for groups in [self.followers, *([group] for group in self.inits)]:
            for uuid, wanted in _together(groups, totals).items():
                if groups is self.followers or totals.has(self.pod, uuid):
                    before = has.get(uuid, Commitment())
                    totals.add_excess(uuid, wanted, before, _name_of(groups[0][0]), self.pod)
                    has[uuid] = Commitment(max(before.cores, wanted.cores), max(before.memory, wanted.memory))


class OpenGrants:
    """The placed grants without a living claim, sorted by how they count.

    `known` are all grants of the node, `claimed` the ids of those that count by a claim. The grants with the ids `own`
    are left out: they are those of a container that starts now, or is looked at. It is `holder`, where its grants have
    none yet. The pods with the uids `without` count as gone.
    """

    __slots__ = ("_cgroups", "_claimed", "_later", "_own", "_phases", "counted", "leaving")

    def __init__(
        self,
        known: list[Grant],
        claimed: set[str],
        own: tuple[str, ...],
        holder: Holder | None,
        cgroups: PodCgroups,
        without: Collection[str] = (),
    ) -> None:
        self._own = own
        self._claimed = claimed
        self._cgroups = cgroups
        self._phases: list[Phases] = []
        self.counted: list[Grant] = []
        self.leaving: dict[str, list[Grant]] = {}  #: pod uid -> all grants of a pod that counts, and may just be ending
        open_ones = [grant for grant in known if self._is_open(grant)]
        known = [_held_by(grant, holder) if grant.id in own else grant for grant in known] if open_ones else []
        self._later = LaterGrants(known)
        pods = dict(_grouped(known, pod_of))
        for pod, group in _grouped(open_ones, pod_of):
            if pod not in without:
                self._judge(pod, pods[pod], group)

    def add_to(self, totals: Totals) -> list[str]:
        """Add what counts to `totals`, which has the claims already. Returns messages about wrong grants."""
        notes = []
        for _, group in _grouped(self.counted, lambda grant: grant.holder):
            parts, wrong = _parts_of(group)
            notes += wrong
            for part in parts:
                totals.add(part, _name_of(group[0]), pod_of(group[0]))
        for phases in self._phases:
            phases.add_to(totals, self._claimed)
        return notes

    def _is_open(self, grant: Grant) -> bool:
        return bool(grant.cards) and grant.id not in self._claimed and grant.id not in self._own

    def _judge(self, pod: str, whole: list[Grant], open_ones: list[Grant]) -> None:
        """Sort the grants `open_ones` of one pod; `whole` are all its grants."""
        if not pod:
            self.counted += [grant for grant in open_ones if not self._later.of(grant)]
            return
        starts = any(grant.id in self._own for grant in whole)
        state = pod_cgroups.UNKNOWN if starts else self._state(pod, whole)
        if state == pod_cgroups.GONE:
            return
        groups = [
            group for _, group in _grouped([one for one in whole if not self._is_replaced(one, whole)], _container_of)
        ]
        inits = [group for group in groups if self._is_followed(group)]
        followers = [group for group in groups if group not in inits] if inits else []
        running = any(grant.id in self._claimed or grant.id in self._own for group in inits for grant in group)
        out = inits + followers if running else inits
        counted = [grant for group in groups if group not in out for grant in group if self._is_open(grant)]
        self.counted += counted
        if inits and not starts:
            self._phases.append(Phases(pod, inits, followers, running))
        if state == pod_cgroups.EMPTY:
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


class LaterGrants:
    """Which of the grants `known` were made later than another of them, with device ids of that one."""

    __slots__ = ("_by_card",)

    def __init__(self, known: list[Grant]) -> None:
        self._by_card: dict[tuple[str, str], list[tuple[Grant, list[Range]]]] = {}
        for grant in known:
            for uuid, ids in grant.devices.items():
                self._by_card.setdefault((grant.resource, uuid), []).append((grant, ranges.read(ids)))

    def of(self, grant: Grant) -> list[Grant]:
        """The later grants with device ids of `grant`, which is among them."""
        found = []
        for uuid, ids in grant.devices.items():
            mine = ranges.read(ids)
            for other, others in self._by_card[grant.resource, uuid]:
                if other.created > grant.created and ranges.overlap(mine, others):
                    found.append(other)
        return found


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


def _parts_in(totals: Totals, group: list[Grant]) -> list[Part]:
    """What the container with the grants `group` has: by its claim, or by the grants."""
    claimed = [totals.of_claims[grant.id] for grant in group if grant.id in totals.of_claims]
    return claimed[0] if claimed else _parts_of(group)[0]


def _parts_of(group: list[Grant]) -> tuple[list[Part], list[str]]:
    """(parts, messages) of the grants of one container between two lives."""
    try:
        request = grants.join(group, 0, Wishes())
    except VgpuError as error:
        return [part for grant in group for part in _alone(grant)], [str(error)]
    limits = [CardLimit(uuid, request.memory_of(uuid), request.cores, request.core_limit) for uuid in group[0].cards]
    return [(limit, request.exclusive) for limit in limits], []


def _together(groups: list[list[Grant]], totals: Totals) -> dict[str, Commitment]:
    """What several containers have of each card together."""
    found = Totals()
    for part in [part for group in groups for part in _parts_in(totals, group)]:
        found.add(part, "")
    return found.cards


def _alone(grant: Grant) -> list[Part]:
    """One grant by itself: its other half is missing, or no container's name tells several grants apart."""
    share = grant.share or (grant.cores, grant.memory)
    cores = {"cores": min(grant.amount, WHOLE_CARD), "memory": 0}.get(grant.resource, share[0])
    of_cores = grant.share[1] if grant.share else 0
    memory = {"cores": of_cores, "memory": grant.amount}.get(grant.resource, share[1])
    most = grant.released or (WHOLE_CARD, memory)
    cores, memories = min(cores, most[0]), {uuid: min(size, most[1]) for uuid, size in grant.memories.items()}
    return [
        (CardLimit(uuid, memories.get(uuid, min(memory, most[1])), cores, cores), cores == WHOLE_CARD)
        for uuid in grant.cards
    ]


def _name_of(grant: Grant) -> str:
    return grant.name or (grant.holder.describe() if grant.holder else grant.id[:8])
