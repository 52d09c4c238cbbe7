"""A conversation with the measuring program: one line in, one JSON object out.

Belongs here: starting it, asking, ending it. Does not belong here: under which limits it runs (way.py), and what a
command means (libvcuda/selftest). A driver's refusal is an answer with a `code`, and no error.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from vgpu.config.errors import VgpuError, shown

NAME = "vgpu-selftest"
SUCCESS, OUT_OF_MEMORY = 0, 2
#: CUresults after which a card answers nothing more: lost, a hardware fault, a context that is gone, unknown.
LOST = {46: "device unavailable", 101: "no such device", 201: "invalid context", 214: "uncorrectable ECC error",
        700: "illegal address", 719: "launch failed", 802: "system not ready", 999: "unknown error"}  # fmt: skip
ENDS_WITHIN = 30  #: seconds for a program that was told to end; then it is killed


class NotJudged(VgpuError):
    """Something without which nothing can be measured: exit status 3."""


class Program:
    """A running program. `log` is the file with its stderr."""

    def __init__(self, command: Sequence[str], log: str, environment: Mapping[str, str] | None = None) -> None:
        self.log = log
        with open(log, "ab") as stderr:
            try:
                self.process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment
                )
            except OSError as error:
                raise NotJudged(command[0], expected="a program", found=error.strerror or str(error)) from error

    def send(self, line: str) -> None:
        assert self.process.stdin
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self._ended(line) from None

    def receive(self, line: str) -> dict[str, Any]:
        """The answer to `line`."""
        assert self.process.stdout
        text = self.process.stdout.readline()
        if not text.endswith("\n"):
            raise self._ended(line)
        answer: dict[str, Any] = json.loads(text)
        if "error" in answer:
            raise VgpuError(f"{NAME}: {line.split(maxsplit=1)[0]}", expected="an answer", found=answer["error"])
        if answer.get("code") in LOST:
            code = answer["code"]
            raise NotJudged(
                "the card", expected="answers", found=f"CUDA error {code}, {LOST[code]}", do="look at dmesg"
            )
        return answer

    def ask(self, line: str) -> dict[str, Any]:
        self.send(line)
        return self.receive(line)

    def _ended(self, line: str) -> VgpuError:
        """The error of a program that ended before it answered, with the last thing that it or its runtime said."""
        self.process.wait(ENDS_WITHIN)
        with open(self.log, encoding="utf-8", errors="replace") as file:
            said = [text for text in file.read().splitlines() if text.strip()]
        ours = [text[text.index("vgpu-hook: ") :] for text in said if "vgpu-hook: " in text]
        found = (ours or said or [f"exit status {self.process.returncode}"])[-1]
        return NotJudged(f"{NAME}: {line.split(maxsplit=1)[0]}", expected="an answer", found=shown(found))

    @property
    def pid(self) -> int:
        return self.process.pid

    def close(self) -> None:
        """End it, by the end of its input; by SIGKILL if that takes too long."""
        assert self.process.stdin and self.process.stdout
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
