"""MIG: the instances of a card, by NVIDIA's profiles of A100 and H100, and layouts that change while programs run.

An instance is an entry of the state's cards that has a parent (state/state.h). Only this module makes and destroys
them. The files by which the driver shows them below a driver root are in sim_root.py.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import re
import secrets
import struct
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

from sim_layout import FLOCK, MAX_CARDS, NO_COMPUTE, Board, Card, File, SimError
from sim_profiles import MIB, build_card, label_of

COMPUTE_SLICES, MEMORY_SLICES = 7, 8
GPU_INSTANCES, COMPUTE_INSTANCES = 15, 8
RESERVED_MIB = 3  #: of each slice; the user guide's tables show some three of an idle one

#: GPU instances by compute and memory slices: where they may begin, in the order in which they are placed.
STARTS = {(1, 1): range(7), (1, 2): (0, 2, 4, 6), (2, 2): (0, 2, 4), (3, 4): (4, 0), (4, 4): (0,), (7, 8): (0,)}


class Family(NamedTuple):
    """The profiles of one model: a slice's nominal GB, and by slices the memory in MiB and the multiprocessors."""

    slice_gb: int
    memory: dict[int, int]
    multiprocessors: dict[tuple[int, int], int]


_A100 = {(1, 1): 14, (1, 2): 14, (2, 2): 28, (3, 4): 42, (4, 4): 56, (7, 8): 98}
_H100 = {(1, 1): 16, (1, 2): 26, (2, 2): 32, (3, 4): 60, (4, 4): 64, (7, 8): 132}
#: By the card's multiprocessors and GB. The figures are those that `nvidia-smi mig -lgip` prints.
FAMILIES = {
    (108, 40): Family(5, {1: 4864, 2: 9856, 4: 19968, 8: 40192}, _A100),
    (108, 80): Family(10, {1: 9728, 2: 19968, 4: 40192, 8: 80640}, _A100),
    (132, 80): Family(10, {1: 9984, 2: 20096, 4: 40320, 8: 81024}, _H100),
}


class Profile(NamedTuple):
    """`1c.3g.40gb` on one model. `name` is that of the GPU instance, `compute` the slices of the compute instance."""

    name: str
    compute: int
    slices: tuple[int, int]
    memory_mib: int
    sm_count: int


