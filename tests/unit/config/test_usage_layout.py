"""Reading usage regions by vgpu.config.usage, damaged ones included."""

from __future__ import annotations

import struct

import pytest

from vgpu.config import limits, usage
from vgpu.config.errors import VgpuError


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


def test_owners_are_those_of_charged_slots() -> None:
    data = bytearray(region(4, {0: bytes(16), 1: b"\x01" * 16}, {(0, 1): 5, (1, 1): 6, (1, 2): 7}))
    for slot, owner in ((0, 11), (1, 99 << usage.PID_BITS | 12), (3, 14)):
        usage.SLOT.pack_into(data, usage.CARDS_END + slot * usage.SLOT.size, owner, 8 << 32 | 9, 0, 0, 0)
    (found,) = usage.owners(bytes(data))
    assert (found.slot, found.pid, found.start_time, found.reaped) == (1, 12, 99, False)
    assert (found.pid_namespace, found.time_namespace) == (9, 8)
    assert list(usage.decode(bytes(data), ended=frozenset({1})).values()) == [0, 7], (
        "slot 2 names no owner, so it counts"
    )


def test_the_drivers_own_memory_is_no_allocation() -> None:
    data = bytearray(region(3, {1: bytes(16)}, {(1, 0): 5 * 4096, (1, 1): 4000, (1, 2): 7}))
    for slot, units in enumerate((2 | usage.EXPECTED, 1, 0)):
        at = usage.OVERHEADS_OFFSET + usage.OVERHEAD.size * (usage.SLOTS + slot)
        usage.OVERHEAD.pack_into(data, at, units)
    assert list(usage.allocated(bytes(data)).values()) == [3 * 4096 + 7]
    assert list(usage.allocated(bytes(data[: usage.UNLISTED_OFFSET])).values()) == [3 * 4096 + 7], "an earlier one"


def test_what_nvml_does_not_list_is_no_allocation_that_it_lists() -> None:
    data = bytearray(region(1, {1: bytes(16)}, {(1, 0): 7 << 20}))
    usage.UNLISTED.pack_into(data, usage.UNLISTED_OFFSET + usage.UNLISTED.size * usage.SLOTS, 3)
    assert list(usage.allocated(bytes(data)).values()) == [7 << 20]
    assert list(usage.listed(bytes(data)).values()) == [1 << 20]


def test_times_are_read_at_the_cards_place() -> None:
    data = bytearray(region(0, {3: bytes(range(16)), 5: b"\x07" * 16}, {}))
    usage.TIME.pack_into(data, usage.TIMES_OFFSET + 5 * usage.TIME.size, -4, *range(1, 12))
    found = usage.places(bytes(data[: usage.CARDS_END]))
    assert found == {limits.uuid_text(bytes(range(16))): 3, limits.uuid_text(b"\x07" * 16): 5}
    times = bytes(data[usage.TIMES_OFFSET : usage.FLIGHTS_OFFSET])
    time, none = usage.time_at(times, 5), usage.time_at(times, 3)
    assert (time.used, time.wanted, time.waited, time.longest) == (8, 9, 10, 11)
    assert (none.used, none.wanted, none.waited, none.longest) == (0, 0, 0, 0)


def test_waits_and_refusals_are_read_where_libvcuda_counts_them() -> None:
    data = bytearray(region(0, {2: bytes(range(16))}, {}))
    usage.COUNTS.pack_into(data, usage.TIMES_OFFSET + 2 * usage.TIME.size + usage.COUNTS_OFFSET, 1 << 40, *range(6))
    time = usage.time_at(bytes(data[usage.TIMES_OFFSET : usage.FLIGHTS_OFFSET]), 2)
    assert (time.throttled, time.refusals, time.waits) == (1 << 40, 0, (1, 2, 3, 4, 5))
    assert time.longest == 0
    assert not usage.has_counts(bytes(data[: usage.CARDS_END]))
    usage.MARKS.pack_into(data, usage.MARKS_OFFSET, usage.MARK_COUNTS)
    head = bytes(data[: usage.CARDS_END])
    assert (usage.has_counts(head), usage.locks_are_refused(head)) == (True, False)
    assert not usage.has_counts(b"")


def test_a_container_says_that_its_locks_are_refused() -> None:
    data = bytearray(region(0, {2: bytes(range(16))}, {}))
    usage.MARKS.pack_into(data, usage.MARKS_OFFSET, usage.MARK_LOCKS_REFUSED)
    head = bytes(data[: usage.CARDS_END])
    assert (usage.has_counts(head), usage.locks_are_refused(head)) == (False, True)
    assert not usage.locks_are_refused(b"")


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
