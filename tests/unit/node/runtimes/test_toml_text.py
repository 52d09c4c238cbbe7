"""Edits of TOML text, on random files of others: nothing else changes, and the undo restores every byte."""

from __future__ import annotations

import random

import pytest
from foreign_toml import random_document

from vgpu.config.errors import VgpuError
from vgpu.node.runtimes import toml_text


@pytest.mark.parametrize("seed", range(60))
def test_a_block_and_its_removal(seed: int) -> None:
    text = random_document(random.Random(seed))
    before = toml_text.parse(text, "f")
    content = toml_text.tables(("plugins", "io.x", "vgpu"), {"runtime_type": "r", "options": {"on": True, "n": [1]}})
    added = toml_text.append(text, content)
    table = {"runtime_type": "r", "options": {"on": True, "n": [1]}}
    assert toml_text.parse(added, "f") == {**before, "plugins": {"io.x": {"vgpu": table}}}
    assert added.startswith(text)
    end = "" if text.endswith("\n") or not text else "\n"
    assert toml_text.without_block(added) == text + end
    assert toml_text.without_block(added + "[later]\nx = 1\n") == f"{text}{end}[later]\nx = 1\n"


@pytest.mark.parametrize("seed", range(60))
def test_a_key_and_its_removal(seed: int) -> None:
    """Where a form cannot be edited in one place, the file is refused, and never written otherwise."""
    text = random_document(random.Random(seed)) or "x = 1\n"
    before = toml_text.parse(text, "f")
    try:
        changed = toml_text.assign(text, ("imports",), ["/etc/x/*.toml"], "f")
    except VgpuError:
        pytest.fail(f"a line at the top can always be set:\n{text}")
    assert toml_text.parse(changed, "f") == {**before, "imports": ["/etc/x/*.toml"]}
    if "imports" not in before:
        assert toml_text.remove(changed, ("imports",), "f") == text


def test_keys_of_a_table_keep_comments_and_order() -> None:
    text = '# top\nversion = 2\n[p."x.y"] # why\n  a = "old" # keep\n  b = 1\n\n[z]\n'
    assert toml_text.assign(text, ("p", "x.y", "a"), "new", "f") == text.replace('"old"', '"new"')
    added = toml_text.assign(text, ("p", "x.y", "c"), ["v"], "f")
    assert toml_text.parse(added, "f")["p"]["x.y"] == {"a": "old", "b": 1, "c": ["v"]}
    assert toml_text.parse(toml_text.remove(added, ("p", "x.y", "c"), "f"), "f") == toml_text.parse(text, "f")
    twice = added + 'c = ["v"]\n'
    assert toml_text.parse(toml_text.remove(twice, ("p", "x.y", "c"), "f"), "f") == toml_text.parse(
        text + 'c = ["v"]', "f"
    )


@pytest.mark.parametrize("value", ['a"b\\c', "tab\t", "é\u2028", "\x7f\x00", [], ["a", 1, True], 3, False])
def test_literals_are_read_back(value: object) -> None:
    assert toml_text.parse(f"x = {toml_text.literal(value)}", "f")["x"] == value


def test_what_is_no_toml_is_named() -> None:
    with pytest.raises(VgpuError, match=r"^/etc/x: expected TOML, found .*; repair the file$"):
        toml_text.parse("a = ", "/etc/x")
