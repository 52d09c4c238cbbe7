"""The usage region's layout, as in libvcuda/include/vgpu_usage.h (a test compiles the header and compares).

Belongs here: the first bytes of a new region, and the reading of what a container holds and uses of each card. Not
here: any trust in it. Tenants can write the region, so its figures are the container's own claims, and nothing about
another container may depend on them.
"""

from __future__ import annotations

from struct import Struct

from vgpu.config import limits
from vgpu.config.errors import VgpuError
from vgpu.config.limits import MAX_CARDS, USAGE_DIR, uuid_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    Rows = Iterator[tuple[int, ...]]

PATH = USAGE_DIR + "/usage"
#: Of a new region. The hook has them from limits, so that a start does not load this module.
IDENTITY, BEGINNING = limits.USAGE_IDENTITY, limits.USAGE_BEGINNING
SIZE, SHARE_FILES = limits.USAGE_SIZE, limits.USAGE_SHARE_FILES
SLOTS = 1024
PID_BITS = 22
REAPING = 1 << 63
UNKNOWN_NAMESPACES = (1 << 64) - 1  #: without a usable /proc

HEADER = Struct("=QQ48x")
MARKS = Struct("=Q")
MARKS_OFFSET = 40
MARK_COUNTS, MARK_LOCKS_REFUSED, MARK_WAITS_REFUSED, MARK_LOCKS_SLOW = 1, 2, 4, 16
CHANGE_OFFSET = 48
CHANGE_SHIFT = 8
CARD = Struct("=Q16s8x")
CONTEXT = Struct("=Q")
CONTEXT_OFFSET = 24  #: in a card
SLOT = Struct("=QQQQQ")
CHARGE = Struct("=QQ")
OVERHEAD = Struct("=I")
OVERHEAD_UNIT = 4096
EXPECTED = 1 << 31  #: in an overhead: a part of it is booked for a context in the making
UNLISTED = Struct("=H")
UNLISTED_UNIT = 2 << 20
TIME = Struct("=q11Q32x")
COUNTS = Struct("=Q6I")
COUNTS_OFFSET = 96  #: in a time
WAITS = (0.001, 0.01, 0.1, 1.0)  #: seconds: the upper bounds of the ranges of waits; there is one more
FLIGHT = Struct("=II")
CARDS_END = HEADER.size + MAX_CARDS * CARD.size
CHARGES_OFFSET = CARDS_END + SLOTS * SLOT.size
OVERHEADS_OFFSET = CHARGES_OFFSET + MAX_CARDS * SLOTS * CHARGE.size
TIMES_OFFSET = OVERHEADS_OFFSET + MAX_CARDS * SLOTS * OVERHEAD.size
FLIGHTS_OFFSET = TIMES_OFFSET + MAX_CARDS * TIME.size
UNLISTED_OFFSET = FLIGHTS_OFFSET + MAX_CARDS * SLOTS * FLIGHT.size  #: a region of an earlier libvcuda ends here


def decode(data: bytes, source: str = "usage", ended: frozenset[int] = frozenset()) -> dict[str, int]:
    """The bytes that the container holds, by card uuid; VgpuError when `data` is no region.

    The slots `ended` do not count: what ended processes held stays in the region until another process looks for it.
    """
    return {
        uuid: sum(reserved for slot, (_, reserved) in enumerate(charges) if slot not in ended)
        for uuid, charges, *_ in _cards(data, source)
    }


def owners(data: bytes, source: str = "usage") -> list[Owner]:
    """The owners of the slots that hold something of a card; VgpuError when `data` is no region."""
    charges = [rows for _, rows, *_ in _cards(data, source)]
    charged = {slot for rows in charges for slot, (_, reserved) in enumerate(rows) if reserved}
    found = []
    for slot in sorted(charged):
        owner, namespaces, *_ = SLOT.unpack_from(data, CARDS_END + slot * SLOT.size)
        if owner:
            found.append(Owner(slot, owner, namespaces))
    return found


class Owner:
    """The process that holds `slot`, by its own account: `pid` in its PID namespace, `start_time` in clock ticks of its
    time namespace (0: unknown), and the inodes of both namespaces (0: unknown).

    `reaped`: another process is clearing the slot, and `pid` is that one's.
    """

    __slots__ = ("pid", "pid_namespace", "reaped", "slot", "start_time", "time_namespace")

    def __init__(self, slot: int, owner: int, namespaces: int) -> None:
        self.slot = slot
        self.reaped = bool(owner & REAPING)
        self.pid = owner & ((1 << PID_BITS) - 1)
        self.start_time = (owner & ~REAPING) >> PID_BITS
        known = namespaces != UNKNOWN_NAMESPACES
        self.pid_namespace = namespaces & 0xFFFFFFFF if known else 0
        self.time_namespace = namespaces >> 32 if known else 0


def allocated(data: bytes, source: str = "usage", ended: frozenset[int] = frozenset()) -> dict[str, int]:
    """The same without the driver's own memory, as far as the processes have booked it."""
    return {
        uuid: sum(
            max(0, reserved - overhead)
            for slot, ((_, reserved), overhead) in enumerate(zip(charges, overheads))
            if slot not in ended
        )
        for uuid, charges, overheads, _ in _cards(data, source)
    }


def memory_in_use(held: int, allocated: int, driver: int) -> int:
    """The bytes of a card that a container's programs see as used, from what they hold and allocated (as `decode` and
    `allocated` say) and what the driver holds beside the allocations by the host's figure, 0 where it has none.

    The one figure of status, ps, top, exporter and page. The driver's memory counts once: what the programs have booked
    of it is part of `held`.
    """
    return held + max(driver - (held - allocated), 0)


