"""The core schedules' layout, as in libvcuda/include/vgpu_card.h (a test compiles the header and compares), and the
rule that divides a card's time among the containers that share it.

Belongs here: bytes <-> schedules, the update of a live file, and `schedule`, the pure rule. Not here: which containers
share a card, which is the ledger's. Times are ns of the host's CLOCK_MONOTONIC. The file is read-only in the container;
only root on the host writes it. Its effect on a container: docs/compute-limit.md.
"""

from __future__ import annotations

import os
from struct import Struct

from vgpu.config import leases
from vgpu.config.errors import VgpuError
from vgpu.config.limits import MAX_CARDS, PRIVATE_DIR, uuid_bytes, uuid_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

PATH = PRIVATE_DIR + "/cards"
PRESENCE_DIR = PRIVATE_DIR + "/presence"
PRESENCE_SIZE = 4096
MAGIC = 0x52434756
VERSION = 2

HEADER = Struct("=IIqI44x")
PAGE = Struct("=16sQQQIIII72x")
SEQUENCE = Struct("=Q")
SEQUENCE_OFFSET = 16
SIZE = HEADER.size + MAX_CARDS * PAGE.size

#: The card's loss for each container in a period, until it is measured: twice what a change of contexts takes.
CHANGE_NS = 100_000
SHORTEST_PERIOD_NS = 50_000_000
LONGEST_PERIOD_NS = 100_000_000
SHORTEST_QUOTA_NS = 20_000_000
CHANGES_PART = 32  #: a period is so many times what the changes of all containers take, up to LONGEST_FOR_CHANGES_NS
LONGEST_FOR_CHANGES_NS = 400_000_000


def presence_name(uuid: str) -> str:
    """The name of a card's presence file in PRESENCE_DIR: the 32 digits of its UUID; VgpuError for no UUID."""
    return uuid_bytes(uuid).hex()


class CoreSchedule:
    """One card's schedule for one container. Until `lent_until` it may use `lent_rate` percent instead of its share.

    `tenants`: how many containers share the card. `period`: the ns over which each is to have its share; 0: libvcuda
    chooses. `share`: millionths of the card's time; 0: the share in the limits file. `may_borrow`: it may use up to
    its core limit without a loan while nobody else wants the card.
    """

    __slots__ = ("lent_rate", "lent_until", "may_borrow", "period", "share", "tenants", "uuid")

    def __init__(
        self,
        uuid: str,
        period: int = 0,
        lent_until: int = 0,
        lent_rate: int = 0,
        tenants: int = 0,
        share: int = 0,
        may_borrow: int = 0,
    ) -> None:
        self.uuid = uuid
        self.period = period
        self.lent_until = lent_until
        self.lent_rate = lent_rate
        self.tenants = tenants
        self.share = share
        self.may_borrow = may_borrow

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CoreSchedule) and self.key() == other.key()

    def __hash__(self) -> int:
        return hash(self.key())

    def key(self) -> tuple[str, tuple[int, ...]]:
        return self.uuid, self.values()

    def values(self) -> tuple[int, ...]:
        """The values in the order in which they follow the sequence."""
        return self.period, self.lent_until, self.lent_rate, self.tenants, self.share, self.may_borrow

    def lending(self, rate: int, until: int) -> CoreSchedule:
        """The same schedule with a loan."""
        return CoreSchedule(self.uuid, self.period, until, rate, self.tenants, self.share, self.may_borrow)


def _pack(entry: CoreSchedule, sequence: int) -> bytes:
    return PAGE.pack(uuid_bytes(entry.uuid), sequence, *entry.values())


def encode(entries: list[CoreSchedule], clock_offset: int = 0) -> bytes:
    """The whole file, SIZE bytes. `clock_offset`: the host's CLOCK_MONOTONIC less the container's."""
    if len(entries) > MAX_CARDS:
        raise VgpuError("core schedules", expected=f"at most {MAX_CARDS} cards", found=len(entries))
    head = HEADER.pack(MAGIC, VERSION, clock_offset, len(entries))
    return (head + b"".join(_pack(entry, 2) for entry in entries)).ljust(SIZE, b"\0")


