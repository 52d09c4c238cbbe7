"""The program for a place that takes no arguments: the shim, or a script that calls it with options."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from vgpu.node.runtimes import base_spec, docker, hooks_d, registration
from vgpu.node.runtimes.registration import Wish, wrapper


@pytest.fixture
def directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the shim looks: runc and crun are there."""
    made = tmp_path / "sbin"
    made.mkdir()
    for name in ("runc", "crun"):
        (made / name).touch(0o755)
    monkeypatch.setattr(registration, "DIRECTORIES", (str(tmp_path / "empty"), str(made)))
    return made


def test_the_shim_alone_where_it_finds_the_same_runtime(directories: Path, wish: Wish) -> None:
    assert wrapper(wish, "containerd", "") == (wish.shim, ())
    assert wrapper(wish, "containerd", str(directories / "runc")) == (wish.shim, ())
    assert wrapper(wish, "containerd", str(directories / "crun")) == (f"{wish.shim}-crun", ())


@pytest.mark.parametrize(
    ("real", "settings", "words"),
    [
        ("/opt/my runc", "", "--vgpu-runtime '/opt/my runc'"),
        ("", "/etc/x.json", "--vgpu-config /etc/x.json"),
        ("/opt/runc", "/etc/x.json", "--vgpu-config /etc/x.json --vgpu-runtime /opt/runc"),
    ],
)
def test_a_script_where_options_are_needed(directories: Path, wish: Wish, real: str, settings: str, words: str) -> None:
    wish = replace(wish, settings=settings or wish.settings)
    program, (draft,) = wrapper(wish, "containerd", real)
    assert draft.path == program == f"{wish.state_dir}/runtimes/vgpu-runtime-containerd"
    assert draft.text == f'#!/bin/sh\nexec {wish.shim} {words} "$@"\n'
    assert draft.mode == 0o755


@pytest.mark.parametrize("word", ["any", "key"])
def test_what_the_administrator_says_of_annotations_is_in_every_command_line(
    directories: Path, wish: Wish, word: str
) -> None:
    wish = replace(wish, standalone=word)
    assert json.loads(hooks_d.text(wish, "createRuntime"))["hook"]["args"] == [
        "vgpu-hook", "--standalone", word, "createRuntime"
    ]  # fmt: skip
    assert base_spec.hook(wish, "poststop")["args"] == ["vgpu-hook", "--standalone", word, "poststop"]
    assert docker.entry(replace(wish, share=(("cores", "30"),)))["runtimeArgs"] == [
        "--vgpu-standalone", word, "--vgpu-annotation", "vgpu.io/cores=30"
    ]  # fmt: skip
    _, (draft,) = wrapper(wish, "containerd", "")
    assert f"--vgpu-standalone {word} " in draft.text
