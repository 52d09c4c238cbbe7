"""Which pods have their devices: read off what the hook wrote when it gave them, never off an Allocate.

Belongs here: claims and grants -> pod uids. An Allocate names no pod; the hook knows the pod, and its claim that is
ready, or the holder in a grant it redeemed, is exact.
"""

from __future__ import annotations

import os

from vgpu.config import claims, grants, paths
from vgpu.config.claims import Claim
from vgpu.config.errors import VgpuError


def pods_with_devices(run_dir: str, state_dir: str) -> set[str]:
    """The uids of all pods of which a container has, or had, its devices."""
    found = _claims(run_dir)
    at_work = {grant for claim in found if not claim.ready for grant in claim.grants}
    held = {claim.holder.pod_uid for claim in found if claim.ready and claim.holder}
    known = grants.read_all(state_dir)[0]
    return held | {grant.holder.pod_uid for grant in known if grant.holder and grant.id not in at_work}


def _claims(run_dir: str) -> list[Claim]:
    """All that can be read: a damaged one tells nothing, and is the ledger's to report."""
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