def decode(data: bytes, source: str = "core schedules") -> tuple[list[CoreSchedule], int]:
    """(schedules, clock_offset) of a file; VgpuError for another size, magic or version."""
    if len(data) != SIZE:
        raise VgpuError(source, expected=f"{SIZE} bytes", found=len(data))
    magic, version, clock_offset, count = HEADER.unpack_from(data, 0)
    if magic != MAGIC or version != VERSION or count > MAX_CARDS:
        found = f"magic {magic:#x}, version {version}, {count} cards"
        raise VgpuError(source, expected=f"core schedules of version {VERSION}", found=found)
    entries = []
    for index in range(count):
        values = PAGE.unpack_from(data, HEADER.size + index * PAGE.size)
        entries.append(CoreSchedule(uuid_text(values[0]), *values[2:]))
    return entries, clock_offset


def update(path: str, entry: CoreSchedule) -> None:
    """Change the card's schedule in a live file. A mapped reader sees the old one or the new, never a mixture."""
    fd = leases.opened(path, os.O_RDWR | os.O_NOFOLLOW)
    try:
        data = os.pread(fd, SIZE + 1, 0)
        uuids = [uuid_bytes(known.uuid) for known in decode(data, path)[0]]
        if uuid_bytes(entry.uuid) not in uuids:
            raise VgpuError(path, expected="a card in this file", found=entry.uuid)
        offset = HEADER.size + uuids.index(uuid_bytes(entry.uuid)) * PAGE.size
        sequence = SEQUENCE.unpack_from(data, offset + SEQUENCE_OFFSET)[0] | 1
        body = _pack(entry, sequence)[SEQUENCE_OFFSET + 8 :]
        os.pwrite(fd, SEQUENCE.pack(sequence), offset + SEQUENCE_OFFSET)
        os.pwrite(fd, body, offset + SEQUENCE_OFFSET + 8)
        os.pwrite(fd, SEQUENCE.pack(sequence + 1), offset + SEQUENCE_OFFSET)
    finally:
        os.close(fd)


def period_of(shares: list[int], change: int = CHANGE_NS) -> int:
    """The period for containers with these percents: the shortest that keeps each time slice well above its change."""
    least = min(share for share in shares if share > 0)
    for_quotas = min(max(SHORTEST_QUOTA_NS * 100 // least, SHORTEST_PERIOD_NS), LONGEST_PERIOD_NS)
    return max(for_quotas, min(CHANGES_PART * change * len(shares), LONGEST_FOR_CHANGES_NS))


def schedule(uuid: str, shares: list[int], change: int = CHANGE_NS) -> list[CoreSchedule]:
    """The schedules of containers that have these percents of the card, without loans.

    Where the shares add up to the whole card or more, each loses the same fraction to the changes of containers:
    `change` ns for each container in a period.
    """
    if len(shares) == 1:
        return [CoreSchedule(uuid, tenants=1, may_borrow=1)]
    period, total = period_of(shares, change), sum(shares)
    useful = (period - change * len(shares)) * 1_000_000 // period
    return [
        CoreSchedule(uuid, period, 0, 0, len(shares), min(useful * share // total, share * 10_000), may_borrow=1)
        for share in shares
    ]


def schedules(
    tenants: dict[str, dict[str, int]], changes: Mapping[str, int] | None = None
) -> dict[str, list[CoreSchedule]]:
    """The schedules of each tenant, in the order of its cards. `tenants`: percents by name and card. `changes`: what
    is lost for each container in a period, in ns by card; CHANGE_NS for other cards.
    """
    known = changes or {}
    shares: dict[str, list[int]] = {}
    for held in tenants.values():
        for uuid, share in held.items():
            shares.setdefault(uuid, []).append(share)
    by_card = {uuid: iter(schedule(uuid, found, known.get(uuid, CHANGE_NS))) for uuid, found in shares.items()}
    return {name: [next(by_card[uuid]) for uuid in held] for name, held in tenants.items()}