def profile_of(card: Card, text: str) -> Profile:
    family = FAMILIES.get((card.sm_count, round(card.memory / (40 << 30)) * 40))
    match = re.fullmatch(r"(?:(\d)c\.)?((\d)g\.(\d+)gb)", text)
    if family and match:
        of_gi, gb = int(match[3]), int(match[4])
        compute, slices = int(match[1] or of_gi), (of_gi, gb // family.slice_gb)
        if slices in STARTS and gb == slices[1] * family.slice_gb and 0 < compute <= of_gi:
            of_all, of_one = family.multiprocessors[slices], family.multiprocessors[1, 1]
            sm_count = of_all if compute == of_gi else compute * of_one
            return Profile(match[2], compute, slices, family.memory[slices[1]], sm_count)
    raise SimError(f"{card.name.decode()} has no MIG profile {text}")


def first_gi(slices: tuple[int, int], start: int) -> int:
    """The id of the GPU instance there: the driver's numbers are those of a binary tree over the memory slices."""
    return MEMORY_SLICES // slices[1] - 1 + start // slices[1]


def instances_of(file: File, card: int, gi: int | None = None) -> list[int]:
    """The entries of the card's instances, or of those in one GPU instance."""
    return [
        index
        for index in range(file.header.card_count, MAX_CARDS)
        if (entry := file.cards[index]).instance and entry.parent == card and gi in (None, entry.gi)
    ]


def name_of(entry: Card) -> str:
    """`MIG-...` or `GPU-...`"""
    return f"{'MIG' if entry.instance else 'GPU'}-{uuid.UUID(bytes=bytes(entry.uuid))}"


def gi_profile(entry: Card) -> str:
    """The profile of the instance's GPU instance."""
    return str(entry.name.decode().rpartition("MIG ")[2]).rpartition("c.")[2]


def _span(entry: Card) -> set[int]:
    """The memory slices that the instance's GPU instance has."""
    width = MEMORY_SLICES >> (entry.gi + 1).bit_length() - 1
    start = (entry.gi + 1 - MEMORY_SLICES // width) * width
    return set(range(start, start + width))


def _free_gi(file: File, card: int, profile: Profile, wanted: int | None) -> int:
    entries = [file.cards[index] for index in instances_of(file, card)]
    taken = set().union(*map(_span, entries))
    compute = sum({entry.gi: entry.gi_slices for entry in entries}.values())
    has_compute = compute + profile.slices[0] <= COMPUTE_SLICES
    for start in STARTS[profile.slices]:
        gi, span = first_gi(profile.slices, start), set(range(start, start + profile.slices[1]))
        if wanted in (None, gi) and has_compute and not taken & span:
            return gi
    raise SimError(
        f"card {card}: no room for {profile.name}" + ("" if wanted is None else f" as GPU instance {wanted}")
    )


def _has_room(file: File, entries: list[int], compute: int) -> bool:
    taken = sum(file.cards[index].ci_slices for index in entries)
    return bool(taken + compute <= file.cards[entries[0]].gi_slices)


def _gi_for(file: File, card: int, profile: Profile, wanted: int | None) -> int:
    """A GPU instance of this profile with room for the compute instance: one that is there, else a new one."""
    whole = profile.compute == profile.slices[0]
    for gi in sorted({file.cards[index].gi for index in instances_of(file, card)}):
        there = instances_of(file, card, gi)
        is_meant = gi == wanted or (wanted is None and not whole)
        if is_meant and gi_profile(file.cards[there[0]]) == profile.name and _has_room(file, there, profile.compute):
            return gi
    return _free_gi(file, card, profile, wanted)


def _fill(file: File, index: int, card: int, profile: Profile, gi: int, ci: int, identity: uuid.UUID) -> None:
    """Make the entry this instance. Its number comes last: a process that sees the number sees the rest."""
    whole, entry = file.cards[card], file.cards[index]
    entry.instance = 0
    made = Card.from_buffer_copy(whole)
    compute = 0 if ci == NO_COMPUTE else profile.compute
    prefix = f"{compute}c." if 0 < compute < profile.slices[0] else ""
    made.name = f"{whole.name.decode()} MIG {prefix}{profile.name}".encode()
    made.uuid = (ctypes.c_uint8 * 16)(*identity.bytes)
    made.memory = profile.memory_mib * MIB
    made.reserved = RESERVED_MIB * profile.slices[1] * MIB
    made.context = whole.context * profile.sm_count // whole.sm_count
    made.bar1 = whole.bar1 * profile.slices[1] // MEMORY_SLICES
    made.l2_bytes = whole.l2_bytes * profile.slices[1] // MEMORY_SLICES
    made.bus_width = whole.bus_width * profile.slices[1] // MEMORY_SLICES
    made.sm_count = profile.sm_count
    made.link_count = 0
    made.parent, made.gi, made.ci, made.gi_slices, made.ci_slices = card, gi, ci, profile.slices[0], compute
    ctypes.memmove(ctypes.addressof(entry), bytes(made), ctypes.sizeof(Card))
    ctypes.memset(ctypes.addressof(file.boards[index]), 0, ctypes.sizeof(Board))
    file.header.instance_count += 1
    entry.instance = file.header.instance_count


def add(
    file: File,
    card: int,
    text: str,
    gi: int | None = None,
    ci: int | None = None,
    identity: str = "",
    bare: bool = False,
) -> int:
    """Make an instance and return its entry. `bare`: a GPU instance without any compute instance."""
    whole = file.cards[card]
    profile = profile_of(whole, text)
    if not file.boards[card].mig_mode[0]:
        raise SimError(f"card {card}: MIG is off")
    gi = _gi_for(file, card, profile, gi)
    siblings = instances_of(file, card, gi)
    taken = {file.cards[index].ci for index in siblings}
    if ci is None:
        ci = min(set(range(COMPUTE_INSTANCES)) - taken)
    if ci in taken or not 0 <= ci < COMPUTE_INSTANCES:
        raise SimError(f"card {card}: compute instance {gi}/{ci} exists, or is not 0 to {COMPUTE_INSTANCES - 1}")
    bare_entries = [index for index in siblings if file.cards[index].ci == NO_COMPUTE]
    free = [index for index in range(file.header.card_count, MAX_CARDS) if not file.cards[index].instance]
    if not bare_entries + free:
        raise SimError(f"{MAX_CARDS} cards and instances, expected at most {MAX_CARDS}")
    index = (bare_entries + free)[0]
    number = uuid.UUID(int=0) if bare else uuid.UUID(identity.removeprefix("MIG-") or secrets.token_hex(16))
    _fill(file, index, card, profile, gi, NO_COMPUTE if bare else ci, number)
    return index


def lay_out(file: File, profile: dict[str, Any]) -> None:
    """Write the cards of a profile, and the instances of those that have the key `mig`."""
    file.header.card_count = len(profile["cards"])
    for index, card in enumerate(profile["cards"]):
        file.cards[index] = build_card(profile, index)
        if card.get("mig") is None:
            continue
        file.boards[index].mig_mode = (ctypes.c_uint32 * 2)(1, 1)
        for number, wish in enumerate(card["mig"]):
            identity = wish.get("uuid") or uuid.uuid5(uuid.NAMESPACE_DNS, f"mig{number}.{label_of(profile, index)}").hex
            bare = "ci" in wish and wish["ci"] is None
            add(file, index, wish["profile"], wish.get("gi"), wish.get("ci"), identity, bare)


@contextlib.contextmanager
def locked(directory: str) -> Iterator[File]:
    """The state's file, in place, under the lock that the libraries take."""
    fd = os.open(os.path.join(directory, "cards"), os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLKW, struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
        yield File.from_buffer(mmap.mmap(fd, ctypes.sizeof(File)))
    finally:
        os.close(fd)


def _check_card(file: File, card: int) -> None:
    if not 0 <= card < file.header.card_count:
        raise SimError(f"card {card}: expected 0 to {file.header.card_count - 1}")


def _empty(file: File, index: int) -> None:
    """Free an entry. What programs hold on it is gone: their calls fail from now on."""
    file.cards[index].instance = 0
    for slot in file.slots[: file.header.slot_high]:
        slot.allocated[index] = slot.context[index] = slot.unlisted[index] = slot.busy_ns[index] = 0
        slot.running[index] = 0
    for share in file.shares:
        if share.card == index:
            share.size = 0


def set_mig(directory: str, card: int, on: bool, pending: bool = False) -> None:
    """Turn MIG on or off; `pending`: at the card's next reset, which never comes. Turning it off ends all instances."""
    with locked(directory) as file:
        _check_card(file, card)
        if on and file.cards[card].compute_major < 8:
            raise SimError(f"card {card}: {file.cards[card].name.decode()} has no MIG")
        file.boards[card].mig_mode[1] = on
        if not pending:
            file.boards[card].mig_mode[0] = on
        if not file.boards[card].mig_mode[0]:
            for index in instances_of(file, card):
                _empty(file, index)


def create_instance(
    directory: str, card: int, profile: str, gi: int | None = None, identity: str = "", bare: bool = False
) -> tuple[int, int, str]:
    """Make a GPU instance with a compute instance, or for `1c.3g.40gb` a compute instance in one that has room.

    Returns its ids and UUID. `bare`: a GPU instance without a compute instance.
    """
    with locked(directory) as file:
        _check_card(file, card)
        entry = file.cards[add(file, card, profile, gi, identity=identity, bare=bare)]
        return entry.gi, entry.ci, name_of(entry)


def destroy_instance(directory: str, card: int, gi: int, ci: int | None = None) -> None:
    """Destroy a compute instance, or a GPU instance with all that are in it."""
    with locked(directory) as file:
        _check_card(file, card)
        entries = instances_of(file, card, gi)
        gone = [index for index in entries if ci in (None, file.cards[index].ci)]
        if not gone:
            raise SimError(f"card {card}: no instance {gi}" + ("" if ci is None else f"/{ci}"))
        profile = profile_of(file.cards[card], gi_profile(file.cards[gone[0]]))
        for index in gone:
            _empty(file, index)
        if ci is not None and entries == gone:
            _fill(file, gone[0], card, profile, gi, NO_COMPUTE, uuid.UUID(int=0))
