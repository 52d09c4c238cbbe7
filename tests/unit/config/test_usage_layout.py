"""The usage region's layout: vgpu.config.usage says what libvcuda/include/vgpu_usage.h says."""

from __future__ import annotations

import random
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from vgpu.config import limits, usage
from vgpu.config.errors import VgpuError

PROGRAM = """
#include <stddef.h>
#include <stdio.h>
#include "vgpu_usage.h"

#define NUMBER(name, value) printf("%s %llu\\n", name, (unsigned long long)(value))

int main(void)
{
    NUMBER("IDENTITY", VGPU_USAGE_IDENTITY);
    NUMBER("SLOTS", VGPU_USAGE_SLOTS);
    NUMBER("MAX_CARDS", VGPU_LIMITS_MAX_CARDS);
    NUMBER("SIZE", sizeof(struct vgpu_usage));
    NUMBER("CARD", sizeof(struct vgpu_usage_card));
    NUMBER("SLOT", sizeof(struct vgpu_usage_slot));
    NUMBER("CHARGE", sizeof(struct vgpu_usage_charge));
    NUMBER("TIME", sizeof(struct vgpu_usage_time));
    NUMBER("FLIGHT", sizeof(struct vgpu_usage_flight));
    NUMBER("identity", offsetof(struct vgpu_usage, identity));
    NUMBER("slots_seen", offsetof(struct vgpu_usage, slots_seen));
    NUMBER("cards", offsetof(struct vgpu_usage, cards));
    NUMBER("slots", offsetof(struct vgpu_usage, slots));
    NUMBER("charges", offsetof(struct vgpu_usage, charges));
    NUMBER("times", offsetof(struct vgpu_usage, times));
    NUMBER("flights", offsetof(struct vgpu_usage, flights));
    NUMBER("card.key", offsetof(struct vgpu_usage_card, key));
    NUMBER("card.uuid", offsetof(struct vgpu_usage_card, uuid));
    NUMBER("charge.attempting", offsetof(struct vgpu_usage_charge, attempting));
    NUMBER("charge.reserved", offsetof(struct vgpu_usage_charge, reserved));
    NUMBER("overheads", offsetof(struct vgpu_usage, overheads));
    NUMBER("OVERHEAD_UNIT", VGPU_USAGE_OVERHEAD_UNIT);
    NUMBER("time.level", offsetof(struct vgpu_usage_time, level));
    NUMBER("TIME", sizeof(struct vgpu_usage_time));
    NUMBER("FLIGHT", sizeof(struct vgpu_usage_flight));
    NUMBER("times", offsetof(struct vgpu_usage, times));
    NUMBER("flights", offsetof(struct vgpu_usage, flights));
    NUMBER("time.used", offsetof(struct vgpu_usage_time, used));
    NUMBER("time.wanted", offsetof(struct vgpu_usage_time, wanted));
    NUMBER("time.waited", offsetof(struct vgpu_usage_time, waited));
    NUMBER("time.longest", offsetof(struct vgpu_usage_time, longest));
    printf("PATH %s\\n", VGPU_USAGE_PATH);
    return 0;
}
"""


