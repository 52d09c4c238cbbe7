"""Edits of a JSON object's text that leave every other byte as it is.

Belongs here: where the members of an object lie in the text, and putting a member in, exchanging its value and taking
it out. Does not belong here: which members a runtime needs.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from vgpu.config.errors import VgpuError

_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()

Keys = tuple[str, ...]


@dataclass(frozen=True)
class Member:
    """A member of an object. `start` is the offset of its key, `value` that of its value, `end` the one behind it."""

    key: str
    start: int
    value: int
    end: int


def parse(text: str, source: str) -> dict[str, Any]:
    """The object. A key that occurs twice is an error: which of them counts depends on the reader."""
    try:
        value = json.loads(text, object_pairs_hook=_unique)
    except ValueError as error:
        raise VgpuError(source, expected="JSON", found=str(error), do="repair the file") from None
    if not isinstance(value, dict):
        raise VgpuError(source, expected="a JSON object", found=type(value).__name__, do="repair the file")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError(f"a key twice in one object: {[key for key, _ in pairs]}")
    return made


def assign(text: str, keys: Keys, value: object) -> str:
    """`text` with `value` at `keys`. Objects above that are missing are made."""
    start = _skip(text, 0)
    for depth, key in enumerate(keys):
        member = _find(text, start, key)
        if member is None:
            for missing in reversed(keys[depth + 1 :]):
                value = {missing: value}
            return _insert(text, start, depth, key, value)
        if depth < len(keys) - 1 and text[member.value] != "{":
            raise VgpuError(
                ".".join(keys[: depth + 1]), expected="a JSON object", found=text[member.value : member.end]
            )
        start, end = member.value, member.end
    return text[:start] + _dumps(value, _indent(text), len(keys) - 1) + text[end:]


def remove(text: str, keys: Keys) -> str:
    """`text` without the member `keys`; an object above that is empty then stays."""
    start = _skip(text, 0)
    for key in keys[:-1]:
        start = _member(text, start, key).value
    members = _members(text, start)
    at = next(number for number, member in enumerate(members) if member.key == keys[-1])
    if at > 0:
        return text[: members[at - 1].end] + text[members[at].end :]
    if len(members) > 1:
        return text[: members[0].start] + text[members[1].start :]
    return text[: start + 1] + text[members[0].end :].lstrip()


def _insert(text: str, start: int, depth: int, key: str, value: object) -> str:
    """A new last member of the object at `start`, in the style of the text."""
    indent = _indent(text)
    members = _members(text, start)
    new = f"{json.dumps(key)}: {_dumps(value, indent, depth)}"
    if indent is None:
        new = (", " if members else "") + new
    else:
        new = ("," if members else "") + "\n" + indent * (depth + 1) + new
    if members:
        return text[: members[-1].end] + new + text[members[-1].end :]
    close = _skip(text, start + 1)
    end = "" if indent is None else "\n" + indent * depth
    return text[: start + 1] + new + end + text[close:]


def _dumps(value: object, indent: str | None, depth: int) -> str:
    text = json.dumps(value, indent=indent)
    return text if indent is None else text.replace("\n", "\n" + indent * (depth + 1))


def _indent(text: str) -> str | None:
    """The indentation of the outermost members; None for text on one line."""
    found = re.search(r"\{[ \t]*\r?\n([ \t]+)\"", text)
    if found:
        return found[1]
    return None if text.count('"') and "\n" not in text.strip() else "  "


def _find(text: str, start: int, key: str) -> Member | None:
    return next((member for member in _members(text, start) if member.key == key), None)


def _member(text: str, start: int, key: str) -> Member:
    return next(member for member in _members(text, start) if member.key == key)


def _members(text: str, start: int) -> list[Member]:
    """The members of the object whose brace is at `start`, of a valid document."""
    found: list[Member] = []
    at = _skip(text, start + 1)
    while text[at] != "}":
        key, after = _DECODER.raw_decode(text, at)
        value = _skip(text, _skip(text, after) + 1)
        _, end = _DECODER.raw_decode(text, value)
        found.append(Member(key, at, value, end))
        at = _skip(text, end)
        at = _skip(text, at + 1) if text[at] == "," else at
    return found


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at
