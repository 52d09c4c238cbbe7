"""The usage region's layout, as in libvcuda/include/vgpu_usage.h (a test compiles the header and compares).

Belongs here: the first bytes of a new region, and what a region says its container holds of each card. Tenants can
write it: a figure from here is that container's word, worth nothing for any other.
"""

from __future__ import annotations

from struct import Struct
from sys import byteorder

from vgpu.config.errors import VgpuError
from vgpu.config.limits import MAX_CARDS, USAGE_DIR, uuid_text

PATH = USAGE_DIR + "/usage"
IDENTITY = 2 << 32 | 0x45535556
SLOTS = 1024

HEADER = Struct("=QQ48x")
CARD = Struct("=Q16s8x")
SLOT = Struct("=QQQQ")
CHARGE = Struct("=QQ")
TIME = Struct("=q11Q32x")
FLIGHT = Struct("=II")
#: Of a card's time, what the host may ask: ns used in all; when a launch was last asked for, and had to wait, by the
#: container's CLOCK_MONOTONIC; ns of the longest kernel of late.
TIME_OFFSETS = {"used": 64, "wanted": 72, "waited": 80, "longest": 88}
CHARGES_OFFSET = HEADER.size + MAX_CARDS * CARD.size + SLOTS * SLOT.size
TIMES_OFFSET = CHARGES_OFFSET + MAX_CARDS * SLOTS * CHARGE.size
FLIGHTS_OFFSET = TIMES_OFFSET + MAX_CARDS * TIME.size
SIZE = FLIGHTS_OFFSET + MAX_CARDS * SLOTS * FLIGHT.size

#: A new region: this, and zeros up to SIZE.
BEGINNING = HEADER.pack(IDENTITY, 0)


def times(data: bytes) -> dict[str, dict[str, int]]:
    """By card uuid, the figures of TIME_OFFSETS; of a region that `decode` accepts."""
    found = {}
    for index in range(MAX_CARDS):
        key, uuid = CARD.unpack_from(data, HEADER.size + index * CARD.size)
        start = TIMES_OFFSET + index * TIME.size
        if key:
            words = {name: data[start + offset : start + offset + 8] for name, offset in TIME_OFFSETS.items()}
            found[uuid_text(uuid)] = {name: int.from_bytes(word, byteorder) for name, word in words.items()}
    return found


def decode(data: bytes, source: str = "usage") -> dict[str, int]:
    """Bytes held by card uuid; VgpuError when `data` is no region."""
    if len(data) != SIZE or HEADER.unpack_from(data)[0] != IDENTITY:
        raise VgpuError(source, expected=f"a usage region of {SIZE} bytes", found=f"{len(data)} bytes")
    used = {}
    slots = min(HEADER.unpack_from(data)[1], SLOTS)
    for index in range(MAX_CARDS):
        key, uuid = CARD.unpack_from(data, HEADER.size + index * CARD.size)
        start = CHARGES_OFFSET + index * SLOTS * CHARGE.size
        charges = CHARGE.iter_unpack(data[start : start + slots * CHARGE.size])
        if key:
            used[uuid_text(uuid)] = sum(reserved for _, reserved in charges)
    return used
