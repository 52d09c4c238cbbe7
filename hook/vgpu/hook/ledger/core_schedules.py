"""The containers' card pages (`<run>/containers/<id>/cards`): what each has of its cards, written for all at once.

Belongs here: from claims to files. The caller holds the ledger's lock, which is what makes one writer at a time of the
hook, vgpuctl and vgpud. A container's own file is part of its start; another's that cannot be written is told in a
note and stops nobody: that container goes on with its old share. Who has no file (a whole card, or a container from
before there were any) is held by its bucket alone, if at all.
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
    """Percent of each of its cards; nobody starves for good."""
    return {card.uuid: max(card.cores, 1) for card in claim.cards}


def pages(shares: Iterable[Claim]) -> dict[str, list[CoreSchedule]]:
    """What the containers' files say when nothing is lent."""
    return core_schedule.schedules({claim.container: held(claim) for claim in shares})


def create(run_dir: str, claim: Claim, others: Iterable[Claim], clock_offset: int) -> None:
    """Write the file of a container that starts beside `others`. OSError or VgpuError: it must not start."""
    made = pages([*others, claim])[claim.container]
    records.write_bytes(paths.core_schedules(run_dir, claim.container), core_schedule.encode(made, clock_offset), 0o444)


def rewrite(run_dir: str, shares: Iterable[Claim], cards: Iterable[str]) -> list[str]:
    """Change what all `shares` are told of these cards; notes on what failed."""
    reached = set(cards)
    notes = []
    for container, made in pages(shares).items():
        try:
            for page in made:
                if page.uuid in reached:
                    core_schedule.update(paths.core_schedules(run_dir, container), page)
        except FileNotFoundError:
            continue
        except (OSError, VgpuError) as error:
            notes.append(f"card pages of container {container} stay as they were: {error}")
    return notes


def clock_offset(pid: int, proc: str = "/proc") -> int:
    """ns that the host's CLOCK_MONOTONIC is ahead of that of the container of init `pid`: 0 but in a time namespace."""
    try:
        fd = os.open(f"{proc}/{pid}/timens_offsets", os.O_RDONLY | os.O_CLOEXEC)  # since Linux 5.6
    except OSError:
        return 0
    try:
        lines = os.read(fd, 1024).split(b"\n")
    except OSError:
        return 0
    finally:
        os.close(fd)
    fields = next((line.split()[1:] for line in lines if line.startswith(b"monotonic")), [])
    return -(int(fields[0]) * NS + int(fields[1])) if len(fields) == 2 else 0
