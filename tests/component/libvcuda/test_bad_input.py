"""Damage to the limits file and the usage region while programs run. Calls return, and no other container is affected.

Files that are damaged before a program starts are in test_limit.py. Damage without processes is in test_fuzz.py.
"""

from __future__ import annotations

import os
import random
import struct
import time
from typing import TYPE_CHECKING, Callable

import pytest

from vgpu.config import core_schedule, limits, usage
from vgpu.config.errors import VgpuError

if TYPE_CHECKING:
    from vcuda_boxes import Box, Client, SimBox

OUT_OF_MEMORY = 2
NOT_READY = 802
MIB = 1 << 20
LIMIT = 64 * MIB
SIZE = len(limits.encode("box", []))
SEQUENCE = 8  #: its offset
PTX = ".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry spin_10us() { ret; }\n"


def header(magic: int, version: int, sequence: int, count: int) -> bytes:
    return struct.pack("=IIQI", magic, version, sequence, count)


MAGIC = 0x55504756
IN_PLACE = {
    "garbage": b"\x5a" * SIZE,
    "garbage that seems to be written": b"\xa5" * SIZE,
    "another version": header(MAGIC, 2, 1 << 20, 1).ljust(SIZE, b"\1"),
    "too many cards": header(MAGIC, 1, 1 << 20, 33).ljust(SIZE, b"\1"),
    "zeros": bytes(SIZE),
    "no cards": header(MAGIC, 1, 1 << 20, 0).ljust(SIZE, b"\0"),
}


def overwrite(box: Box, content: bytes) -> None:
    with (box.path / "limits").open("r+b") as file:
        file.write(content)


@pytest.mark.parametrize("what", [name for name in IN_PLACE if name != "no cards"])
def test_limits_overwritten_under_use_leave_the_last_good_ones(awkward: Box, what: str) -> None:
    awkward.limit(LIMIT)
    before = (awkward.path / "limits").read_bytes()
    client = awkward.opened()
    overwrite(awkward, IN_PLACE[what])
    assert client.alloc(LIMIT)[0] == 0
    assert client.alloc(1)[0] == OUT_OF_MEMORY
    assert client.free_bytes() == 0
    late = awkward.start()
    assert late.numbers("init") == (NOT_READY,)
    restored = bytearray(before)
    struct.pack_into("=Q", restored, SEQUENCE, 1 << 30)
    overwrite(awkward, bytes(restored))
    awkward.limit(LIMIT + MIB)
    assert client.alloc(MIB)[0] == 0
    assert client.alloc(1)[0] == OUT_OF_MEMORY


def test_a_card_that_the_host_takes_from_the_list_has_no_limit(awkward: Box) -> None:
    awkward.limit(LIMIT)
    client = awkward.opened()
    overwrite(awkward, IN_PLACE["no cards"])
    assert client.alloc(2 * LIMIT)[0] == 0


@pytest.mark.parametrize("size", [1, 20, SIZE - 1])
def test_limits_cut_short_under_use_leave_the_last_good_ones(awkward: Box, size: int) -> None:
    """The mapped page stays, with zeros behind the file's end. An empty file would cause SIGBUS."""
    awkward.limit(LIMIT)
    client = awkward.opened()
    os.truncate(awkward.path / "limits", size)
    assert client.alloc(LIMIT)[0] == 0
    assert client.alloc(1)[0] == OUT_OF_MEMORY
    assert awkward.start().numbers("init") == (NOT_READY,)


def test_limits_replaced_by_another_file_leave_the_mapped_ones(awkward: Box) -> None:
    awkward.limit(LIMIT)
    client = awkward.opened()
    other = awkward.path / "other"
    other.write_bytes(limits.encode("box", [limits.CardLimit(awkward.uuid, 8 * LIMIT)]))
    other.rename(awkward.path / "limits")
    assert client.fills(MIB) == LIMIT


def make_directory(path: str) -> None:
    os.mkdir(path)


def make_link(path: str) -> None:
    os.symlink("/etc/passwd", path)


@pytest.mark.parametrize("make", [os.mkfifo, make_directory, make_link])
def test_what_is_no_file_in_the_regions_place_refuses_memory(awkward: Box, make: Callable[[str], None]) -> None:
    awkward.limit(LIMIT)
    make(str(awkward.path / "usage/usage"))
    client = awkward.opened()
    assert client.alloc(1)[0] == OUT_OF_MEMORY
    assert client.alloc(1, "async")[0] == OUT_OF_MEMORY
    assert len(awkward.log.splitlines()) == 1


# Files of another layout, by a libvcuda or a host of another version. The limits file's is in IN_PLACE


def test_a_usage_region_of_another_layout_is_not_written(awkward: Box) -> None:
    awkward.limit(LIMIT)
    region = struct.pack("=Q", usage.IDENTITY + (1 << 32)).ljust(usage.SIZE, b"\0")
    (awkward.path / "usage/usage").write_bytes(region)
    client = awkward.opened()
    assert client.alloc(1)[0] == OUT_OF_MEMORY
    assert "not a usage region of this version; device memory is refused" in awkward.log
    assert (awkward.path / "usage/usage").read_bytes() == region


