"""The containers' card pages (`<run>/containers/<id>/cards`): who may work on which card when, written for all at once.

Belongs here: from claims to files. The caller holds the ledger's lock, which is what makes one writer at a time of the
hook, vgpuctl and vgpud. A container's own file is part of its start; another's that cannot be written is told in a
note and stops nobody: that container goes on in its old phase. Who has no file (a whole card, or a container from
before there were any) is held by its bucket alone, if at all.
"""

from __future__ import annotations

import os

from vgpu.config import cardpage, claims, records
from vgpu.config.claims import Claim
from vgpu.config.errors import VgpuError
from vgpu.hook import phases
from vgpu.hook.phases import Tenant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

CARDS = "cards"
NS = 1_000_000_000


def path_of(run_dir: str, container: str) -> str:
    """The host's path of a container's card pages."""
    return f"{claims.directory(run_dir, container)}/{CARDS}"


def in_order(shares: Iterable[Claim]) -> list[Claim]:
    """Oldest first: who comes takes the last phase, and nobody changes places."""
    return sorted(shares, key=lambda claim: (claim.created, claim.container))


def tenant_of(claim: Claim) -> Tenant:
    """A container has the same share of each of its cards."""
    share = max((card.cores for card in claim.cards), default=0)
    return Tenant(claim.container, tuple(card.uuid for card in claim.cards), share)


def create(run_dir: str, claim: Claim, others: Iterable[Claim], clock_offset: int) -> None:
    """Write the file of a container that starts beside `others`. OSError or VgpuError: it must not start."""
    tenants = [tenant_of(item) for item in in_order([*others, claim])]
    made = phases.pages(tenants, phases.cut(tenants))[claim.container]
    records.write_bytes(path_of(run_dir, claim.container), cardpage.encode(made, clock_offset), 0o444)


def rewrite(run_dir: str, shares: Iterable[Claim], cards: Iterable[str]) -> list[str]:
    """Change the files of all `shares` whose time the containers of `cards` may touch; notes on what failed."""
    ordered = in_order(shares)
    tenants = [tenant_of(claim) for claim in ordered]
    pages = phases.pages(tenants, phases.cut(tenants))
    reached = set(cards)
    for group in phases.joined(tenants):
        touched = {card for tenant in group for card in tenant.cards}
        reached |= touched if touched & reached else set()
    notes = []
    for claim in ordered:
        changed = [page for page in pages[claim.container] if page.uuid in reached]
        try:
            for page in changed:
                cardpage.update(path_of(run_dir, claim.container), page)
        except FileNotFoundError:
            continue
        except (OSError, VgpuError) as error:
            notes.append(f"card pages of container {claim.container} stay as they were: {error}")
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