@pytest.fixture(scope="module")
def header(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the compiler says of the header."""
    if not shutil.which("cc"):
        pytest.skip("cc is missing")
    directory = tmp_path_factory.mktemp("usage")
    (directory / "usage.c").write_text(PROGRAM)
    include = repository / "libvcuda/include"
    command = ["cc", "-std=gnu11", "-Wall", "-Werror", f"-I{include}", "-o", "usage", "usage.c"]
    subprocess.run(command, cwd=directory, check=True)
    output = subprocess.run([directory / "usage"], capture_output=True, text=True, check=True).stdout
    return dict(line.split(" ", 1) for line in output.splitlines())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("IDENTITY", usage.IDENTITY),
        ("SLOTS", usage.SLOTS),
        ("MAX_CARDS", limits.MAX_CARDS),
        ("SIZE", usage.SIZE),
        ("CARD", usage.CARD.size),
        ("SLOT", usage.SLOT.size),
        ("CHARGE", usage.CHARGE.size),
        ("TIME", usage.TIME.size),
        ("FLIGHT", usage.FLIGHT.size),
        ("identity", 0),
        ("slots_seen", 8),
        ("cards", usage.HEADER.size),
        ("slots", usage.HEADER.size + limits.MAX_CARDS * usage.CARD.size),
        ("charges", usage.CHARGES_OFFSET),
        ("times", usage.TIMES_OFFSET),
        ("flights", usage.FLIGHTS_OFFSET),
        ("card.key", 0),
        ("card.uuid", 8),
        ("charge.attempting", 0),
        ("charge.reserved", 8),
        ("overheads", usage.OVERHEADS_OFFSET),
        ("OVERHEAD_UNIT", usage.OVERHEAD_UNIT),
        ("time.level", 0),
        ("time.used", 64),
        ("time.wanted", 72),
        ("time.waited", 80),
        ("time.longest", 88),
        ("TIME", usage.TIME.size),
        ("FLIGHT", usage.FLIGHT.size),
        ("times", usage.TIMES_OFFSET),
        ("flights", usage.FLIGHTS_OFFSET),
        ("PATH", usage.PATH),
    ],
)
def test_header_and_module_agree(header: dict[str, str], name: str, value: object) -> None:
    assert header[name] == str(value)


def region(slots_seen: int, cards: dict[int, bytes], charges: dict[tuple[int, int], int]) -> bytes:
    data = bytearray(usage.SIZE)
    struct.pack_into("=QQ", data, 0, usage.IDENTITY, slots_seen)
    for index, uuid in cards.items():
        struct.pack_into("=Q16s", data, 64 + 32 * index, 1 + index, uuid)
    for (card, slot), reserved in charges.items():
        at = usage.CHARGES_OFFSET + usage.CHARGE.size * (card * usage.SLOTS + slot)
        usage.CHARGE.pack_into(data, at, 99, reserved)
    return bytes(data)


def test_decode_sums_the_slots_of_each_card() -> None:
    one, other = bytes(range(16)), b"\xff" * 16
    data = region(3, {0: one, 31: other}, {(0, 0): 5, (0, 2): 7, (0, 3): 1000, (31, 1): 1 << 40, (4, 0): 1})
    assert usage.decode(data) == {limits.uuid_text(one): 12, limits.uuid_text(other): 1 << 40}


def test_what_the_driver_took_is_no_allocation() -> None:
    data = bytearray(region(3, {1: bytes(16)}, {(1, 0): 5 * 4096, (1, 1): 4000, (1, 2): 7}))
    for slot, units in enumerate((2, 1, 0)):
        at = usage.OVERHEADS_OFFSET + usage.OVERHEAD.size * (usage.SLOTS + slot)
        usage.OVERHEAD.pack_into(data, at, units)
    assert list(usage.allocated(bytes(data)).values()) == [3 * 4096 + 7]


def test_times_are_read_at_the_cards_place() -> None:
    data = bytearray(region(0, {3: bytes(range(16)), 5: b"\x07" * 16}, {}))
    usage.TIME.pack_into(data, usage.TIMES_OFFSET + 5 * usage.TIME.size, -4, *range(1, 12))
    found = usage.places(bytes(data[: usage.CARDS_END]))
    assert found == {limits.uuid_text(bytes(range(16))): 3, limits.uuid_text(b"\x07" * 16): 5}
    times = bytes(data[usage.TIMES_OFFSET : usage.FLIGHTS_OFFSET])
    time, none = usage.time_at(times, 5), usage.time_at(times, 3)
    assert (time.used, time.wanted, time.waited, time.longest) == (8, 9, 10, 11)
    assert (none.used, none.wanted, none.waited, none.longest) == (0, 0, 0, 0)


@pytest.mark.parametrize("head", [b"", bytes(usage.CARDS_END), usage.BEGINNING])
def test_what_is_no_region_has_no_places(head: bytes) -> None:
    assert usage.places(head) == {}


def test_a_new_region_holds_nothing() -> None:
    assert usage.decode(usage.BEGINNING.ljust(usage.SIZE, b"\0")) == {}


def test_a_tenants_count_of_slots_is_bounded() -> None:
    data = region((1 << 64) - 1, {0: bytes(16)}, {(0, usage.SLOTS - 1): 3, (1, 0): 1000})
    assert list(usage.decode(data).values()) == [3]


@pytest.mark.parametrize(
    "data", [b"", bytes(usage.SIZE), usage.BEGINNING, usage.BEGINNING.ljust(usage.SIZE + 1, b"\0")]
)
def test_what_is_no_region_is_refused(data: bytes) -> None:
    with pytest.raises(VgpuError, match="usage region"):
        usage.decode(data)


def test_damage_never_raises_anything_else() -> None:
    noise = random.Random(7)
    for _ in range(20):
        data = bytearray(region(8, {0: bytes(16)}, {(0, 0): 1}))
        for _ in range(200):
            data[noise.randrange(16, 4096)] = noise.randrange(256)
        assert all(value >= 0 for value in usage.decode(bytes(data)).values())
