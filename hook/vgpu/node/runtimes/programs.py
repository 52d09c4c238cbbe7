"""Running the runtimes' own programs.

Belongs here: a program that is missing, or does not end, as one line. Does not belong here: what an exit status means,
which depends on the program.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence

from vgpu.config.errors import VgpuError

TIMEOUT = 60  #: seconds


class MissingProgram(VgpuError):
    """The program is not installed."""


def run(command: Sequence[str], timeout: float = TIMEOUT) -> subprocess.CompletedProcess[str]:
    """The ended program with its output."""
    try:
        return subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", check=False, timeout=timeout,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except FileNotFoundError as error:
        raise MissingProgram(shlex.join(command), expected="a program", found=error.strerror) from error
    except OSError as error:
        raise VgpuError(shlex.join(command), expected="a program", found=error.strerror) from error
    except subprocess.TimeoutExpired as error:
        raise VgpuError(shlex.join(command), expected=f"an end within {timeout:.0f} s", found="none") from error
