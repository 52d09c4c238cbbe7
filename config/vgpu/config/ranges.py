"""Sets of whole numbers as ranges: `0-3,7` as text, [(0, 3), (7, 7)] as values, both ends included.

Belongs here: making, reading, writing and comparing ranges, as pure functions. Not here: the meaning of the numbers.
The hook's process loads this.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # not at run time: it costs the hook's process time
    from collections.abc import Iterable

Range = tuple[int, int]

MAX_DIGITS = 9  #: of one number


def of(numbers: Iterable[int]) -> list[Range]:
    """The fewest ranges with exactly these numbers, in ascending order."""
    found: list[Range] = []
    for number in sorted(numbers):
        if found and found[-1][1] + 1 == number:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def text(ranges: Iterable[Range]) -> str:
    """The text of `ranges`, which `read` reads."""
    return ",".join(f"{low}-{high}" if high > low else str(low) for low, high in ranges)


def read(written: str) -> list[Range]:
    """The ranges in their order. Parts that are no numbers are left out."""
    found = []
    for item in written.split(","):
        low, _, high = item.partition("-")
        if is_number(low) and (not high or is_number(high)):
            found.append((int(low), int(high or low)))
    return found


def is_number(written: str) -> bool:
    """Whether the text is at most MAX_DIGITS digits and nothing else."""
    return written.isascii() and written.isdigit() and len(written) <= MAX_DIGITS


def overlap(one: Iterable[Range], other: Iterable[Range]) -> bool:
    """Whether some number is in both. One pass, because a grant in units of 1 MiB may have thousands of ranges."""
    left, right = sorted(one, reverse=True), sorted(other, reverse=True)
    while left and right:
        (a, b), (c, d) = left[-1], right[-1]
        if a <= d and c <= b:
            return True
        (left if b < c else right).pop()
    return False
