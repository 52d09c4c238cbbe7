"""A D-Bus client for a few calls: connect, authenticate, call, one answer; everything within one deadline.

Belongs here: the wire protocol of the D-Bus specification, as far as systemd's manager interface needs it. Not here:
the calls themselves (vgpu.hook.devices.systemd). It uses the interpreter's `_socket`, because `socket` imports enum and
selectors, and it is imported only where systemd manages a container. All input from the peer is bounded and checked: a
silent, slow or refusing peer, or garbage, is a BusError, never a hang.
"""

from __future__ import annotations

import _socket
import os
import struct
import sys
import time

MAX_MESSAGE = 1 << 20  # the specification allows 128 MiB; a scope's whole device list has some kilobytes
MAX_LINE = 512
MAX_SKIPPED = 1000  # signals, and replies to other calls
RETRY = 0.02  # seconds between attempts on a full listen queue

METHOD_CALL, METHOD_RETURN, ERROR = 1, 2, 3
PATH, INTERFACE, MEMBER, ERROR_NAME, REPLY_SERIAL, DESTINATION, SIGNATURE = 1, 2, 3, 4, 5, 6, 8

_ENDIAN = "<" if sys.byteorder == "little" else ">"
_MARKS = {ord("l"): "<", ord("B"): ">"}
_HEADER = 16  # up to and with the length of the header fields
_FIXED = {"y": ("B", 1), "b": ("I", 4), "u": ("I", 4), "i": ("i", 4), "t": ("Q", 8), "x": ("q", 8)}
_ALIGN = {"y": 1, "g": 1, "v": 1, "b": 4, "u": 4, "i": 4, "s": 4, "o": 4, "a": 4, "t": 8, "x": 8, "(": 8, "{": 8}
MAX_DEPTH = 16


class BusError(Exception):
    """The bus cannot be used; `waited` when the deadline has passed."""

    def __init__(self, text: str, waited: bool = False) -> None:
        super().__init__(text)
        self.waited = waited


class ErrorReply(Exception):
    """The peer's answer is an error. `name` is its D-Bus name, such as org.freedesktop.systemd1.NoSuchUnit."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}" if message else name)
        self.name = name


# Marshalling


def split_type(signature: str) -> tuple[str, str]:
    """The first complete type of a signature, and the rest; BusError for a type that this module does not know."""
    depth, index = 0, 0
    for index, letter in enumerate(signature[: MAX_DEPTH * 8]):
        if letter not in _ALIGN and letter not in ")}":
            break
        depth += {"(": 1, "{": 1, ")": -1, "}": -1}.get(letter, 0)
        if depth == 0 and letter != "a":
            return signature[: index + 1], signature[index + 1 :]
    raise BusError(f"a signature that is none: {signature[:40]!r}")


def types(signature: str) -> list[str]:
    found = []
    while signature:
        first, signature = split_type(signature)
        found.append(first)
    return found


def marshal(signature: str, values: tuple[object, ...], start: int = 0) -> bytes:
    """`values` in the specification's form. A variant is (signature, value); arrays and structs are sequences."""
    out = bytearray(start)
    for kind, value in zip(types(signature), values):
        _put(out, kind, value)
    return bytes(out[start:])


def _pad(out: bytearray, boundary: int) -> None:
    out += bytes(-len(out) % boundary)


def _put(out: bytearray, kind: str, value: object) -> None:
    _pad(out, _ALIGN[kind[0]])
    if kind[0] in _FIXED:
        out += struct.pack(_ENDIAN + _FIXED[kind[0]][0], value)
    elif kind in ("s", "o", "g"):
        data = os.fsencode(str(value))
        out += struct.pack("B" if kind == "g" else _ENDIAN + "I", len(data)) + data + b"\0"
    elif kind == "v":
        assert isinstance(value, tuple)
        _put(out, "g", value[0])
        _put(out, value[0], value[1])
    elif kind[0] == "a":
        _put_array(out, kind[1:], value)
    else:
        for part, item in zip(types(kind[1:-1]), value):  # type: ignore[call-overload]
            _put(out, part, item)


