"""What this node's cards really hold, for scheduler extenders: of each pod, and of all other containers.

Belongs here: claims and grants -> amounts by card. A claim is a container that lives. A placed grant without a claim is
a container between two lives; it counts for pods that the API server still has, but not for their init containers,
which have ended then. The form of the annotation belongs to
vgpu.config.dialects.registration.
"""

from __future__ import annotations

from collections.abc import Collection

from vgpu.config import grants
from vgpu.config.dialects.registration import Amounts
from vgpu.config.errors import VgpuError
from vgpu.config.grants import Grant, Holder
from vgpu.config.request import WHOLE_CARD, Wishes
from vgpu.plugin.apiserver import handover

MIB = 1 << 20


def held(run_dir: str, state_dir: str, present: dict[str, Collection[str]]) -> tuple[dict[str, Amounts], Amounts]:
    """(by pod uid, of containers without a pod); `present`: pod uid -> its app containers."""
    pods: dict[str, Amounts] = {uid: {} for uid in present}
    other: Amounts = {}
    claimed = set()
    for claim in handover.claims_of(run_dir):
        claimed.update(claim.grants)
        into = pods.setdefault(claim.holder.pod_uid, {}) if claim.holder else other
        for card in claim.cards:
            _add(into, card.uuid, *((WHOLE_CARD, 0) if claim.exclusive else claim.committed(card)))
    for holder, group in _between_lives(grants.read_all(state_dir)[0], claimed, present).items():
        _add_grants(pods[holder.pod_uid], group)
    return {uid: amounts for uid, amounts in pods.items() if amounts}, other


def _between_lives(
    every: list[Grant], claimed: set[str], present: dict[str, Collection[str]]
) -> dict[Holder, list[Grant]]:
    """The placed grants without a claim, by their container: of each resource the newest."""
    found: dict[Holder, list[Grant]] = {}
    for grant in sorted(every, key=lambda one: one.created):
        holder = grant.holder
        if holder is None or not grant.cards or grant.id in claimed:
            continue
        if holder.container in present.get(holder.pod_uid, ()):
            others = [one for one in found.get(holder, []) if one.resource != grant.resource]
            found[holder] = [*others, grant]
    return found


def _add_grants(into: Amounts, group: list[Grant]) -> None:
    try:
        request = grants.join(group, 0, Wishes())
    except VgpuError:
        return  # the hook names what is wrong when the container starts
    for uuid in group[0].cards:
        _add(into, uuid, *((WHOLE_CARD, 0) if request.exclusive else (request.cores, request.memory_of(uuid))))


def _add(into: Amounts, uuid: str, cores: int, memory: int) -> None:
    before = into.get(uuid, (0, 0))
    into[uuid] = (before[0] + cores, before[1] + memory // MIB)
