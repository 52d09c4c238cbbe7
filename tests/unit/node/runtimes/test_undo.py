"""The merge of three texts: our lines go, all others stay."""

from __future__ import annotations

import random

import pytest

from vgpu.node.runtimes.undo import reverse

BEFORE = "a\nb\nc\nd\n"


@pytest.mark.parametrize(
    ("written", "now", "result"),
    [
        ("a\nX\nb\nc\nd\n", "0\na\nX\nb\nc\nd\ne\n", "0\na\nb\nc\nd\ne\n"),
        ("a\nB\nc\nd\n", "a\nB\nc\nD\n", "a\nb\nc\nD\n"),
        ("a\nd\n", "a\nd\ne\n", "a\nb\nc\nd\ne\n"),
        (BEFORE + "X\n", "a\nc\nX\n", "a\nc\n"),
        (BEFORE + "X\nY\n", BEFORE + "X\nmine\nY\n", None),
        ("a\nB\nc\nd\n", "a\nmine\nc\nd\n", None),
    ],
)
def test_our_lines_go(written: str, now: str, result: str | None) -> None:
    assert reverse(BEFORE, written, now) == result


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_line_after_the_last_one_that_had_no_end(end: str) -> None:
    before, written = f"a{end}b", f"a{end}b{end}X{end}"
    assert reverse(before, written, written) == before + end
    assert reverse(before, written, f"{written}mine{end}") == f"{before}{end}mine{end}"
    assert reverse("", f"X{end}", f"X{end}mine{end}") == f"mine{end}"


@pytest.mark.parametrize("seed", range(40))
def test_random_edits_elsewhere_are_kept(seed: int) -> None:
    rng = random.Random(seed)
    before = [f"line {number}\n" for number in range(12)]
    at = rng.randrange(12)
    ours = ["ours 1\n", "ours 2\n"][: rng.randrange(1, 3)]
    replaced = rng.randrange(2)
    written = before[:at] + ours + before[at + replaced :]
    others = [number for number in range(12) if abs(number - at) > 1]
    changed = {number: f"mine {number}\n" * rng.randrange(3) for number in rng.sample(others, 3)}

    def edited(lines: list[str]) -> str:
        names = {line: text for number, text in changed.items() for line in [f"line {number}\n"]}
        return "".join(names.get(line, line) for line in lines)

    assert reverse("".join(before), "".join(written), edited(written)) == edited(before)
