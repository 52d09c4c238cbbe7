"""Records on disk: any contents of a file raise VgpuError at most, and a write is complete or has no effect."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest
from bad_records import BAD

from vgpu.config import claims, grants, inventory, records, settings
from vgpu.config.errors import VgpuError
from vgpu.config.grants import Grant, Holder
from vgpu.config.inventory import Binary, Card, Device, Inventory, Library
from vgpu.config.limits import CardLimit

VALUES = [
    None, True, False, 0, -1, 1 << 63, 1.5, -2e-7, "", 'ä\n\x00"\\\u2028😀', [], {}, [[], {}], {"a": [1, {"b": None}]},
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES)
def test_encode_and_decode_agree_with_json(value: object) -> None:
    assert json.loads(records.encode(value)) == value
    assert records.decode(records.encode(value).encode(), "f") == value
    assert records.decode(b" \n" + json.dumps(value, indent=3).encode() + b"\t\n", "f") == value


@pytest.mark.parametrize("value", [float("nan"), float("inf"), b"x", object(), {1: 2}, {"a": {3}}])
def test_encode_refuses_what_is_no_json(value: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        records.encode(value)


@pytest.mark.parametrize("data", BAD, ids=lambda data: repr(data[:12]))
def test_decode_refuses_with_one_line(data: bytes) -> None:
    with pytest.raises(VgpuError) as caught:
        records.decode(data, "/some/file", "do this")
    line = str(caught.value)
    assert line.startswith("/some/file: expected ")
    assert line.endswith("; do this")
    assert line.isprintable()
    assert len(line) < 300


def test_nesting_up_to_the_bound_is_fine() -> None:
    value: object = 1
    for _ in range(records.MAX_DEPTH):
        value = [value]
    assert records.decode(records.encode(value).encode(), "f") == value
    with pytest.raises(VgpuError, match="nested at most 64 deep"):
        records.decode(records.encode([value]).encode(), "f")
    wide = {str(number): [number] for number in range(500)}
    assert records.decode(records.encode(wide).encode(), "f") == wide


@pytest.mark.parametrize("data", [b"[]", b"null", b"1", b'"x"'])
def test_decode_object_wants_an_object(data: bytes) -> None:
    with pytest.raises(VgpuError, match="f: expected a JSON object, found "):
        records.decode_object(data, "f")


def test_read_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "record"
    path.write_bytes(b"{" + b" " * 98 + b"}")
    assert records.read(str(path), limit=100) == {}
    with pytest.raises(VgpuError, match="record: expected at most 99 bytes, found more; do"):
        records.read(str(path), "do", limit=99)


def test_read_of_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path, found in ((tmp_path, "Is a directory"), (tmp_path / "fifo", "nothing valid"), ("/dev/zero", "more")):
        with pytest.raises(VgpuError, match=found):
            records.read(str(path))
    with pytest.raises(FileNotFoundError):
        records.read(str(tmp_path / "none"))
    with pytest.raises(VgpuError, match="Not a directory"):
        records.read(str(tmp_path / "fifo" / "x"))


def test_write_replaces_with_its_mode_and_leaves_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "record"
    old = os.umask(0o077)
    try:
        records.write(str(path), {"a": 1}, 0o644)
        assert path.stat().st_mode & 0o777 == 0o644
        records.write(str(path), {"a": 2})
    finally:
        os.umask(old)
    assert path.read_bytes() == b'{"a":2}\n'
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["record"]


@pytest.mark.parametrize("failing", ["write", "fsync", "rename"])
def test_failed_write_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    path = tmp_path / "record"
    records.write(str(path), {"a": 1})

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(OSError, match="No space"):
        records.write(str(path), {"a": 2})
    monkeypatch.undo()
    assert records.read(str(path)) == {"a": 1}
    assert os.listdir(tmp_path) == ["record"]


def test_write_in_pieces_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data[:7])))
    records.write_bytes(str(tmp_path / "f"), b"0123456789" * 5)
    assert (tmp_path / "f").read_bytes() == b"0123456789" * 5


def test_write_does_not_follow_a_link_at_the_temporary_name(tmp_path: Path) -> None:
    (tmp_path / f".record.{os.getpid()}.tmp").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic links"):
        records.write(str(tmp_path / "record"), {})
    assert not (tmp_path / "victim").exists()


UUID = "GPU-8a56a4bc-1111-2222-3333-444455556666"
DEVICE = Device("/dev/nvidia0", "nvidia0", 195, 0)
SOUND: list[tuple[dict[str, object], object]] = [
    (settings.Settings(node="n").record(), settings.from_record),
    (Grant("0" * 32, "cores", 50, 1.0, 100, 0, {UUID: "0"}, Holder("u", "c"), [UUID]).record(), grants.from_record),
    (
        claims.Claim("c1", 1, 2, [CardLimit(UUID, 9, 30, 50)], False, Holder("u", "c"), ["0" * 32], "/b", 1.0).record(),
        claims.from_record,
    ),
    (
        Inventory(
            "550", "boot", 1.0, [Library("/usr/lib/libcuda.so.1", "libcuda.so.1", "libcuda.so.1", "compute")],
            [Binary("/usr/bin/nvidia-smi", "nvidia-smi", "utility")], [DEVICE],
            [Card(UUID, 0, 0, "00:01.0", "T4", 1 << 34, DEVICE, 0, {UUID: "NV1"}, 324 << 20, "seen", "Turing", "12.4")],
        ).record(),
        inventory.from_record,
    ),
]  # fmt: skip
WORSE = [
    None, True, -1, 0, 1 << 70, 10**400, 1.5, float("inf"), "", "a/../b", "x" * 5000, "\n", [], [[]], {}, {"a": 1},
    [None], [{}],
]  # fmt: skip


def damaged(value: object, chance: random.Random) -> object:
    """`value` with one part of it replaced or removed."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        key = chance.choice(sorted(value))
        rest = {name: item for name, item in value.items() if name != key}
        return rest if chance.random() < 0.2 else {**rest, key: damaged(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.8:
        return [damaged(value[0], chance), *value[1:]]
    return chance.choice(WORSE)


@pytest.mark.parametrize(("sound", "reader"), SOUND, ids=["settings", "grant", "claim", "inventory"])
def test_damaged_records_raise_vgpu_error_only(sound: dict[str, object], reader) -> None:
    chance = random.Random(7)
    assert reader(sound, "f").record()["version"] == 1
    refused = 0
    for _ in range(600):
        record = damaged(sound, chance)
        try:
            reader(record, "f").record()
        except VgpuError as error:
            refused += 1
            assert str(error).startswith("f")
            assert str(error).isprintable()
    assert refused > 300
