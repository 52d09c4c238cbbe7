"""Taking this program's lines out of a file that somebody edited since, and leaving every other line as it is.

Belongs here: the merge of three texts, as pure functions. Does not belong here: what the file means, which decides
whether the result may be used (vgpu.node.runtimes.registered_files).
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher


def reverse(before: str, written: str, now: str) -> str | None:
    """`now` without the step from `before` to `written`; None if somebody edited the lines of that step."""
    old, new = (_ended(text, now).splitlines(True) for text in (before, written))
    result = now.splitlines(True)
    place = dict(_equal(new, result))
    for tag, i1, i2, j1, j2 in reversed(SequenceMatcher(None, old, new, autojunk=False).get_opcodes()):
        if tag == "equal":
            continue
        start = _place(place, j1, j2)
        if start is None:
            return None
        result[start : start + j2 - j1] = old[i1:i2]
    return "".join(result)


def line_end(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _ended(text: str, now: str) -> str:
    """`text` with a line end: a line may follow now where the file ended before."""
    return text + line_end(now) if text and not text.endswith("\n") and now.endswith("\n") else text


def _equal(one: list[str], other: list[str]) -> Iterator[tuple[int, int]]:
    """The numbers of equal lines."""
    for a, b, size in SequenceMatcher(None, one, other, autojunk=False).get_matching_blocks():
        yield from ((a + step, b + step) for step in range(size))


def _place(place: dict[int, int], first: int, end: int) -> int | None:
    """Where the lines from `first` to `end` stand now, one after the other; for no line, where one would stand."""
    if first == end:
        return place[first] if first in place else place[first - 1] + 1 if first - 1 in place else None
    found = [place.get(line) for line in range(first, end)]
    start = found[0]
    if start is None or found != list(range(start, start + end - first)):
        return None
    return start
