"""JSON records on disk: bounded reads, errors that name the file, atomic durable writes.

Belongs here: bytes <-> values <-> files. Not here: the meaning of a record, which is its own module's (grants, claims,
inventory, settings). A reader trusts no file: an oversized, truncated or garbage file raises VgpuError only.

`import json` takes some 9 ms in a fresh interpreter, because its Python half imports `re`. Every start of a container
would pay for that, so this module uses the C half alone. An interpreter without it uses the ordinary module.
"""

from __future__ import annotations

import errno
import os

from vgpu.config.errors import VgpuError, is_absent, not_known

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_RECORD = 1 << 20
MAX_DEPTH = 64
MAX_DIGITS = 20
_OF_THE_FILE = (errno.EISDIR, errno.ELOOP)  #: something else than a file is at the path


def _reject_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _whole(text: str) -> int:
    """An integer. Before Python 3.11 int() of a megabyte of digits takes minutes, so the length is bounded."""
    if len(text) > MAX_DIGITS:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def _fraction(text: str) -> float:
    value = float(text)
    if value - value != 0.0:
        raise ValueError("a number beyond any limit")
    return value


class _ScannerContext:
    """The options of `_json.make_scanner`, as attributes like those of json.JSONDecoder."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = staticmethod(_fraction)
    parse_int = staticmethod(_whole)
    parse_constant = staticmethod(_reject_constant)


try:
    import _json
except ImportError:  # an interpreter without the C half: slower, the same result
    import json.decoder
    import json.encoder

    _quote: Any = json.encoder.py_encode_basestring_ascii
    _scanner: Any = json.decoder.JSONDecoder(parse_float=_fraction, parse_int=_whole, parse_constant=_reject_constant)
    _scan = _scanner.scan_once
else:
    _quote = _json.encode_basestring_ascii
    _make_scanner: Any = _json.make_scanner
    _scan = _make_scanner(_ScannerContext())

_SPACE = " \t\n\r"


def decode(data: bytes, source: str, do: str = "") -> object:
    """The JSON value in `data`; an error names `source` and ends with `do`."""
    try:
        text = data.decode("utf-8")
        start = 0
        while start < len(text) and text[start] in _SPACE:
            start += 1
        value, end = _scan(text, start)
        if text[end:].strip(_SPACE):
            raise ValueError(f"text after the value at character {end}")
        _check(text, value)
    except StopIteration as error:
        found = f"nothing valid at character {error.value}"
        raise VgpuError(source, expected="a JSON value", found=found, do=do) from None
    except SystemError:  # the scanner of 3.11 sets no exception where json.decoder is not loaded
        raise VgpuError(source, expected="JSON", found="a damaged or cut off value", do=do) from None
    except RecursionError:
        raise VgpuError(source, expected=_DEPTH, found="deeper nesting", do=do) from None
    except ValueError as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise VgpuError(source, expected="JSON", found=str(error), do=do) from None
    return value


_DEPTH = f"JSON nested at most {MAX_DEPTH} deep"


def _check(text: str, value: object) -> None:
    """RecursionError past MAX_DEPTH: a walk over the value (repr, encode) must not run out of stack.
    UnicodeEncodeError for half a surrogate pair, which no path or environment can hold."""
    escapes = "\\ud" in text or "\\uD" in text
    if not escapes and text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    level, depth = [value], -1
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise RecursionError
        below: list[object] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item)
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
            elif escapes and isinstance(item, str):
                item.encode("utf-8")
        level = below


def decode_object(data: bytes, source: str, do: str = "") -> dict[str, object]:
    """As `decode`, for a value that has to be an object."""
    value = decode(data, source, do)
    if not isinstance(value, dict):
        raise VgpuError(source, expected="a JSON object", found=type(value).__name__, do=do)
    return value


_CONSTANTS = {None: "null", True: "true", False: "false"}


def encode(value: object) -> str:
    """`value` as compact JSON: strings, numbers, booleans, None, lists, tuples and dicts with string keys."""
    if value is None or isinstance(value, bool):
        return _CONSTANTS[value]
    if isinstance(value, str):
        return str(_quote(value))
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        if value - value != 0.0:  # infinite or not a number
            raise ValueError("not a JSON number: " + repr(value))
        return repr(value)
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(encode, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{_quote(key)}:{encode(item)}" for key, item in value.items()) + "}"
    raise TypeError(f"not a JSON value: {type(value).__name__}")


def read_bounded(path: str, limit: int = MAX_RECORD) -> bytes:
    """The bytes of a regular file of at most `limit` bytes; OSError from open(2) and read(2)."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return read_fd(fd, path, limit)
    finally:
        os.close(fd)


def read_fd(fd: int, source: str, limit: int) -> bytes:
    """Everything from `fd` to its end; VgpuError past `limit` bytes."""
    parts = []
    left = limit + 1
    while left > 0:
        part = os.read(fd, min(left, 1 << 18))
        if not part:
            break
        parts.append(part)
        left -= len(part)
    if left <= 0:
        raise VgpuError(source, expected=f"at most {limit} bytes", found="more")
    return b"".join(parts)


def read(path: str, do: str = "", limit: int = MAX_RECORD) -> dict[str, object]:
    """The JSON object in `path`. FileNotFoundError passes through, because each caller treats absence differently.

    NotKnown when the file cannot be looked at; another VgpuError when it is damaged.
    """
    try:
        data = read_bounded(path, limit)
    except FileNotFoundError:
        raise
    except OSError as error:
        if not is_absent(error) and error.errno not in _OF_THE_FILE:
            raise not_known(path, error) from error
        raise VgpuError(path, expected="a file to read", found=error.strerror, do=do) from error
    except VgpuError as error:
        raise VgpuError(path, expected=error.expected, found=error.found, do=do) from None
    return decode_object(data, path, do)


def write(path: str, value: object, mode: int = 0o600, temporary: str = "", group: int = -1) -> None:
    """Replace `path` by `value` as JSON: temporary file, fsync, rename, fsync of the directory."""
    write_bytes(path, (encode(value) + "\n").encode("ascii"), mode, temporary, group)


def write_bytes(
    path: str, data: bytes, mode: int = 0o600, temporary: str = "", group: int = -1, owner: int = -1
) -> None:
    """Replace `path` by `data`. A reader, or a power cut, finds the old content or the new, never a part.

    A writer under a lock may give the temporary file a name of its own in the same directory. What a killed writer left
    there is then overwritten, and known to belong to nobody who lives. `group` and `owner` are the file's, if they are
    not the writer's.
    """
    directory, name = os.path.split(path)
    temporary = temporary or os.path.join(directory, f".{name}.{os.getpid()}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        try:
            if group >= 0 or owner >= 0:
                os.fchown(fd, owner, group)
            os.fchmod(fd, mode)
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, path)
    except BaseException as error:
        os.unlink(temporary)
        if isinstance(error, OSError) and error.filename is None:  # as after write(2) on a full disk
            error.filename = path
        raise
    sync_directory(directory or ".")


def sync_directory(path: str) -> None:
    """Make names that were added, renamed or removed in `path` survive a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
