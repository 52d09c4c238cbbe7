"""Deletes grants that kubelet no longer lists and that no living container has.

Belongs here: the removal, under the ledger's lock and after a second check. vgpu.plugin.kubelet.grant_gc decides which
grants kubelet no longer lists. Runs as root.
"""

from __future__ import annotations

import os

from vgpu.config import grants, paths, records
from vgpu.config.errors import VgpuError
from vgpu.config.grants import Grant
from vgpu.config.settings import Settings
from vgpu.hook.ledger.ledger import Ledger
from vgpu.hook.ledger.lock import Lock


def delete(settings: Settings, unwanted: list[Grant], proc: str = "/proc") -> list[Grant]:
    """Delete those of `unwanted` that are unchanged on disk and that no living container has; returns the deleted ones.

    A hook that is claiming a grant holds the lock, or has written its claim. So either the hook finds the grant, and
    the grant stays, or the grant is deleted and the start fails with that reason. VgpuError when the lock cannot be
    taken.
    """
    deleted = []
    with Lock(settings.run_dir):
        found = living(settings, proc)
        for grant in unwanted:
            if grant.id not in found and _unchanged(settings.state_dir, grant):
                os.unlink(paths.grant(settings.state_dir, grant.id))
                deleted.append(grant)
        if deleted:
            records.sync_directory(paths.grants(settings.state_dir))
    return deleted


def living(settings: Settings, proc: str = "/proc") -> set[str]:
    """The ids of the grants that living containers have now."""
    ledger = Ledger(settings, [], proc)
    return {grant_id for claim in ledger.claims() if ledger.lives(claim) for grant_id in claim.grants}


def _unchanged(state_dir: str, grant: Grant) -> bool:
    try:
        return grants.read(state_dir, grant.id).record() == grant.record()
    except (FileNotFoundError, VgpuError):
        return False
