"""The D-Bus client with servers on a socket that are slow or silent, refuse calls or send garbage."""

from __future__ import annotations

import random
import socket
import struct
import time
from pathlib import Path

import fake_systemd
import pytest
from fake_systemd import Behaviour, FakeSystemd, Unit

from vgpu.hook.linux import dbus
from vgpu.hook.linux.dbus import Bus, BusError, ErrorReply, Reader

MANAGER = ("/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager")

#: The answer of systemd 262 to GetUnit, serial 1: a return with REPLY_SERIAL, SENDER, SIGNATURE and a path.
REAL_REPLY = (
    b"l\x02\x01\x010\x00\x00\x00\x01\x00\x00\x007\x00\x00\x00\x05\x01u\x00\x01\x00\x00\x00\x07\x01s\x00\x18\x00\x00\x00"
    b"org.freedesktop.systemd1\x00\x00\x00\x00\x00\x00\x00\x00\x08\x01g\x00\x01o\x00\x00+\x00\x00\x00"
    b"/org/freedesktop/systemd1/unit/init_2escope\x00"
)


def connect(path: Path, seconds: float = 60.0, hello: bool = False) -> Bus:
    return Bus(str(path), "org.freedesktop.systemd1" if hello else "", time.monotonic() + seconds, hello)


def get_unit(path: Path, seconds: float = 60.0) -> list[object]:
    bus = connect(path, seconds)
    try:
        return bus.call(*MANAGER, "GetUnit", "s", ("x.scope",), "o")
    finally:
        bus.close()


def test_the_answer_of_a_real_systemd(tmp_path: Path) -> None:
    fake = FakeSystemd({}, Behaviour(raw_at={"GetUnit": REAL_REPLY}))
    with fake.listening(tmp_path / "bus"):
        assert get_unit(tmp_path / "bus") == ["/org/freedesktop/systemd1/unit/init_2escope"]


def test_random_bytes_are_an_error_and_nothing_worse() -> None:
    chance = random.Random(1)
    for _ in range(2000):
        data = bytes(chance.randrange(256) for _ in range(chance.randrange(80)))
        for signature in ("s", "o", "v", "a(ss)", "a(yv)", "as"):
            try:
                Reader(data, "<").values(signature)
            except BusError:
                continue


@pytest.mark.parametrize(("signature", "padding"), [("a()", 4), ("a{}", 4), ("a(())", 4), ("a(a())", 4)])
def test_an_array_of_nothing_ends(signature: str, padding: int) -> None:
    """Its elements take no bytes, so that reading them would go on for ever."""
    inner = struct.pack("<II", 8, 0) + bytes(8) if signature == "a(a())" else b""
    with pytest.raises(BusError, match="an array of nothing"):
        Reader(struct.pack("<I", 16) + bytes(padding) + (inner or bytes(16)), "<").values(signature)


def test_damaged_real_answers(tmp_path: Path) -> None:
    """With one byte changed, or cut off at any place: the right answer, an error, or the deadline."""
    chance = random.Random(2)
    for number in range(60):
        damaged = bytearray(REAL_REPLY)
        damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        data = bytes(damaged[: chance.choice((len(damaged), chance.randrange(len(damaged))))])
        with FakeSystemd({}, Behaviour(raw_at={"GetUnit": data})).listening(tmp_path / f"bus{number}"):
            try:
                assert isinstance(get_unit(tmp_path / f"bus{number}", 0.4)[0], str)
            except (BusError, ErrorReply) as error:
                assert str(error)


# Servers of all kinds


def test_calls_and_errors_by_name(tmp_path: Path) -> None:
    with FakeSystemd({"x.scope": Unit()}).listening(tmp_path / "bus") as fake:
        assert get_unit(tmp_path / "bus") == ["/org/freedesktop/systemd1/unit/0"]
        fake.units.clear()
        with pytest.raises(ErrorReply, match=r"NoSuchUnit: Unit x.scope not loaded\.") as caught:
            get_unit(tmp_path / "bus")
        assert caught.value.name == "org.freedesktop.systemd1.NoSuchUnit"


