"""Requests outside Kubernetes: the grammar of the value, the key's file, and messages without the key."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vgpu.config import annotations, request, standalone
from vgpu.config.errors import VgpuError

KEY = "0123456789abcdef" * 2
GIB = 1 << 30


@pytest.mark.parametrize(
    ("text", "amounts"),
    [
        ("cores=30,memory=8Gi", (1, 30, 8 * GIB, 30)),
        ("cores=30+memory=8Gi", (1, 30, 8 * GIB, 30)),
        (" cores = 30 , memory=8192 ", (1, 30, 8 * GIB, 30)),
        ("memory=1Gi,core-limit=50,gpus=2,cores=20", (2, 20, GIB, 50)),
        ("gpus=2", (2, 100, 0, 100)),
        ("cores=200", (2, 100, 0, 200)),
    ],
)
def test_amounts(text: str, amounts: tuple[int, int, int, int]) -> None:
    found = standalone.parse(text, {})
    assert (found.gpus, found.cores, found.memory) == amounts[:3]
    assert found.core_limit == max(amounts[3], found.cores) or found.exclusive


def test_wishes() -> None:
    text = "gpus=1,policy=spread,numa-bind=true,priority=0,use-gpuuuid=GPU-a,use-gpuuuid=GPU-b,nouse-gputype=Tesla T4"
    wishes = standalone.parse(text, {}).wishes
    assert (wishes.policy, wishes.numa, wishes.priority) == ("spread", True, 0)
    assert (wishes.use_uuids, wishes.nouse_types) == (("GPU-a", "GPU-b"), ("tesla t4",))


def test_every_part_has_the_annotation_of_the_same_name() -> None:
    assert {f"vgpu.io/{name}": name for name in standalone.PARTS} == {
        key: name for name, key in standalone.PARTS.items()
    }
    assert set(standalone.PARTS.values()) == set(annotations.NAMES)
    assert set(standalone.LISTS) | set(standalone.WORDS) <= set(standalone.PARTS)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "parts such as cores=30,memory=8Gi, found"),
        ("cores", "parts such as cores=30,memory=8Gi, found cores"),
        ("cores=", "found cores="),
        ("cores=30,,memory=1Gi", "parts such as"),
        ("cores=30,memory=1Gi,", "parts such as"),
        ("=30", "found =30"),
        ("core=30,memory=1Gi", r"core: expected one of cores, memory, .*; did you mean cores\?"),
        ("cores=30,memroy=1Gi", r"memroy: .*; did you mean memory\?"),
        ("Cores=30,memory=1Gi", r"did you mean cores\?"),
        ("zzzzzz=1", "zzzzzz: expected one of cores, .* numa-bind, found another$"),
        ("cores=30,cores=40,memory=1Gi", "cores: expected it once"),
        ("cores=30", "memory: expected memory beside cores=30, found nothing; a share needs both"),
        ("memory=1Gi", "cores: expected cores beside memory"),
        ("cores=150,memory=1Gi", "cores: expected 1 to 99"),
        ("cores=-1,memory=1Gi", "cores: expected a whole number"),
        ("cores=30,memory=1.5.5Gi", "memory: expected a size"),
        ("cores=30,memory=1Gi,policy=mutex", "policy: expected binpack or spread, found mutex"),
        ("gpus=1,numa-bind=1", "numa-bind: expected true or false, found 1"),
        ("gpus=1," * 999, "at most 4096 characters"),
        ("x\ny=1", r"x\\x0ay: expected one of"),
    ],
)
def test_errors_name_the_part(text: str, words: str) -> None:
    with pytest.raises(VgpuError, match=words) as refused:
        standalone.parse(text, {})
    assert str(refused.value).startswith("annotation vgpu.io/request-<key>: ")
    assert "\n" not in str(refused.value)


def test_a_value_that_podman_has_cut_is_explained() -> None:
    with pytest.raises(VgpuError, match=r"; write \+ between the parts: podman before version 5 cuts"):
        standalone.parse("cores=30", {"memory": "8Gi"})


def test_what_is_written_is_read_and_has_no_comma() -> None:
    text = standalone.value([("cores", "30"), ("memory", "8Gi"), ("use-gpuuuid", "GPU-a"), ("use-gpuuuid", "GPU-b")])
    assert "," not in text
    assert standalone.parts(text) == {
        "vgpu.io/cores": "30", "vgpu.io/memory": "8Gi", "vgpu.io/use-gpuuuid": "GPU-a,GPU-b",
    }  # fmt: skip


# The key


def test_a_key_is_128_bits_and_roots_alone(tmp_path: Path) -> None:
    path = tmp_path / "key"
    keys = {standalone.new_key() for _ in range(64)}
    assert len(keys) == 64
    assert all(standalone.is_key(key) and len(bytes.fromhex(key)) == 16 for key in keys)
    standalone.write_key(str(path), KEY)
    assert path.stat().st_mode & 0o777 == 0o600
    assert standalone.read_key(str(path)) == KEY


@pytest.mark.parametrize("kind", ["none", "link", "directory", "fifo", "mode", "short", "upper", "empty"])
def test_a_file_that_is_none(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "key"
    text = {"short": KEY[1:], "upper": KEY.upper(), "empty": ""}.get(kind, KEY)
    if kind == "link":
        standalone.write_key(str(tmp_path / "other"), KEY)
        path.symlink_to("other")
    elif kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path, 0o600)
    elif kind != "none":
        standalone.write_key(str(path), text)
    if kind == "mode":
        path.chmod(0o604)
    with pytest.raises(VgpuError) as refused:
        standalone.read_key(str(path))
    assert str(refused.value).startswith(f"{path}: expected ")
    assert KEY[:8] not in str(refused.value).lower()


def test_the_value_of_the_request_with_the_key() -> None:
    found = {"vgpu.io/request-": "a", f"vgpu.io/request-{KEY[:-1]}": "b", f"vgpu.io/request-{KEY}": "c", "x": "d"}
    assert request.asks_by_key(found)
    assert standalone.with_key(found, KEY) == "c"
    assert standalone.with_key(found, "f" * 32) is None
    assert standalone.with_key({"vgpu.io/request-\u00e4": ""}, KEY) is None
    assert not request.asks_by_key({"vgpu.io/request": "", f"x/request-{KEY}": ""})


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (f"vgpu.io/request-{KEY}", "vgpu.io/request-<key>"),
        (f"vgpu.io/reqest-{KEY[:20]}", "vgpu.io/reqest-<key>"),
        (f"vgpu.io/request_{KEY.upper()}x", "vgpu.io/request_<key>x"),
        (KEY, "<key>"),
        ("vgpu.io/cores", "vgpu.io/cores"),
        ("vgpu.io/", "vgpu.io/"),
        ("", ""),
    ],
)
def test_no_message_shows_a_key(name: str, shown: str) -> None:
    assert annotations.masked(name) == shown


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        (f"vgpu.io/reqest-{KEY}", "vgpu.io/request-<key>"),
        (f"vgpu.io/requests-{KEY}", "vgpu.io/request-<key>"),
        (f"vgpu.io/{KEY}", ""),
        ("vgpu.io/core", "vgpu.io/cores"),
    ],
)
def test_the_nearest_name_of_a_misspelled_request(name: str, nearest: str) -> None:
    assert annotations.nearest(name) == nearest
    assert annotations.unknown({name: ""}) == [name]
    assert annotations.unknown({f"vgpu.io/request-{KEY}": ""}) == []
