"""Which pods have their devices, and which shares, according to the claims and grants that the hook wrote.

Belongs here: claims and grants -> pod uids. An Allocate names no pod, so it proves nothing. The hook identifies the
pod: a claim that is ready, or a grant with a holder, names a pod exactly.
"""

from __future__ import annotations

import os

from vgpu.config import claims, grants, paths
from vgpu.config.claims import Claim
from vgpu.config.errors import VgpuError


def pods_with_devices(run_dir: str, state_dir: str) -> set[str]:
    """The uids of all pods with a container that has, or had, its devices."""
    found = claims_of(run_dir)
    at_work = {grant for claim in found if not claim.ready for grant in claim.grants}
    held = {claim.holder.pod_uid for claim in found if claim.ready and claim.holder}
    known = grants.read_all(state_dir)[0]
    return held | {grant.holder.pod_uid for grant in known if grant.holder and grant.id not in at_work}


def containers_with_devices(run_dir: str, state_dir: str) -> dict[str, set[str]] | None:
    """Pod uid -> the names of its containers that have, or had, their devices. A name may be "".

    None where a grant cannot be read: it may be the one that names a container.
    """
    known, damaged = grants.read_all(state_dir)
    if damaged:
        return None
    holders = [claim.holder for claim in claims_of(run_dir)] + [grant.holder for grant in known]
    found: dict[str, set[str]] = {}
    for holder in filter(None, holders):
        found.setdefault(holder.pod_uid, set()).add(holder.container)
    return found


def shares_in_force(run_dir: str) -> dict[str, dict[str, tuple[int, int]]]:
    """Pod uid -> container -> (cores, core limit) of its share of each card. A container's name may be ""."""
    found: dict[str, dict[str, tuple[int, int]]] = {}
    for claim in claims_of(run_dir):
        if claim.ready and claim.holder and claim.cards and not claim.exclusive:
            card = claim.cards[0]
            found.setdefault(claim.holder.pod_uid, {})[claim.holder.container] = (card.cores, card.core_limit)
    return found


def claims_of(run_dir: str) -> list[Claim]:
    """All claims that can be read. The ledger reports damaged ones."""
    try:
        names = os.listdir(paths.containers(run_dir))
    except OSError:
        return []
    found = []
    for name in filter(paths.is_container_id, names):
        try:
            found.append(claims.read(run_dir, name))
        except (OSError, VgpuError):
            continue
    return found