def test_a_core_schedule_of_another_layout_is_not_read(sim_box: Callable[..., SimBox]) -> None:
    box = sim_box("t4x1")
    share(box)
    schedules = bytearray(core_schedule.encode([core_schedule.CoreSchedule(box.uuid, tenants=2)]))
    (version,) = struct.unpack_from("=I", schedules, 4)
    struct.pack_into("=I", schedules, 4, version + 1)
    (box.path / "cards").write_bytes(schedules)
    assert works(*with_kernel(box, "info"))
    assert "the file is not of this version; the container runs without a schedule" in box.log


# Fields of the usage region, forged while a program with a core share runs

PARTS = {
    "slots_seen": (8, usage.HEADER.size),
    "cards": (usage.HEADER.size, usage.CARDS_END),
    "slots": (usage.CARDS_END, usage.CHARGES_OFFSET),
    "charges": (usage.CHARGES_OFFSET, usage.OVERHEADS_OFFSET),
    "overheads": (usage.OVERHEADS_OFFSET, usage.TIMES_OFFSET),
    "times": (usage.TIMES_OFFSET, usage.FLIGHTS_OFFSET),
    "flights": (usage.FLIGHTS_OFFSET, usage.UNLISTED_OFFSET),
    "unlisted": (usage.UNLISTED_OFFSET, usage.SIZE),
}
WORDS = (0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)


def forge(box: Box, part: str, word: int) -> None:
    start, end = PARTS[part]
    with (box.path / "usage/usage").open("r+b") as file:
        file.seek(start)
        file.write(struct.pack("=Q", word) * ((end - start) // 8))


def share(box: SimBox) -> None:
    """Half of the card's time, without phases, and LIMIT of its memory."""
    (box.path / "limits").write_bytes(limits.encode("box", [limits.CardLimit(box.uuid, LIMIT, 50, 50)]))


def buffer(client: Client, name: str, text: str) -> str:
    """The address of a text in the program."""
    made = f"ctypes.create_string_buffer(bytes.fromhex('{text.encode().hex()}'))"
    return client.ask(f"python ctypes.addressof(globals().setdefault('{name}',{made}))")[0]


def with_kernel(box: SimBox, level: str = "error") -> tuple[Client, int]:
    """A program and a kernel of 10 us."""
    client = box.caller(level=level)
    image, name = buffer(client, "image", PTX), buffer(client, "name", "spin_10us")
    return client, client.made(f"cuModuleGetFunction & {client.made(f'cuModuleLoadData & {image}')} {name}")


def works(client: Client, kernel: int) -> bool:
    """Whether every call returns, with any result. False: the program has ended or hangs."""
    calls = [
        "cuMemAlloc_v2 & 65536",
        "cuMemAllocAsync & 65536 0",
        "cuMemGetInfo_v2 & &",
        f"cuLaunchKernel {kernel} 1 1 1 32 1 1 0 0 0 0",
        "cuCtxSynchronize",
    ]
    return all(client.ask(call) for call in calls)


@pytest.mark.parametrize("part", PARTS)
def test_forged_words_stop_no_program_and_reach_no_other_container(sim_box: Callable[..., SimBox], part: str) -> None:
    victim, other = sim_box("t4x1"), sim_box("t4x1")
    share(victim)
    other.limit(LIMIT)
    client, kernel = with_kernel(victim)
    assert works(client, kernel)
    for word in WORDS:
        forge(victim, part, word)
        assert works(client, kernel), hex(word)
        assert works(*with_kernel(victim)), hex(word)
    assert other.opened().fills(MIB) == LIMIT
    try:
        said = usage.decode((victim.path / "usage/usage").read_bytes())
    except VgpuError:
        said = {}
    assert len(said) <= limits.MAX_CARDS


def test_a_slot_that_was_scribbled_on_before_it_was_anybodys(sim_box: Callable[..., SimBox]) -> None:
    """The work in flight that such a slot contains is not this process's."""
    box = sim_box("t4x1")
    share(box)
    with_kernel(box)
    forge(box, "flights", WORDS[-1])
    box.clients[0].kill()
    with (box.path / "usage/usage").open("r+b") as file:  # nobody's: the next one is not to clean up after the first
        file.seek(usage.CARDS_END)
        file.write(bytes(usage.SLOT.size))
    assert works(*with_kernel(box))


def test_a_scribbler_at_work_stops_no_program(sim_box: Callable[..., SimBox]) -> None:
    """Random words are written at random places as long as two programs are busy."""
    victim, other = sim_box("t4x1"), sim_box("t4x1")
    share(victim)
    other.limit(LIMIT)
    programs = [with_kernel(victim) for _ in range(2)]
    chance = random.Random(7)
    deadline = time.monotonic() + 0.4
    with (victim.path / "usage/usage").open("r+b", buffering=0) as file:
        while time.monotonic() < deadline:
            for _ in range(50):
                start, end = PARTS[chance.choice(list(PARTS))]
                file.seek(start + 8 * chance.randrange((end - start) // 8))
                file.write(struct.pack("=Q", chance.choice((*WORDS, chance.getrandbits(64)))))
            assert all(works(client, kernel) for client, kernel in programs)
    assert other.opened().fills(MIB) == LIMIT