def _put_array(out: bytearray, kind: str, items: object) -> None:
    at = len(out)
    out += bytes(4)
    _pad(out, _ALIGN[kind[0]])
    begin = len(out)
    for item in items:  # type: ignore[attr-defined]
        _put(out, kind, item)
    struct.pack_into(_ENDIAN + "I", out, at, len(out) - begin)


class Reader:
    """Reads values from a message's bytes; BusError for malformed ones."""

    __slots__ = ("at", "data", "endian")

    def __init__(self, data: bytes, endian: str, at: int = 0) -> None:
        self.data = data
        self.endian = endian
        self.at = at

    def values(self, signature: str) -> list[object]:
        try:
            return [self._get(kind, MAX_DEPTH) for kind in types(signature)]
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise BusError(f"a message that is too short or malformed: {error}") from None

    def _get(self, kind: str, depth: int) -> object:
        if depth == 0:
            raise BusError("a message nested too deep")
        first = kind[0]
        self.at += -self.at % _ALIGN[first]
        if first in _FIXED:
            code, size = _FIXED[first]
            (number,) = struct.unpack_from(self.endian + code, self.data, self.at)
            self.at += size
            return number
        if first in "sog":
            return self._text(first)
        if first == "v":
            inner = types(self._text("g"))
            if len(inner) != 1:
                raise BusError("a variant of other than one value")
            return self._get(inner[0], depth - 1)
        if first == "a":
            return self._array(kind[1:], depth)
        return tuple(self._get(part, depth - 1) for part in types(kind[1:-1]))

    def _text(self, kind: str) -> str:
        code, size = ("B", 1) if kind == "g" else ("I", 4)
        (length,) = struct.unpack_from(self.endian + code, self.data, self.at)
        begin = self.at + size
        self.at = begin + length + 1
        if self.at > len(self.data):
            raise BusError("a text longer than its message")
        return self.data[begin : begin + length].decode("utf-8", "replace")

    def _array(self, kind: str, depth: int) -> list[object]:
        (length,) = struct.unpack_from(self.endian + "I", self.data, self.at)
        self.at += 4
        self.at += -self.at % _ALIGN[kind[0]]
        end = self.at + length
        if end > len(self.data):
            raise BusError("an array longer than its message")
        found = []
        while self.at < end:
            begin = self.at
            found.append(self._get(kind, depth - 1))
            if self.at == begin:  # an empty struct, which the specification forbids: such an array has no end
                raise BusError("an array of nothing")
        return found


def method_call(
    serial: int, destination: str, path: str, interface: str, member: str, signature: str, values: tuple[object, ...]
) -> bytes:
    body = marshal(signature, values)
    fields = [(PATH, ("o", path)), (INTERFACE, ("s", interface)), (MEMBER, ("s", member))]
    if destination:
        fields.append((DESTINATION, ("s", destination)))
    if signature:
        fields.append((SIGNATURE, ("g", signature)))
    mark = ord("l" if _ENDIAN == "<" else "B")
    head = bytearray(marshal("yyyyuua(yv)", (mark, METHOD_CALL, 0, 1, len(body), serial, fields)))
    _pad(head, 8)
    return bytes(head) + body


# The connection


