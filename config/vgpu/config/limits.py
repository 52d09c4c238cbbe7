"""The limits file's layout, as in libvcuda/include/vgpu_limits.h (a test compiles the header and compares).

Belongs here: bytes <-> limits, and the update of a live file under its sequence counter. Not here: which limits a
container gets. Sizes are bytes, shares are percent of one card. The file is read-only in the container; only root on
the host writes it.
"""

from __future__ import annotations

import os
from struct import Struct

from vgpu.config import leases
from vgpu.config.errors import VgpuError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, TypeVar

    Found = TypeVar("Found")

PRIVATE_DIR = "/usr/local/vgpu"  #: in the container; no image uses it
LIMITS_PATH = PRIVATE_DIR + "/limits"
USAGE_DIR = PRIVATE_DIR + "/usage"
REAL_DIR = PRIVATE_DIR + "/driver"
#: A new usage region (vgpu.config.usage): its first bytes, with zeros behind them up to its size; and the empty files
#: beside it, whose locks say which memory the container's processes share with each other.
USAGE_IDENTITY = 2 << 32 | 0x45535556
USAGE_BEGINNING = Struct("=Q56x").pack(USAGE_IDENTITY)
USAGE_SIZE = 1029184
USAGE_SHARE_FILES = tuple(f"usage{number:x}" for number in range(16))
NVIDIA_DIR = "/usr/local/nvidia"  #: images for gpu-manager, and CUDA's own, have it in PATH and LD_LIBRARY_PATH
LIMITED = ("libcuda", "libnvidia-ml")  #: the libraries that libvcuda replaces, up to `.so`

MAGIC = 0x55504756
VERSION = 1
MAX_CARDS = 32
UNLIMITED = (1 << 64) - 1

HEADER = Struct("=IIQII40s")
CARD = Struct("=16sQIIIIQQ8x")  # the last two: set_overheads
SIZE = HEADER.size + MAX_CARDS * CARD.size
OVERSUBSCRIBE = 1  #: a flag of a card: when the card is full, allocations up to the limit may be managed memory
INSTANCE = 2  #: a flag of a card: it is a MIG instance. libvcuda does not read it
SEQUENCE = Struct("=Q")
SEQUENCE_OFFSET = 8
OVERHEAD = Struct("=QQ")
OVERHEAD_OFFSET = 40  #: in a card


class CardLimit:
    """What one container may use of one card: `memory` bytes, `cores` and `core_limit` percent.

    With `oversubscribe` memory beyond what the card has free may be managed memory.
    """

    __slots__ = ("core_limit", "cores", "memory", "oversubscribe", "uuid")

    def __init__(
        self,
        uuid: str,
        memory: int = UNLIMITED,
        cores: int = 100,
        core_limit: int = 100,
        oversubscribe: bool = False,
    ) -> None:
        self.uuid = uuid
        self.memory = memory
        self.cores = cores
        self.core_limit = core_limit
        self.oversubscribe = oversubscribe

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CardLimit) and self.key() == other.key()

    def __hash__(self) -> int:
        return hash(self.key())

    def key(self) -> tuple[str, int, int, int, bool]:
        return (self.uuid, self.memory, self.cores, self.core_limit, self.oversubscribe)


def uuid_bytes(uuid: str) -> bytes:
    """`GPU-8a56a4bc-...` (or MIG-...) as the 16 bytes that cuDeviceGetUuid returns; VgpuError for any other text."""
    digits = uuid.partition("-")[2].replace("-", "")
    try:
        value = bytes.fromhex(digits)
    except ValueError:
        value = b""
    if len(value) != 16 or len(digits) != 32:
        raise VgpuError("card UUID", expected="GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", found=uuid)
    return value


def uuid_text(value: bytes, instance: bool = False) -> str:
    """16 bytes as `GPU-8a56a4bc-...`, those of a MIG instance as `MIG-8a56a4bc-...`."""
    digits = value.hex()
    text = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
    return ("MIG-" if instance else "GPU-") + text


def is_instance(uuid: str) -> bool:
    """Whether `uuid` is a MIG instance's."""
    return uuid.startswith("MIG-")


def own_uuids(cards: Iterable[CardLimit]) -> dict[str, str]:
    """`GPU-...` -> `MIG-...` of those of `cards` that are MIG instances.

    Core schedules and usage regions have the 16 bytes alone, and whoever reads them takes each for a whole card's.
    """
    return {uuid_text(uuid_bytes(card.uuid)): card.uuid for card in cards if is_instance(card.uuid)}


def with_own_uuids(found: Found, cards: Iterable[CardLimit]) -> Found:
    """`found`, an answer of JSON with objects by card uuid, with the uuids that `cards` have."""
    own = own_uuids(cards)
    return _renamed(found, own) if own else found


def _renamed(found: Any, own: dict[str, str]) -> Any:
    if isinstance(found, dict):
        return {own.get(key, key): _renamed(value, own) for key, value in found.items()}
    return [_renamed(item, own) for item in found] if isinstance(found, list) else found


