"""A small systemd behind a Unix socket. On demand it is silent, slow, refuses calls or sends garbage.

Belongs here: the server's half of D-Bus as far as the hook uses it, and units in a dictionary. One thread serves one
connection at a time. `calls` lists the members that clients called.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from vgpu.hook.linux import dbus


@dataclass
class Unit:
    policy: str = "strict"
    allow: list[tuple[str, str]] = field(default_factory=list)
    pins: list[tuple[str, str]] = field(default_factory=list)


@dataclass
class Behaviour:
    """How it fails. By default it does not."""

    greeting: bytes = b"OK 0123456789abcdef0123456789abcdef\r\n"
    silent_at: str = ""  #: "auth", or the member that gets no answer
    pause: float = 0.0  #: seconds between the bytes of an answer
    error_at: dict[str, tuple[str, str]] = field(default_factory=dict)
    raw_at: dict[str, bytes] = field(default_factory=dict)  #: bytes instead of an answer, then the end
    forgets: bool = False  #: SetUnitProperties is answered, but the list stays as it was
    signals: int = 0  #: before each answer
    version: str = "252.39-1~deb12u2"


class FakeSystemd:
    def __init__(self, units: dict[str, Unit], behaviour: Behaviour | None = None) -> None:
        self.units = units
        self.behaviour = behaviour or Behaviour()
        self.calls: list[str] = []
        self._stop = threading.Event()

    @contextlib.contextmanager
    def listening(self, path: Path) -> Iterator[FakeSystemd]:
        path.parent.mkdir(parents=True, exist_ok=True)
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
            server.listen(4)
            server.settimeout(0.05)
            thread = threading.Thread(target=self._serve, args=(server,))
            thread.start()
            try:
                yield self
            finally:
                self._stop.set()
                thread.join()

    def _serve(self, server: socket.socket) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(TimeoutError, ConnectionError, _Done):
                connection, _ = server.accept()
                with connection:
                    connection.settimeout(0.05)
                    self._talk(connection)

    def _talk(self, connection: socket.socket) -> None:
        self._until(connection, b"\r\nBEGIN\r\n")
        if self.behaviour.silent_at == "auth":
            self._be_silent(connection)
        self._send(connection, self.behaviour.greeting)
        while True:
            head = self._take(connection, 16)
            body_length, serial, fields_length = struct.unpack_from("<III", head, 4)
            rest = self._take(connection, fields_length + -fields_length % 8 + body_length)
            fields = dict(dbus.Reader(head + rest[:fields_length], "<", 12).values("a(yv)")[0])  # type: ignore[call-overload]
            body = rest[len(rest) - body_length :]
            self._answer(connection, serial, fields, body)

    def _answer(self, connection: socket.socket, serial: int, fields: dict[int, str], body: bytes) -> None:
        member = fields[dbus.MEMBER]
        values = dbus.Reader(body, "<").values(fields.get(dbus.SIGNATURE, ""))
        name = f"{member} {values[1]}" if member == "Get" else member
        self.calls.append(name)
        if self.behaviour.silent_at == name:
            self._be_silent(connection)
        if name in self.behaviour.raw_at:
            self._send(connection, self.behaviour.raw_at[name])
            raise _Done
        for _ in range(self.behaviour.signals):
            self._send(connection, signal())
        if name in self.behaviour.error_at:
            self._send(connection, error(serial, *self.behaviour.error_at[name]))
            return
        self._send(connection, self._reply(serial, member, fields[dbus.PATH], values))

    def _reply(self, serial: int, member: str, path: str, values: list[object]) -> bytes:
        if member == "Hello":
            return reply(serial, "s", (":1.7",))
        if member == "GetUnit":
            if values[0] not in self.units:
                return error(serial, "org.freedesktop.systemd1.NoSuchUnit", f"Unit {values[0]} not loaded.")
            return reply(serial, "o", (f"/org/freedesktop/systemd1/unit/{list(self.units).index(str(values[0]))}",))
        if member == "SetUnitProperties":
            if not self.behaviour.forgets:
                for name, pairs in values[2]:  # type: ignore[attr-defined]
                    assert name == "DeviceAllow"
                    self.units[str(values[0])].allow += pairs
            return reply(serial, "", ())
        if values[1] == "Version":
            return reply(serial, "v", (("s", self.behaviour.version),))
        unit = list(self.units.values())[int(path.rpartition("/")[2])]
        if values[1] == "DevicePolicy":
            return reply(serial, "v", (("s", unit.policy),))
        return reply(serial, "v", (("a(ss)", unit.allow if values[1] == "DeviceAllow" else unit.pins),))

    def _send(self, connection: socket.socket, data: bytes) -> None:
        if not self.behaviour.pause:
            connection.sendall(data)
            return
        for index in range(len(data)):
            connection.sendall(data[index : index + 1])
            if self._stop.wait(self.behaviour.pause):
                raise _Done

    def _be_silent(self, connection: socket.socket) -> None:
        """Until the client has gone."""
        while True:
            self._take(connection, 1)

    def _until(self, connection: socket.socket, end: bytes) -> None:
        data = b""
        while not data.endswith(end):
            data += self._take(connection, 1)

    def _take(self, connection: socket.socket, size: int) -> bytes:
        data = b""
        while len(data) < size:
            try:
                part = connection.recv(size - len(data))
            except TimeoutError:
                if self._stop.is_set():
                    raise _Done from None
                continue
            if not part:
                raise _Done
            data += part
        return data


class _Done(Exception):
    """This connection has ended."""


Fields = list[tuple[int, tuple[str, object]]]


def message(kind: int, serial: int, fields: Fields, signature: str, values: tuple[object, ...]) -> bytes:
    body = dbus.marshal(signature, values)
    fields = [*fields, *([(dbus.SIGNATURE, ("g", signature))] if signature else [])]
    head = dbus.marshal("yyyyuua(yv)", (ord("l"), kind, 1, 1, len(body), serial + 100, fields))
    return head + bytes(-len(head) % 8) + body


def reply(serial: int, signature: str, values: tuple[object, ...]) -> bytes:
    return message(dbus.METHOD_RETURN, serial, [(dbus.REPLY_SERIAL, ("u", serial))], signature, values)


def error(serial: int, name: str, text: str) -> bytes:
    fields: Fields = [(dbus.REPLY_SERIAL, ("u", serial)), (dbus.ERROR_NAME, ("s", name))]
    return message(dbus.ERROR, serial, fields, "s", (text,))


def signal() -> bytes:
    """A signal like the one that a bus sends after Hello."""
    member: Fields = [(dbus.PATH, ("o", "/")), (dbus.MEMBER, ("s", "NameAcquired"))]
    return message(4, 0, member, "s", (":1.7",))
