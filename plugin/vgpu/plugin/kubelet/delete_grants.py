"""The end of grants: kubelet has let go of them, and no living container has them.

Belongs here: the removal, under the ledger's lock, after looking again. When kubelet has let go of one is for the
device plugin to say. Runs as root.
"""

from __future__ import annotations

import os

from vgpu.config import grants, paths
from vgpu.config.errors import VgpuError
from vgpu.config.grants import Grant
from vgpu.config.settings import Settings
from vgpu.hook.ledger.ledger import Ledger
from vgpu.hook.ledger.lock import Lock


def end(settings: Settings, unwanted: list[Grant], proc: str = "/proc") -> list[Grant]:
    """Remove those of `unwanted` that are still as they are given here and that no living container has.

    A hook that is just claiming one holds the lock, or has written its claim: either it finds the grant, and the grant
    stays, or the grant is gone and the start fails with that reason. VgpuError when the lock is not to be had.
    """
    ended = []
    with Lock(settings.run_dir):
        found = living(settings, proc)
        for grant in unwanted:
            if grant.id not in found and _unchanged(settings.state_dir, grant):
                os.unlink(paths.grant(settings.state_dir, grant.id))
                ended.append(grant)
        if ended:
            _sync(paths.grants(settings.state_dir))
    return ended


def living(settings: Settings, proc: str = "/proc") -> set[str]:
    """The ids of the grants that living containers have, as of now."""
    ledger = Ledger(settings, [], proc)
    return {grant_id for claim in ledger.claims() if ledger.lives(claim) for grant_id in claim.grants}


def _unchanged(state_dir: str, grant: Grant) -> bool:
    try:
        return grants.read(state_dir, grant.id).record() == grant.record()
    except (FileNotFoundError, VgpuError):
        return False


def _sync(directory: str) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