def encode(container: str, cards: list[CardLimit], sequence: int = 2) -> bytes:
    """The whole file, SIZE bytes, for `container` with at most MAX_CARDS cards."""
    if len(cards) > MAX_CARDS:
        raise VgpuError("limits", expected=f"at most {MAX_CARDS} cards", found=len(cards))
    name = container.encode("utf-8", "replace")[:39]
    data = bytearray(SIZE)
    HEADER.pack_into(data, 0, MAGIC, VERSION, sequence, len(cards), 0, name)
    for index, card in enumerate(cards):
        offset = HEADER.size + index * CARD.size
        _check(card)
        flags = (OVERSUBSCRIBE if card.oversubscribe else 0) | (INSTANCE if is_instance(card.uuid) else 0)
        CARD.pack_into(data, offset, uuid_bytes(card.uuid), card.memory, card.cores, card.core_limit, flags, 0, 0, 0)
    return bytes(data)


def _check(card: CardLimit) -> None:
    if not (0 <= card.memory <= UNLIMITED and 0 <= card.cores <= 100 and card.cores <= card.core_limit <= 100):
        found = f"memory {card.memory}, cores {card.cores}, core_limit {card.core_limit}"
        raise VgpuError(f"limits of {card.uuid}", expected="memory in 64 bits, cores <= core_limit <= 100", found=found)


def decode(data: bytes, source: str = "limits") -> tuple[str, list[CardLimit], int]:
    """(container, cards, sequence) of a file; VgpuError for another size, magic or version."""
    if len(data) != SIZE:
        raise VgpuError(source, expected=f"{SIZE} bytes", found=len(data))
    magic, version, sequence, count, _, name = HEADER.unpack_from(data, 0)
    if magic != MAGIC or version != VERSION or count > MAX_CARDS:
        found = f"magic {magic:#x}, version {version}, {count} cards"
        raise VgpuError(source, expected=f"a limits file of version {VERSION}", found=found)
    cards = []
    for index in range(count):
        uuid, memory, cores, core_limit, flags, *_ = CARD.unpack_from(data, HEADER.size + index * CARD.size)
        text = uuid_text(uuid, bool(flags & INSTANCE))
        cards.append(CardLimit(text, memory, cores, core_limit, bool(flags & OVERSUBSCRIBE)))
    return name.rstrip(b"\0").decode("utf-8", "replace"), cards, sequence


Overhead = tuple[int, int]  #: (bytes of a card that the driver holds beside the allocations, valid until)


def overheads(data: bytes, source: str = "limits") -> dict[str, Overhead]:
    """The host's figures by card uuid; (0, 0) where there is none."""
    found = {}
    for index, card in enumerate(decode(data, source)[1]):
        *_, overhead, until = CARD.unpack_from(data, HEADER.size + index * CARD.size)
        found[card.uuid] = (overhead, until)
    return found


def in_force(data: bytes, now: int, source: str = "limits") -> list[tuple[CardLimit, int]]:
    """The cards' limits, each with the host's figure as it counts at `now`, in seconds since 1970: 0 when it is old."""
    figures = overheads(data, source)
    return [
        (card, figures[card.uuid][0] if now < figures[card.uuid][1] else 0) for card in decode(data, source)[1]
    ]  # fmt: skip


def update(path: str, container: str, cards: list[CardLimit]) -> None:
    """Change a live file in place. A reader with a mapping sees the old limits or the new ones, never a mixture.

    The caller holds the ledger's lock: the sequence counter allows one writer at a time.
    """
    _rewrite(path, lambda data, sequence: _with_overheads(encode(container, cards, sequence), overheads(data, path)))


def set_overheads(path: str, figures: dict[str, Overhead]) -> None:
    """Put the host's figures into a live file, as `update` does. Cards without a new figure keep theirs."""

    def changed(data: bytes, sequence: int) -> bytes:
        return _with_overheads(data, {**overheads(data, path), **figures})

    _rewrite(path, changed)


def _with_overheads(data: bytes, figures: dict[str, Overhead]) -> bytes:
    changed = bytearray(data)
    for index, card in enumerate(decode(data)[1]):
        if card.uuid in figures:
            OVERHEAD.pack_into(changed, HEADER.size + index * CARD.size + OVERHEAD_OFFSET, *figures[card.uuid])
    return bytes(changed)


def _rewrite(path: str, changed: Callable[[bytes, int], bytes]) -> None:
    fd = leases.opened(path, os.O_RDWR | os.O_NOFOLLOW)
    try:
        data = os.pread(fd, SIZE + 1, 0)
        sequence = decode(data, path)[2] | 1
        body = changed(data, sequence)[16:]  # before the counter is odd, so that a failure leaves the file as it was
        os.pwrite(fd, SEQUENCE.pack(sequence), SEQUENCE_OFFSET)
        os.pwrite(fd, body, 16)
        os.pwrite(fd, SEQUENCE.pack(sequence + 1), SEQUENCE_OFFSET)
    finally:
        os.close(fd)
