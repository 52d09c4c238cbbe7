"""Edits of TOML text that leave every other byte as it is.

Belongs here: a marked block at the end of a file, which is found again without a record, and single keys of tables that
exist, which tomlkit writes. Each edit is checked afterwards: the file must mean the same but for the edit. Does not
belong here: which tables and keys a runtime needs.
"""

from __future__ import annotations

import copy
import difflib
import functools
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from vgpu.config.errors import VgpuError
from vgpu.node.runtimes.nested_values import look_up
from vgpu.node.runtimes.undo import line_end

BEGIN = "# vgpuctl runtime configure: begin. vgpuctl runtime unconfigure removes this part."
END = "# vgpuctl runtime configure: end"

_BLOCK = re.compile(rf"^{re.escape(BEGIN)}\n.*?^{re.escape(END)}(?:\n|\Z)", re.MULTILINE | re.DOTALL)
_BARE = re.compile(r"[A-Za-z0-9_-]+")

Keys = tuple[str, ...]


def parse(text: str, source: str) -> dict[str, Any]:
    """The values of a TOML document."""
    try:
        return copy.deepcopy(_values(text))
    except (TOMLKitError, ValueError) as error:
        raise VgpuError(source, expected="TOML", found=str(error), do="repair the file") from None


@functools.lru_cache(maxsize=16)
def _values(text: str) -> dict[str, Any]:
    """tomlkit takes some 20 ms for containerd's whole default file, and one command asks for the same text often."""
    return dict(tomlkit.parse(text).unwrap())


def table_header(keys: Iterable[str]) -> str:
    return "[" + ".".join(_key(key) for key in keys) + "]"


def tables(keys: Keys, values: Mapping[str, Any]) -> str:
    """The table `keys` with `values`; a mapping among them becomes a table of its own below."""
    plain = {key: value for key, value in values.items() if not isinstance(value, Mapping)}
    text = table_header(keys) + "\n" + "".join(f"{_key(key)} = {literal(value)}\n" for key, value in plain.items())
    below = [tables((*keys, key), value) for key, value in values.items() if isinstance(value, Mapping)]
    return "\n".join([text, *below])


def literal(value: object) -> str:
    """A string, number, boolean, list or inline table as TOML."""
    if isinstance(value, list):
        return "[" + ", ".join(map(literal, value)) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {literal(one)}" for key, one in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def append(text: str, content: str) -> str:
    """`text` and a marked block with `content`, which begins with a table's header, unless `text` is empty."""
    if text and not text.endswith("\n"):
        text += line_end(text)
    return f"{text}{BEGIN}\n{content.rstrip()}\n{END}\n"


def block(text: str) -> str:
    """The marked block, or ""."""
    found = _BLOCK.search(text)
    return found[0] if found else ""


def without_block(text: str) -> str:
    return _BLOCK.sub("", text)


def assign(text: str, keys: Keys, value: object, source: str) -> str:
    """`text` with `value` at `keys`. The tables above must exist; a list's or string's old value is replaced."""
    if len(keys) == 1 and keys[0] not in parse(text, source):
        line = f"{_key(keys[0])} = {literal(value)}\n"
        below = _below_version(text, line)
        return below if _means(below, {**parse(text, source), keys[0]: value}) else line + text
    wanted = parse(text, source)
    _set(wanted, keys, value)
    edited = _on_one_line(text, keys[-1], value, wanted)
    if edited is not None:
        return edited
    document = tomlkit.parse(text)
    table: Any = document
    for key in keys[:-1]:
        table = table[key]
    known = keys[-1] in table
    table[keys[-1]] = value
    return _checked(text, tomlkit.dumps(document), wanted, source, known, keys)


def remove(text: str, keys: Keys, source: str) -> str:
    """`text` without the key."""
    wanted = parse(text, source)
    value = look_up(wanted, keys)
    del look_up(wanted, keys[:-1])[keys[-1]]
    line = re.compile(rf"^[ \t]*{re.escape(_key(keys[-1]))} = {re.escape(literal(value))}\n", re.MULTILINE)
    if len(line.findall(text)) == 1 and _means(line.sub("", text), wanted):
        return line.sub("", text)
    document = tomlkit.parse(text)
    table: Any = document
    for key in keys[:-1]:
        table = table[key]
    del table[keys[-1]]
    return _checked(text, tomlkit.dumps(document), wanted, source, True, keys)


def _on_one_line(text: str, key: str, value: object, wanted: dict[str, Any]) -> str | None:
    """`text` with another value in the one line that sets the key. tomlkit changes spaces of some whole documents."""
    lines = text.splitlines(True)
    for number, line in enumerate(lines):
        try:
            alone = tomlkit.parse(line if key in line else "")
        except TOMLKitError:
            continue
        if list(alone) == [key] and not isinstance(alone[key], Mapping):
            alone[key] = value
            edited = "".join([*lines[:number], tomlkit.dumps(alone), *lines[number + 1 :]])
            if _means(edited, wanted):
                return edited
    return None


def _below_version(text: str, line: str) -> str:
    """A new line outside all tables: below that of the version, or at the top."""
    top = re.search(r"^[ \t]*\[", text, re.MULTILINE)
    version = re.search(r"^[ \t]*version[ \t]*=.*(\n|\Z)", text[: top.start() if top else len(text)], re.MULTILINE)
    at = version.end() if version else 0
    if at == len(text) and text and not text.endswith("\n"):
        return text + line_end(text) + line.rstrip("\n")
    return text[:at] + line + text[at:]


def _means(text: str, wanted: dict[str, Any]) -> bool:
    try:
        return parse(text, "") == wanted
    except VgpuError:
        return False


def _set(document: dict[str, Any], keys: Keys, value: object) -> None:
    for key in keys[:-1]:
        document = document[key]
    document[keys[-1]] = value


def _checked(old: str, new: str, wanted: dict[str, Any], source: str, known: bool, keys: Keys) -> str:
    """`new`, if it means what is wanted, and differs from `old` in one place."""
    lines = difflib.SequenceMatcher(None, old.splitlines(), new.splitlines(), autojunk=False)
    edits = [edit for edit in lines.get_opcodes() if edit[0] != "equal"]
    whole = len(edits) <= 1 and (known or all(edit[0] == "insert" for edit in edits))
    if parse(new, source) != wanted or not whole:
        name = f"{table_header(keys[:-1])} {keys[-1]}" if keys[1:] else keys[0]
        raise VgpuError(source, expected=f"a file in which one line sets {name}", found="a form that cannot be edited "
                        "without changing other lines", do="edit that line by hand")  # fmt: skip
    return new


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else json.dumps(key, ensure_ascii=False)
