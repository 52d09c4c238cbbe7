"""Commitments: the sums of what each card owes to claims, and to grants whose container is between two lives.

Belongs here, as pure functions: how one claim or grant adds to a card's commitment, and which grants no longer count
because kubelet has given their device ids to another pod. Not here: reading the records and holding the lock, which
are the ledger's.
"""

from __future__ import annotations

from vgpu.config import grants, ranges
from vgpu.config.errors import VgpuError
from vgpu.config.grants import Grant, Holder
from vgpu.config.limits import CardLimit
from vgpu.config.request import WHOLE_CARD, Wishes
from vgpu.hook.placement.placement import Commitment


def add(totals: dict[str, Commitment], card: CardLimit, exclusive: bool, holder: str) -> None:
    """Add one container's part of one card."""
    now = totals.get(card.uuid, Commitment())
    cores = WHOLE_CARD if exclusive else card.cores
    memory = 0 if exclusive else card.memory
    totals[card.uuid] = Commitment(
        now.cores + cores, now.memory + memory, now.exclusive or exclusive, (*now.holders, holder)
    )


def add_open(totals: dict[str, Commitment], known: list[Grant], claimed: set[str], own: tuple[str, ...]) -> list[str]:
    """Add the grants of `known` that are placed and not among `claimed`. Returns messages about wrong ones.

    Grants of the same pod that have taken over the device ids of `own` are left out: an init container that runs again,
    for example after a reboot, uses the devices before the pod's containers use them again.
    """
    notes = []
    mine = [grant for grant in known if grant.id in own]
    open_ones = [grant for grant in known if grant.cards and grant.id not in claimed and not _follows(grant, mine)]
    for group in _by_holder([grant for grant in open_ones if not superseded(grant, known)]):
        notes += _add_group(totals, group)
    return notes


def _follows(grant: Grant, mine: list[Grant]) -> bool:
    pod = grant.holder.pod_uid if grant.holder else ""
    return any(one.holder is not None and one.holder.pod_uid == pod and superseded(one, [grant]) for one in mine)


def _add_group(totals: dict[str, Commitment], group: list[Grant]) -> list[str]:
    """Add the grants of one container that is between two lives: it restarts, or the node was rebooted."""
    try:
        request = grants.join(group, 0, Wishes())
    except VgpuError as error:
        for grant in group:
            _add_alone(totals, grant)
        return [str(error)]
    for uuid in group[0].cards:
        limit = CardLimit(uuid, request.memory_of(uuid), request.cores, request.core_limit)
        add(totals, limit, request.exclusive, _holder_of(group[0]))
    return []


def _add_alone(totals: dict[str, Commitment], grant: Grant) -> None:
    """Add one grant by itself: its other half is missing, or no container's name tells several grants apart."""
    share = grant.share or (grant.cores, grant.memory)
    cores = {"cores": min(grant.amount, WHOLE_CARD), "memory": 0, "gpu": share[0]}[grant.resource]
    memory = {"cores": grant.share[1] if grant.share else 0, "memory": grant.amount, "gpu": share[1]}[grant.resource]
    for uuid in grant.cards:
        add(
            totals,
            CardLimit(uuid, grant.memories.get(uuid, memory), cores, cores),
            cores == WHOLE_CARD,
            _holder_of(grant),
        )


def _holder_of(grant: Grant) -> str:
    return grant.holder.describe() if grant.holder else grant.id[:8]


def _by_holder(known: list[Grant]) -> list[list[Grant]]:
    groups: dict[Holder | None, list[Grant]] = {}
    for grant in known:
        groups.setdefault(grant.holder, []).append(grant)
    return list(groups.values())


def superseded(grant: Grant, known: list[Grant]) -> bool:
    """Whether kubelet has since given the same device ids to another grant, after an init container or a pod's end."""
    return any(
        other.resource == grant.resource and other.created > grant.created and _share_devices(grant, other)
        for other in known
    )


def _share_devices(one: Grant, other: Grant) -> bool:
    return any(
        ranges.overlap(ranges.read(ids), ranges.read(other.devices[uuid]))
        for uuid, ids in one.devices.items()
        if uuid in other.devices
    )