def test_signals_and_answers_to_others_are_passed_over(tmp_path: Path) -> None:
    with FakeSystemd({"x.scope": Unit()}, Behaviour(signals=3)).listening(tmp_path / "bus") as fake:
        bus = connect(tmp_path / "bus", hello=True)
        assert bus.call(*MANAGER, "GetUnit", "s", ("x.scope",), "o")
        bus.close()
    assert fake.calls == ["Hello", "GetUnit"]


def test_an_endless_stream_of_signals_ends(tmp_path: Path) -> None:
    fake = FakeSystemd({"x.scope": Unit()}, Behaviour(signals=dbus.MAX_SKIPPED))
    with fake.listening(tmp_path / "bus"), pytest.raises(BusError, match="but no answer"):
        get_unit(tmp_path / "bus")


@pytest.mark.parametrize("silent_at", ["auth", "GetUnit"])
def test_silence_ends_at_the_deadline(tmp_path: Path, silent_at: str) -> None:
    with FakeSystemd({}, Behaviour(silent_at=silent_at)).listening(tmp_path / "bus"):
        with pytest.raises(BusError, match="no time left") as caught:
            get_unit(tmp_path / "bus", 0.3)
        assert caught.value.waited


def test_a_byte_now_and_then_does_not_lengthen_the_deadline(tmp_path: Path) -> None:
    fake = FakeSystemd({"x.scope": Unit()}, Behaviour(pause=0.02))
    with fake.listening(tmp_path / "bus"), pytest.raises(BusError, match="no time left"):
        get_unit(tmp_path / "bus", 0.3)


def test_slow_but_in_time(tmp_path: Path) -> None:
    with FakeSystemd({"x.scope": Unit()}, Behaviour(pause=0.001)).listening(tmp_path / "bus"):
        assert get_unit(tmp_path / "bus")


def test_a_full_listen_queue_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "bus"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen(0)
        with socket.socket(socket.AF_UNIX) as first:
            first.connect(str(path))
            with pytest.raises(BusError, match="no time left"):
                connect(path, 0.2)


@pytest.mark.parametrize(
    ("greeting", "said"),
    [
        (b"REJECTED EXTERNAL\r\n", "refuses this user: b'REJECTED EXTERNAL'"),
        (b"ERROR\r\n", "refuses this user"),
        (b"HTTP/1.1 400 Bad Request\r\n", "refuses this user"),
        (bytes(600), "an answer that is none of D-Bus"),
    ],
)
def test_a_refusal(tmp_path: Path, greeting: bytes, said: str) -> None:
    with FakeSystemd({}, Behaviour(greeting=greeting)).listening(tmp_path / "bus"), pytest.raises(BusError, match=said):
        connect(tmp_path / "bus")


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "closed the connection"),
        (REAL_REPLY[:40], "closed the connection"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "a message that is none of D-Bus"),
        (b"l\x02\x00\x01" + struct.pack("<III", 1 << 27, 1, 8), "a message of"),
        (b"l\x02\x00\x01" + struct.pack("<III", 0, 1, 0xFFFFFFFF), "a message of"),
        (fake_systemd.reply(1, "u", (7,)), "answers 'u', not 'o'"),
        (fake_systemd.reply(1, "oo", ("/", "/")), "answers 'oo', not 'o'"),
        (fake_systemd.reply(1, "", ()), "answers '', not 'o'"),
        (fake_systemd.reply(9, "o", ("/",)), "closed the connection"),
        (
            fake_systemd.message(dbus.METHOD_RETURN, 1, [(5, ("u", 1)), (8, ("g", "o"))], "", ()),
            "too short or malformed",
        ),
    ],
)
def test_garbage(tmp_path: Path, raw: bytes, said: str) -> None:
    fake = FakeSystemd({}, Behaviour(raw_at={"GetUnit": raw}))
    with fake.listening(tmp_path / "bus"), pytest.raises(BusError, match=said):
        get_unit(tmp_path / "bus")
