"""The one error that a user sees: what went wrong, what was expected, what was found, what to do.

Belongs here: the type and its one-line rendering. Raised by every part, printed by every entry point; a line of it
is all that a failed container start leaves in its runtime's log, so it has to stand alone.
"""

from __future__ import annotations

MAX_FOUND = 120


def escaped(text: str) -> str:
    """`text` on one line: what is not printable, lone surrogates included, becomes an escape."""
    return text if text.isprintable() else "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def shown(value: object) -> str:
    """`value` as it may appear in a message: one line, bounded."""
    text = value if isinstance(value, str) else repr(value)
    return escaped(text) if len(text) <= MAX_FOUND else escaped(text[:MAX_FOUND]) + "..."


class VgpuError(Exception):
    """One line for a person: `<what>: expected <expected>, found <found>; <do>`, absent parts left out."""

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
