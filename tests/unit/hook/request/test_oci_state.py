"""The state and config.json that a runtime passes: a damaged, truncated or oversized one is one line with its name."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from vgpu.config.errors import VgpuError
from vgpu.hook.request import oci_state

STDIN = "state JSON on stdin"


def read_state(data: bytes, tmp_path: Path) -> dict[str, object]:
    (tmp_path / "stdin").write_bytes(data)
    fd = os.open(tmp_path / "stdin", os.O_RDONLY)
    try:
        return oci_state.read_state(fd)
    finally:
        os.close(fd)


def state(tmp_path: Path, **fields: Any) -> dict[str, object]:
    return {"ociVersion": "1.0.2", "id": "c1", "status": "creating", "pid": 7, "bundle": str(tmp_path), **fields}


def config(tmp_path: Path, value: object) -> None:
    (tmp_path / "config.json").write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())


def line_of(error: VgpuError) -> str:
    line = str(error)
    assert "\n" not in line
    assert len(line) < 600
    return line


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "nothing valid"),
        (b"\x00\x01\xff", "found"),
        (b'{"id": "c1", "pid"', "found"),
        (b'{"id": "c1"} trailing', "text after"),
        (b"[1, 2]", "a JSON object"),
        (b'"text"', "a JSON object"),
        (b'{"id": NaN}', "NaN"),
        (b'{"pid": ' + b"9" * 5000 + b"}", "5000 digits"),
        (b'{"pid": 1e999}', "limit"),
        (b"[" * 100_000, "deeper nesting"),
        (b'{"a":' * 70 + b"1" + b"}" * 70, "64 deep"),
        (b'{"id": "' + b"x" * (1 << 20) + b'"}', "at most 1048576 bytes"),
        (b'{"id": "\xff"}', "utf-8"),
    ],
)
def test_a_bad_state_is_one_line(data: bytes, words: str, tmp_path: Path) -> None:
    with pytest.raises(VgpuError) as refused:
        read_state(data, tmp_path)
    line = line_of(refused.value)
    assert line.startswith(STDIN)
    assert words in line


@pytest.mark.parametrize("length", [1 << 20, (1 << 20) + 1])
def test_the_state_is_bounded_to_the_byte(length: int, tmp_path: Path) -> None:
    data = b'{"id":"' + b"x" * (length - 9) + b'"}'
    assert len(data) == length
    if length <= oci_state.MAX_STATE:
        assert read_state(data, tmp_path)
    else:
        with pytest.raises(VgpuError):
            read_state(data, tmp_path)


def test_a_container(tmp_path: Path) -> None:
    config(
        tmp_path,
        {
            "root": {"path": "rootfs"},
            "process": {"env": ["A=1", "B=x=y", "C", "A=2"]},
            "annotations": {"vgpu.io/cores": "10", "only": "config"},
        },
    )
    found = oci_state.read(state(tmp_path, annotations={"vgpu.io/cores": "20"}))
    assert (found.id, found.pid, found.bundle) == ("c1", 7, str(tmp_path))
    assert found.rootfs == f"{tmp_path}/rootfs"
    assert found.annotations == {"vgpu.io/cores": "20", "only": "config"}  # the state's own come last
    assert found.env == {"A": "2", "B": "x=y", "C": ""}


@pytest.mark.parametrize(
    ("root", "rootfs"),
    [({"path": "/elsewhere"}, "/elsewhere"), ({"path": "a/b"}, "BUNDLE/a/b"), (None, "BUNDLE/rootfs")],
)
def test_the_root_is_absolute(root: object, rootfs: str, tmp_path: Path) -> None:
    config(tmp_path, {"root": root} if root else {})
    assert oci_state.read(state(tmp_path)).rootfs == rootfs.replace("BUNDLE", str(tmp_path))


def test_no_annotations_no_process_no_pid(tmp_path: Path) -> None:
    config(tmp_path, {"annotations": None, "process": None})
    known = state(tmp_path)
    del known["pid"]
    found = oci_state.read(known)
    assert (found.annotations, found.env, found.pid) == ({}, {}, 0)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"bundle": None}, "bundle"),
        ({"bundle": 5}, "bundle"),
        ({"bundle": ""}, "bundle"),
        ({"bundle": "relative/bundle"}, "absolute"),
        ({"bundle": "/a\0b"}, "bundle"),
        ({"bundle": "/a\nb"}, "bundle"),
        ({"bundle": "/\ud800"}, "bundle"),
        ({"id": ""}, "id"),
        ({"id": ["c"]}, "id"),
        ({"id": "\ud800"}, "id"),
        ({"pid": -1}, "a pid"),
        ({"pid": "7"}, "a pid"),
        ({"pid": True}, "a pid"),
        ({"pid": 7.5}, "a pid"),
        ({"annotations": ["x"]}, "annotations"),
        ({"annotations": {"vgpu.io/cores": 10}}, "quotes"),
        ({"annotations": {str(at): "" for at in range(4097)}}, "4096"),
    ],
)
def test_a_state_of_wrong_fields_is_one_line(fields: dict[str, object], words: str, tmp_path: Path) -> None:
    config(tmp_path, {})
    with pytest.raises(VgpuError) as refused:
        oci_state.read(state(tmp_path, **fields))
    line = line_of(refused.value)
    assert STDIN in line
    assert words in line


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"", "nothing valid"),
        (b"garbage", "nothing valid"),
        (b'{"root": {"path"', "found"),
        (b"[]", "a JSON object"),
        (b"\xff\xfe", "utf-8"),
        (b"{}" + b" " * (16 << 20), "at most 16777216 bytes"),
        ({"root": {"path": ""}}, "root"),
        ({"root": {"path": 7}}, "root"),
        ({"root": {}}, "root"),
        ({"root": {"path": "a\0b"}}, "root"),
        ({"process": {"env": "A=1"}}, "process.env"),
        ({"process": {"env": ["A=1", 2]}}, "process.env"),
        ({"annotations": {"k" * 100_000: 1}}, "annotation"),
        ({"annotations": {"a\nb": 1}}, "annotation"),
        ({"annotations": "x"}, "annotations"),
    ],
)
def test_a_bad_config_is_one_line_that_names_it(value: object, words: str, tmp_path: Path) -> None:
    config(tmp_path, value)
    with pytest.raises(VgpuError) as refused:
        oci_state.read(state(tmp_path))
    line = line_of(refused.value)
    assert f"{tmp_path}/config.json" in line
    assert words in line
    assert "check the runtime" in line or "quotes" in line


def test_no_config_is_one_line_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(VgpuError, match=r"config\.json.*No such file"):
        oci_state.read(state(tmp_path))


def test_a_config_that_is_no_file_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(VgpuError, match=r"config\.json"):
        oci_state.read(state(tmp_path))
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").mkdir()
    with pytest.raises(VgpuError, match=r"config\.json"):
        oci_state.read(state(tmp_path))