class Bus:
    """A connection to one socket. No call waits longer than until `deadline` (time.monotonic)."""

    __slots__ = ("_buffer", "_serial", "_socket", "deadline", "destination", "path")

    def __init__(self, path: str, destination: str, deadline: float, hello: bool) -> None:
        """`destination` gets the calls. `hello`: the peer is a bus; False for systemd's own socket."""
        self.path = path
        self.destination = destination
        self.deadline = deadline
        self._buffer = b""
        self._serial = 0
        self._socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            self._connect()
            self._authenticate()
            if hello:
                bus = "org.freedesktop.DBus"
                self._send_call(bus, "/org/freedesktop/DBus", bus, "Hello", "", ())
                self._reply(self._serial, "s")
        except BaseException:
            self._socket.close()
            raise

    def close(self) -> None:
        self._socket.close()

    def call(
        self, path: str, interface: str, member: str, signature: str, values: tuple[object, ...], returns: str
    ) -> list[object]:
        """The values of the answer, whose signature must be `returns`; ErrorReply for an error."""
        return self._reply(self.send(path, interface, member, signature, values), returns)

    def send(self, path: str, interface: str, member: str, signature: str, values: tuple[object, ...]) -> int:
        """Send a call. `answer` returns the answer for the returned serial number, in the order of sending."""
        self._send_call(self.destination, path, interface, member, signature, values)
        return self._serial

    def answer(self, serial: int, returns: str) -> list[object]:
        return self._reply(serial, returns)

    def _send_call(self, destination: str, *call: object) -> None:
        self._serial += 1
        self._write(method_call(self._serial, destination, *call))  # type: ignore[arg-type]

    def _connect(self) -> None:
        while True:
            self._arm()
            try:
                self._socket.connect(self.path)
                return
            except BlockingIOError:  # its listen queue is full
                time.sleep(RETRY)
            except _socket.timeout:
                raise self._late("connecting") from None
            except OSError as error:
                raise BusError(f"{self.path}: {error.strerror}") from None

    def _authenticate(self) -> None:
        """EXTERNAL: the kernel passes our uid to the peer.

        BEGIN is sent together with AUTH, but the first message only after the answer: systemd (seen in 247 to 262)
        ignores a message that it has read together with BEGIN until more data comes.
        """
        identity = str(os.geteuid()).encode("ascii").hex().encode("ascii")
        self._write(b"\0AUTH EXTERNAL " + identity + b"\r\nBEGIN\r\n")
        while b"\r\n" not in self._buffer:
            if len(self._buffer) > MAX_LINE:
                raise BusError(f"{self.path}: an answer that is none of D-Bus")
            self._read()
        line, _, self._buffer = self._buffer.partition(b"\r\n")
        if not line.startswith(b"OK "):
            raise BusError(f"{self.path}: refuses this user: {line[:40]!r}")

    def _reply(self, serial: int, returns: str) -> list[object]:
        for _ in range(MAX_SKIPPED):
            kind, fields, body, endian = self._message()
            if fields.get(REPLY_SERIAL) != serial or kind not in (METHOD_RETURN, ERROR):
                continue
            signature = str(fields.get(SIGNATURE, ""))
            reader = Reader(body, endian)
            if kind == ERROR:
                message = reader.values("s")[0] if signature[:1] == "s" else ""
                raise ErrorReply(str(fields.get(ERROR_NAME, "an error without a name")), str(message))
            if signature != returns:
                raise BusError(f"{self.path}: answers {signature[:40]!r}, not {returns!r}")
            return reader.values(returns)
        raise BusError(f"{self.path}: {MAX_SKIPPED} messages, but no answer")

    def _message(self) -> tuple[int, dict[object, object], bytes, str]:
        head = self._take(_HEADER)
        endian = _MARKS.get(head[0])
        if endian is None or head[3] != 1:
            raise BusError(f"{self.path}: a message that is none of D-Bus")
        body_length, _, fields_length = struct.unpack_from(endian + "III", head, 4)
        fields_padded = fields_length + -fields_length % 8
        if fields_padded + body_length > MAX_MESSAGE:
            raise BusError(f"{self.path}: a message of {fields_padded + body_length} bytes")
        rest = self._take(fields_padded + body_length)
        fields = Reader(head + rest[:fields_length], endian, _HEADER - 4).values("a(yv)")[0]
        return head[1], dict(fields), rest[fields_padded:], endian  # type: ignore[call-overload]

    def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._read()
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken

    def _read(self) -> None:
        self._arm()
        try:
            data = self._socket.recv(1 << 16)
        except _socket.timeout:
            raise self._late("waiting for its answer") from None
        except OSError as error:
            raise BusError(f"{self.path}: {error.strerror}") from None
        if not data:
            raise BusError(f"{self.path}: closed the connection")
        self._buffer += data

    def _write(self, data: bytes) -> None:
        self._arm()
        try:
            self._socket.sendall(data)
        except _socket.timeout:
            raise self._late("writing") from None
        except OSError as error:
            raise BusError(f"{self.path}: {error.strerror}") from None

    def _arm(self) -> None:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise self._late("talking to it")
        self._socket.settimeout(left)

    def _late(self, doing: str) -> BusError:
        return BusError(f"{self.path}: no time left {doing}", waited=True)
