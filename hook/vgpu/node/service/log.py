"""The daemon's log: one line per event on stderr, text first, then fields as key=value; journald keeps the rest.

Belongs here: the form of a line. A repeated condition is the caller's to hold back (`Conditions` does).
"""

from __future__ import annotations

import os
import sys
from typing import TextIO

from vgpu.config.errors import escaped, shown

WARNING, INFO = 4, 6  #: syslog's, as sd-daemon(3) wants them in front of a line


class Log:
    """Writes to `stream`; with `levels` each line begins <4> or <6>, which journald takes off, else with `name`."""

    def __init__(self, stream: TextIO | None = None, levels: bool | None = None, name: str = "vgpud") -> None:
        self.stream = stream or sys.stderr
        self.name = name
        self.levels = "JOURNAL_STREAM" in os.environ if levels is None else levels

    def info(self, text: str, **fields: object) -> None:
        self._write(INFO, text, fields)

    def warning(self, text: str, **fields: object) -> None:
        self._write(WARNING, text, fields)

    def _write(self, level: int, text: str, fields: dict[str, object]) -> None:
        told = "".join(f" {name}={_value(value)}" for name, value in fields.items() if value not in ("", None))
        front = f"<{level}>" if self.levels else f"{self.name}: "
        self.stream.write(f"{front}{escaped(text)}{told}\n")  # at once: other threads write too
        self.stream.flush()


def _value(value: object) -> str:
    text = shown(value)
    return f'"{text}"' if " " in text or not text else text


class Conditions:
    """What is wrong at present, by topic: told in the log when it begins, changes and ends, kept for the endpoint."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.present: dict[str, str] = {}

    def set(self, topic: str, text: str) -> None:
        """`text` "" when nothing is wrong with `topic` (any more)."""
        before = self.present.get(topic, "")
        if text == before:
            return
        if text:
            self.present[topic] = text
            self.log.warning(text, topic=topic)
        else:
            del self.present[topic]
            self.log.info("over: " + before, topic=topic)
