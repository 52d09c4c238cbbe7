"""The D-Bus client's marshalling, compared with bytes of real systemds. Servers are in tests/component/hook."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import pytest

from vgpu.hook.linux import dbus
from vgpu.hook.linux.dbus import Bus, BusError, Reader


def connect(path: Path, seconds: float = 0.4, hello: bool = False) -> Bus:
    return Bus(str(path), "org.freedesktop.systemd1" if hello else "", time.monotonic() + seconds, hello)


# Bytes


@pytest.mark.parametrize(
    ("signature", "values"),
    [
        ("s", ("",)),
        (
            "sba(sv)",
            ("x.scope", 1, [("DeviceAllow", ("a(ss)", [("/dev/char/195:0", "rw"), ("/dev/char/195:255", "rw")]))]),
        ),
        ("a(ss)", ([],)),
        ("yyyyuua(yv)", (1, 2, 3, 4, 5, 6, [(1, ("o", "/a")), (8, ("g", "a(ss)"))])),
        ("yt(yx)as", (1, 2, (3, -4), ["a", "bc"])),
        ("v", (("v", ("u", 7)),)),
    ],
)
def test_what_is_written_is_aligned_and_read_back(signature: str, values: tuple[object, ...]) -> None:
    data = dbus.marshal(signature, values)
    assert plain(Reader(data, "<").values(signature)) == plain(values)


def plain(value: object) -> object:
    """The value without the signatures of variants, which a reader drops."""
    if isinstance(value, tuple) and len(value) == 2 and value[0] in ("a(ss)", "o", "g", "v", "u"):
        return plain(value[1])
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def test_a_call_as_the_specification_lays_it_out() -> None:
    data = dbus.method_call(1, "", "/p", "i.f", "M", "s", ("ab",))
    assert data == (
        b"l\x01\x00\x01\x07\x00\x00\x00\x01\x00\x00\x00\x37\x00\x00\x00"
        b"\x01\x01o\x00\x02\x00\x00\x00/p\x00\x00\x00\x00\x00\x00"
        b"\x02\x01s\x00\x03\x00\x00\x00i.f\x00\x00\x00\x00\x00"
        b"\x03\x01s\x00\x01\x00\x00\x00M\x00\x00\x00\x00\x00\x00\x00"
        b"\x08\x01g\x00\x01s\x00\x00"
        b"\x02\x00\x00\x00ab\x00"
    )


def test_big_endian_answers_are_read() -> None:
    data = struct.pack(">I", 3) + b"abc\0" + struct.pack(">I", 7)
    assert Reader(data, ">").values("su") == ["abc", 7]


@pytest.mark.parametrize(
    "signature", ["(", "a", "a(", "z", "()x)", "(((((((((((((((((((((((s", "a" * 200, "s" + "(" * 300]
)
def test_a_signature_that_is_none(signature: str) -> None:
    with pytest.raises(BusError):
        Reader(bytes(64), "<").values(signature)


def test_nobody_there(tmp_path: Path) -> None:
    with pytest.raises(BusError, match="No such file"):
        connect(tmp_path / "bus")
    (tmp_path / "bus").write_text("")
    with pytest.raises(BusError, match="Connection refused"):
        connect(tmp_path / "bus")
