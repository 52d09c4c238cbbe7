"""The presence files, one for each card: `<run>/presence-<digits of its UUID>`, which all containers with a share of
the card have. By their locks on it they see which of them are at work (libvcuda/src/compute/presence.h).

Belongs here: which file a container gets, and making sure that it exists. Not here: the locks. Locks belong to the
inode, so all containers of a card have the same one, and the file is made once. Its content does not matter, only its
size. The caller holds the ledger's lock. A process in any container of the card can take a lease on the file. So this
module looks at it by an O_PATH descriptor, which no lease delays. It opens only a file whose size is wrong, and without
waiting.

Earlier versions had one file for all cards, `<run>/presence`. A container that starts beside one that has it gets it
too, as its card's file, and its claim says so. So a card has its own file from the first start on at which no container
of the card has the common one.
"""

from __future__ import annotations

import os
import stat

from vgpu.config import core_schedule, leases, paths, records
from vgpu.config.errors import VgpuError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from vgpu.config.claims import Claim

CONTENT = bytes(core_schedule.PRESENCE_SIZE)
MODE = 0o444

#: What was wrong with the file, as the end of a sentence.
MISSING = "was missing: containers from before do not see the ones that start now"
RESIZED = "had another size, and has its own again"
LEASED = "has another size, and a process has a lease on it: containers that start now work without turns"


def path_of(run_dir: str, claim: Claim, uuid: str) -> str:
    """The presence file that the claim's container has for one of its cards."""
    if claim.common_presence is None or uuid in claim.common_presence:
        return paths.common_presence(run_dir)
    return paths.presence(run_dir, core_schedule.presence_name(uuid))


def choose(run_dir: str, uuids: Iterable[str], others: Iterable[Claim]) -> dict[str, str]:
    """The file of each of these cards, for a container that starts beside `others`, the shares that live."""
    common, chosen = paths.common_presence(run_dir), {}
    for uuid in uuids:
        used = {path_of(run_dir, claim, uuid) for claim in others if any(card.uuid == uuid for card in claim.cards)}
        chosen[uuid] = common if common in used else paths.presence(run_dir, core_schedule.presence_name(uuid))
    return chosen


def ensure(run_dir: str, path: str) -> str:
    """Make the file where it is missing, and restore its size and mode; what was wrong (see above), else "".

    A process with CAP_SYS_ADMIN in a container can change the size. The file stays the same one even then, because the
    containers that run have it. After OSError or VgpuError no container with a share may start.
    """
    try:
        fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        records.write_bytes(path, CONTENT, MODE, paths.ledger_temporary(run_dir))
        return MISSING
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            do = "remove it while no container with a share runs"
            raise VgpuError(path, expected="a regular file", found=stat.filemode(found.st_mode), do=do)
        if stat.S_IMODE(found.st_mode) != MODE:
            os.chmod(f"/proc/self/fd/{fd}", MODE)
        return "" if found.st_size == len(CONTENT) else _resized(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


def _resized(path: str) -> str:
    try:
        fd = leases.opened(path, os.O_WRONLY)
    except VgpuError:
        return LEASED
    try:
        os.ftruncate(fd, len(CONTENT))
    finally:
        os.close(fd)
    return RESIZED