def listed(data: bytes, source: str = "usage", ended: frozenset[int] = frozenset()) -> dict[str, int]:
    """The same without what NVML lists with no process: managed memory, and what only descriptors keep."""
    return {
        uuid: sum(
            max(0, reserved - overhead - hidden * UNLISTED_UNIT)
            for slot, ((_, reserved), overhead, (hidden,)) in enumerate(zip(charges, overheads, unlisted))
            if slot not in ended
        )
        for uuid, charges, overheads, unlisted in _cards(data, source)
    }


def _cards(data: bytes, source: str) -> Iterator[tuple[str, Rows, Iterator[int], Rows]]:
    """Each card's uuid, its slots' charges (attempted, reserved), overheads in bytes, and what NVML does not list."""
    if len(data) == UNLISTED_OFFSET:
        data = data.ljust(SIZE, b"\0")
    if len(data) != SIZE or HEADER.unpack_from(data)[0] != IDENTITY:
        raise VgpuError(source, expected=f"a usage region of {SIZE} bytes", found=f"{len(data)} bytes")
    slots = min(HEADER.unpack_from(data)[1], SLOTS)
    for index in range(MAX_CARDS):
        key, uuid = CARD.unpack_from(data, HEADER.size + index * CARD.size)
        if key:
            charges = _rows(data, CHARGES_OFFSET, CHARGE, index, slots)
            rows = _rows(data, OVERHEADS_OFFSET, OVERHEAD, index, slots)
            overheads = ((units & ~EXPECTED) * OVERHEAD_UNIT for (units,) in rows)
            yield uuid_text(uuid), charges, overheads, _rows(data, UNLISTED_OFFSET, UNLISTED, index, slots)


def _rows(data: bytes, offset: int, row: Struct, card: int, slots: int) -> Rows:
    start = offset + card * SLOTS * row.size
    return row.iter_unpack(data[start : start + slots * row.size])


class CardTime:
    """A container's own figures of its use of a card: `used` ns in all, when it last `wanted` the card and `waited` for
    it, and its `longest` kernel of late. Times are ns of the container's CLOCK_MONOTONIC. `throttled` are the ns that
    launches waited in all, `waits` how many waited for how long (see WAITS), and `refusals` the calls that got no
    device memory because of the limit. An earlier libvcuda leaves these three 0: see `has_counts`.
    """

    __slots__ = ("longest", "refusals", "throttled", "used", "waited", "waits", "wanted")

    def __init__(
        self,
        used: int,
        wanted: int,
        waited: int,
        longest: int,
        throttled: int = 0,
        refusals: int = 0,
        waits: tuple[int, ...] = (0,) * (len(WAITS) + 1),
    ) -> None:
        self.used = used
        self.wanted = wanted
        self.waited = waited
        self.longest = longest
        self.throttled = throttled
        self.refusals = refusals
        self.waits = waits


def is_region(head: bytes) -> bool:
    """Whether `head`, the first CARDS_END bytes of a file, begins a region of this version."""
    return len(head) >= CARDS_END and bool(HEADER.unpack_from(head)[0] == IDENTITY)


def has_counts(head: bytes) -> bool:
    """Whether the region with the first CARDS_END bytes `head` is one whose libvcuda counts waits and refusals."""
    return bool(_marks(head) & MARK_COUNTS)


def locks_are_refused(head: bytes) -> bool:
    """Whether that libvcuda says that a sandbox refuses the locks by which containers take turns."""
    return bool(_marks(head) & MARK_LOCKS_REFUSED)


def waits_are_refused(head: bytes) -> bool:
    """Whether that libvcuda says that a sandbox refuses the waits by which containers are woken."""
    return bool(_marks(head) & MARK_WAITS_REFUSED)


def locks_are_slow(head: bytes) -> bool:
    """Whether that libvcuda says that those locks take long, so that it takes no turns on a card for a while."""
    return bool(_marks(head) & MARK_LOCKS_SLOW)


def change(head: bytes) -> tuple[int, int]:
    """(place of a card, ns that a change of contexts takes there), as the container measured last; 0 ns: unknown."""
    word = int(MARKS.unpack_from(head, CHANGE_OFFSET)[0]) if is_region(head) else 0
    return word & (1 << CHANGE_SHIFT) - 1, word >> CHANGE_SHIFT


def _marks(head: bytes) -> int:
    return int(MARKS.unpack_from(head, MARKS_OFFSET)[0]) if is_region(head) else 0


def places(head: bytes) -> dict[str, int]:
    """The place of each card in the region with the first CARDS_END bytes `head`; {} when it is no region."""
    if not is_region(head):
        return {}
    entries = CARD.iter_unpack(head[HEADER.size : CARDS_END])
    return {uuid_text(uuid): index for index, (key, uuid) in enumerate(entries) if key}


def contexts(head: bytes) -> dict[str, int]:
    """The least that a process had of each card beside its allocations, in the first CARDS_END bytes of a region.

    Cards without such a figure are left out; {} when `head` is no region.
    """
    found = {}
    for uuid, place in places(head).items():
        (size,) = CONTEXT.unpack_from(head, HEADER.size + place * CARD.size + CONTEXT_OFFSET)
        if size:
            found[uuid] = size
    return found


def time_at(times: bytes, place: int) -> CardTime:
    """The figures of the card at `place` in `times`, the region's bytes from TIMES_OFFSET to FLIGHTS_OFFSET."""
    *_, used, wanted, waited, longest = TIME.unpack_from(times, place * TIME.size)
    throttled, refusals, *waits = COUNTS.unpack_from(times, place * TIME.size + COUNTS_OFFSET)
    return CardTime(used, wanted, waited, longest, throttled, refusals, tuple(waits))
