"""The log of the node's services: one line for each event on stderr, the text first, then fields as key=value.

Belongs here: the form of a line, and conditions that are logged only when they change. journald adds the time and keeps
the lines. Does not belong here: the hook's own log (vgpu.hook.hooklog).
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TextIO

from vgpu.config.errors import escaped, shown

WARNING, INFO = 4, 6  #: levels of syslog, which sd-daemon(3) expects at the beginning of a line


class Log:
    """A log on `stream`. With `levels`, each line begins with <4> or <6>, which journald removes, else with `name`."""

    def __init__(self, stream: TextIO | None = None, levels: bool | None = None, name: str = "vgpud") -> None:
        self.stream = stream or sys.stderr
        self.name = name
        self.levels = "JOURNAL_STREAM" in os.environ if levels is None else levels

    def info(self, text: str, **fields: object) -> None:
        self._write(INFO, text, fields)

    def warning(self, text: str, **fields: object) -> None:
        self._write(WARNING, text, fields)

    def _write(self, level: int, text: str, fields: dict[str, object]) -> None:
        suffix = "".join(f" {name}={_value(value)}" for name, value in fields.items() if value not in ("", None))
        front = f"<{level}>" if self.levels else f"{self.name}: "
        with contextlib.suppress(OSError):  # a line that cannot be written ends no service
            self.stream.write(f"{front}{escaped(text)}{suffix}\n")  # in one call: other threads write too
            self.stream.flush()


def _value(value: object) -> str:
    text = shown(value)
    return f'"{text}"' if " " in text or not text else text


class Conditions:
    """The conditions that hold at present, by topic. Each is logged when it begins, changes and ends."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.present: dict[str, str] = {}

    def set(self, topic: str, text: str) -> None:
        """Set the condition of `topic` to `text`; "" means that nothing is wrong."""
        before = self.present.get(topic, "")
        if text == before:
            return
        if text:
            self.present[topic] = text
            self.log.warning(text, topic=topic)
        else:
            del self.present[topic]
            self.log.info("over: " + before, topic=topic)
