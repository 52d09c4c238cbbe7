"""Core schedules: the layout that the C header has, changes in place, and the rule that divides a card's time."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from vgpu.config import core_schedule, limits
from vgpu.config.core_schedule import CoreSchedule
from vgpu.config.errors import VgpuError

UUIDS = [f"GPU-{index:08x}-1111-2222-3333-444455556666" for index in range(limits.MAX_CARDS + 1)]


def page(index: int, seed: int = 0) -> CoreSchedule:
    """A schedule whose fields all differ."""
    return CoreSchedule(UUIDS[index], *(seed + number for number in range(1, 7)))


@pytest.mark.parametrize("count", [0, 1, 2, limits.MAX_CARDS])
def test_round_trip(count: int) -> None:
    pages = [page(index, index) for index in range(count)]
    data = core_schedule.encode(pages, 77)
    assert len(data) == core_schedule.SIZE
    assert core_schedule.decode(data) == (pages, 77)


def test_update_changes_one_schedule_of_a_live_file_in_place(tmp_path: Path) -> None:
    path = tmp_path / "cards"
    path.write_bytes(core_schedule.encode([page(0), page(1)], 9))
    inode = path.stat().st_ino
    as_instance = page(1, 50)
    as_instance.uuid = as_instance.uuid.replace("GPU", "MIG")
    core_schedule.update(str(path), as_instance)
    assert core_schedule.decode(path.read_bytes()) == ([page(0), page(1, 50)], 9)
    sequences = [
        core_schedule.HEADER.size + index * core_schedule.PAGE.size + core_schedule.SEQUENCE_OFFSET for index in (0, 1)
    ]
    assert [struct.unpack_from("=Q", path.read_bytes(), at)[0] for at in sequences] == [2, 4]
    assert path.stat().st_ino == inode


@pytest.mark.parametrize(
    "data", [b"", bytes(core_schedule.SIZE), core_schedule.encode([])[:-1], core_schedule.encode([]) + b"\0"]
)
def test_other_contents_are_refused_and_left_alone(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "cards"
    path.write_bytes(data)
    with pytest.raises(VgpuError, match="expected"):
        core_schedule.update(str(path), page(0))
    assert path.read_bytes() == data


def test_an_unknown_card_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cards"
    path.write_bytes(core_schedule.encode([page(0)]))
    with pytest.raises(VgpuError, match="expected a card in this file"):
        core_schedule.update(str(path), page(1))


def crowds(count: int) -> Iterator[list[int]]:
    noise = random.Random(3)
    for _ in range(count):
        yield [noise.randrange(1, 100) for _ in range(noise.randrange(2, 17))]


def test_shares_and_the_cost_of_switches_fit_the_period() -> None:
    for shares in crowds(300):
        pages = core_schedule.schedule(UUIDS[0], shares)
        period = pages[0].period
        assert core_schedule.SHORTEST_PERIOD_NS <= period <= core_schedule.LONGEST_PERIOD_NS
        assert {(page.period, page.tenants, page.lent_until) for page in pages} == {(period, len(shares), 0)}
        quotas = [page.share * period // 1_000_000 for page in pages]
        assert sum(quotas) + core_schedule.CHANGE_NS * len(shares) <= period
        assert all(0 < page.share <= share * 10_000 for page, share in zip(pages, shares))


def test_shares_of_more_than_the_card_shrink_alike() -> None:
    for shares in crowds(100):
        pages = core_schedule.schedule(UUIDS[0], [99, *shares])
        whole = sum(page.share for page in pages)
        for page, share in zip(pages, [99, *shares]):
            assert page.share == pytest.approx(whole * share / sum([99, *shares]), abs=20)


def test_shares_that_leave_room_lose_nothing() -> None:
    assert [page.share for page in core_schedule.schedule(UUIDS[0], [30, 20])] == [300_000, 200_000]


def test_the_period_is_longer_for_small_shares() -> None:
    periods = [core_schedule.period_of([50, share]) for share in (50, 40, 30, 25, 20, 5)]
    assert periods[0] == core_schedule.SHORTEST_PERIOD_NS
    assert periods == sorted(periods)
    assert periods[-1] == core_schedule.LONGEST_PERIOD_NS


def test_the_period_is_longer_where_changes_are_dear() -> None:
    """All of them take a 32nd of it, as far as the longest period permits."""
    assert [core_schedule.period_of([10] * count, 1_000_000) for count in (2, 5, 20)] == [
        core_schedule.LONGEST_PERIOD_NS, 160_000_000, core_schedule.LONGEST_FOR_CHANGES_NS,
    ]  # fmt: skip


def test_a_container_alone_on_a_card_has_no_period() -> None:
    assert core_schedule.schedule(UUIDS[0], [30]) == [CoreSchedule(UUIDS[0], tenants=1, may_borrow=1)]


def test_each_card_of_a_container_is_shared_for_itself() -> None:
    first, second, third = UUIDS[:3]
    held = {"a": {first: 30}, "pair": {second: 20, first: 20}, "b": {first: 90, third: 10}}
    made = core_schedule.schedules(held)
    crowded = core_schedule.schedule(first, [30, 20, 90])
    assert made["a"] == [crowded[0]]
    assert made["pair"] == [CoreSchedule(second, tenants=1, may_borrow=1), crowded[1]]
    assert made["b"] == [crowded[2], CoreSchedule(third, tenants=1, may_borrow=1)]


def test_lending_changes_nothing_else() -> None:
    plain = page(0)
    lent = plain.lending(80, 10**12)
    assert (lent.lent_rate, lent.lent_until) == (80, 10**12)
    assert lent.lending(plain.lent_rate, plain.lent_until) == plain
    assert plain == page(0)
