"""The one error that users see: what failed, what was expected, what was found, what to do.

Belongs here: the type and its one-line form. Every part raises it and every entry point prints it. One line of it is
all that a failed start of a container leaves in its runtime's log, so a line has to be complete by itself. Here it is
also decided which errors of the kernel say that something is not there, and which only that somebody could not look.
"""

from __future__ import annotations

import errno

#: Errors that speak of the file or device at which a process looks. All others speak of the process: its limits, its
#: rights, its host's memory, a disk that does not answer.
ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENXIO, errno.ENODEV)

MAX_FOUND = 120


def escaped(text: str) -> str:
    """`text` on one line; characters that are not printable, and lone surrogates, become escapes."""
    return text if text.isprintable() else "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def shown(value: object) -> str:
    """`value` for a message: one line of bounded length."""
    text = value if isinstance(value, str) else repr(value)
    return escaped(text) if len(text) <= MAX_FOUND else escaped(text[:MAX_FOUND]) + "..."


class VgpuError(Exception):
    """One line: `<what>: expected <expected>, found <found>; <do>`. Absent parts are left out."""

    def __init__(self, what: str, *, expected: str = "", found: object = None, do: str = "") -> None:
        self.what = what
        self.expected = expected
        self.found = found
        self.do = do
        super().__init__(self.line())

    def line(self) -> str:
        middle = []
        if self.expected:
            middle.append(f"expected {self.expected}")
        if self.found is not None:
            middle.append(f"found {shown(self.found)}")
        text = self.what + (": " + ", ".join(middle) if middle else "") + (f"; {self.do}" if self.do else "")
        return escaped(text)


class NotKnown(VgpuError):
    """Somebody could not look. Whoever keeps a state keeps it: this error says nothing of what was to be looked at."""


def is_absent(error: OSError) -> bool:
    """Whether `error` says that there is no such file or device."""
    return error.errno in ABSENT


def could_not_look(error: BaseException) -> bool:
    """Whether `error` speaks of the process that looked, not of what it looked at."""
    if isinstance(error, OSError):
        return not is_absent(error)
    return isinstance(error, (NotKnown, MemoryError))


def not_known(what: str, error: OSError) -> NotKnown:
    """The NotKnown for an error of the kernel; raise it from `error`."""
    return NotKnown(what, expected="to look at it", found=error.strerror or str(error))
