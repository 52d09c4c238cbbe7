"""Edits of a JSON object's text, on random files of others: nothing else changes."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from vgpu.config.errors import VgpuError
from vgpu.node.runtimes import json_text


def value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.randrange(7 if depth < 3 else 4)
    if kind > 4:
        return {f"k{rng.randrange(99)}": value(rng, depth + 1) for _ in range(rng.randrange(4))}
    if kind == 4:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return rng.choice([None, True, 3, -1.5e3, "text", 'a "quoted" {brace}', "é\n\\"])


def document(rng: random.Random) -> str:
    """A random daemon.json: compact, indented, or spaced oddly."""
    made = {f"o{number}": value(rng) for number in range(rng.randrange(5))}
    if rng.random() < 0.4:
        made["runtimes"] = {"other": {"path": "/x"}} if rng.random() < 0.5 else {}
    text = json.dumps(made, indent=rng.choice((None, 2, 4, "\t")), ensure_ascii=rng.random() < 0.5)
    if rng.random() < 0.3:
        text = text.replace(": ", " :\t").replace("{", "{ ")
    return rng.choice(("", "\n", "  ")) + text + rng.choice(("", "\n", "\n\n"))


@pytest.mark.parametrize("seed", range(80))
def test_a_member_and_its_removal(seed: int) -> None:
    text = document(random.Random(seed))
    before = json.loads(text)
    keys, entry = ("runtimes", "vgpu"), {"path": "/usr/bin/vgpu-runtime", "runtimeArgs": ["--x"]}
    added = json_text.assign(text, keys, entry)
    runtimes = {**before.get("runtimes", {}), "vgpu": entry}
    assert json.loads(added) == {**before, "runtimes": runtimes}
    assert list(json.loads(added))[: len(before)] == list(before), "members keep their order"
    removed = json_text.remove(added, keys)
    if "runtimes" not in before:
        removed = json_text.remove(removed, ("runtimes",))
    assert json.loads(removed) == before
    if before.get("runtimes") or ("runtimes" not in before and before):
        assert removed == text
    exchanged = json_text.assign(added, keys, {"path": "/y"})
    assert json.loads(exchanged)["runtimes"] == {**runtimes, "vgpu": {"path": "/y"}}


def test_the_style_of_the_file_is_kept() -> None:
    text = '{\n    "debug": true\n}\n'
    assert json_text.assign(text, ("runtimes", "vgpu"), {"path": "/p"}) == (
        '{\n    "debug": true,\n    "runtimes": {\n        "vgpu": {\n            "path": "/p"\n        }\n    }\n}\n'
    )
    assert json_text.assign('{"debug": true}', ("x",), 1) == '{"debug": true, "x": 1}'


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "expected JSON"),
        ("[]", "a JSON object, found list"),
        ('{"a": 1, "a": 2}', "twice"),
        ("{} x", "expected JSON"),
    ],
)
def test_what_is_not_edited(text: str, found: str) -> None:
    with pytest.raises(VgpuError, match=found):
        json_text.parse(text, "/etc/docker/daemon.json")


def test_a_member_that_is_no_object_is_not_replaced() -> None:
    with pytest.raises(VgpuError, match="runtimes: expected a JSON object"):
        json_text.assign('{"runtimes": []}', ("runtimes", "vgpu"), {})
