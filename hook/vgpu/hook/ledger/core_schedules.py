"""The files of the containers' core schedules, `<run>/containers/<id>/cards`, written from all claims together.

Belongs here: from claims to files. Not here: the rule that divides a card's time (vgpu.config.core_schedule). The
caller holds the ledger's lock, so that the hook, vgpuctl and vgpud never write at once. A container cannot start
without its own file. A failure to write another container's file becomes a note: that container keeps its old share.
A container without a file (it has a whole card, or it started before these files existed) has at most its own token
bucket as a limit.
"""

from __future__ import annotations

import os

from vgpu.config import core_schedule, paths, records
from vgpu.config.claims import Claim
from vgpu.config.errors import VgpuError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from vgpu.config.core_schedule import CoreSchedule

NS = 1_000_000_000


def held(claim: Claim) -> dict[str, int]:
    """The percent of each card of the claim; at least 1, so that no container starves."""
    return {card.uuid: max(card.cores, 1) for card in claim.cards}


def schedules(shares: Iterable[Claim]) -> dict[str, list[CoreSchedule]]:
    """The schedules of each container, without loans."""
    return core_schedule.schedules({claim.container: held(claim) for claim in shares})


def create(directory: str, claim: Claim, others: Iterable[Claim], clock_offset: int) -> None:
    """Write the file of a container that starts beside `others` into its `directory`. After OSError or VgpuError it
    must not start."""
    own = schedules([*others, claim])[claim.container]
    records.write_bytes(f"{directory}/{paths.CORE_SCHEDULES}", core_schedule.encode(own, clock_offset), 0o444)


def rewrite(run_dir: str, shares: Iterable[Claim], cards: Iterable[str]) -> list[str]:
    """Update the schedules of these cards in the files of all `shares`. Returns notes on failures."""
    changed = set(cards)
    notes = []
    for container, found in schedules(shares).items():
        try:
            for item in found:
                if item.uuid in changed:
                    core_schedule.update(paths.core_schedules(run_dir, container), item)
        except FileNotFoundError:
            continue
        except (OSError, VgpuError) as error:
            notes.append(f"the core schedules of container {container} are unchanged: {error}")
    return notes


def clock_offset(pid: int, proc: str = "/proc") -> int:
    """ns by which CLOCK_MONOTONIC here is ahead of the container's (init `pid`): either may be in a time namespace."""
    return _monotonic(f"{proc}/self") - _monotonic(f"{proc}/{pid}")


def _monotonic(process: str) -> int:
    """ns by which a process sees CLOCK_MONOTONIC ahead of the kernel's."""
    try:
        fd = os.open(f"{process}/timens_offsets", os.O_RDONLY | os.O_CLOEXEC)  # since Linux 5.6
    except OSError:
        return 0
    try:
        lines = os.read(fd, 1024).split(b"\n")
    except OSError:
        return 0
    finally:
        os.close(fd)
    fields = next((line.split()[1:] for line in lines if line.startswith(b"monotonic")), [])
    return int(fields[0]) * NS + int(fields[1]) if len(fields) == 2 else 0
