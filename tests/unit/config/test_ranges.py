"""Ranges of whole numbers: made, written, read, compared."""

from __future__ import annotations

import random

import pytest

from vgpu.config import ranges


@pytest.mark.parametrize(
    ("numbers", "found", "text"),
    [
        ([], [], ""),
        ([5], [(5, 5)], "5"),
        ([7, 2, 0, 1], [(0, 2), (7, 7)], "0-2,7"),
        ([3, 1, 5], [(1, 1), (3, 3), (5, 5)], "1,3,5"),
    ],
)
def test_numbers_become_few_ranges_and_text(numbers: list[int], found: list[ranges.Range], text: str) -> None:
    assert ranges.of(numbers) == found
    assert ranges.text(found) == text
    assert ranges.read(text) == found


def test_what_is_written_is_read_back() -> None:
    assert ranges.text(ranges.of([5, 3, 4, 9, 0])) == "0,3-5,9"
    assert ranges.text(ranges.of(range(20000))) == "0-19999"
    chance = random.Random(3)
    for _ in range(50):
        numbers = set(chance.sample(range(200), chance.randint(1, 150)))
        written = ranges.text(ranges.of(numbers))
        assert {number for low, high in ranges.read(written) for number in range(low, high + 1)} == numbers


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("0-3,7", [(0, 3), (7, 7)]),
        ("9-", [(9, 9)]),
        ("-3,x,1-y,4", [(4, 4)]),
        ("1 ,2", [(2, 2)]),
        ("999999999", [(999_999_999, 999_999_999)]),
        ("1000000000,0-1000000000", []),
        ("\u0663,\u00b2", []),
    ],
)
def test_what_is_no_number_is_left_out(text: str, found: list[ranges.Range]) -> None:
    assert ranges.read(text) == found


@pytest.mark.parametrize("seed", range(50))
def test_ranges_overlap_where_their_numbers_meet(seed: int) -> None:
    dice = random.Random(seed)
    one, other = ({dice.randrange(30) for _ in range(dice.randrange(5))} for _ in range(2))
    assert ranges.overlap(ranges.of(one), ranges.of(other)) == bool(one & other)
    assert ranges.overlap(ranges.of(other), ranges.of(one)) == bool(one & other)


def test_thousands_of_ranges_are_compared_in_one_pass() -> None:
    even, odd = [(at, at) for at in range(0, 200_000, 2)], [(at, at) for at in range(1, 200_000, 2)]
    assert not ranges.overlap(even, odd)
    assert ranges.overlap(even, [*odd, (199_998, 199_998)])
