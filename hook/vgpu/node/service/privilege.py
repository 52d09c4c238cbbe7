"""Errors of a program that lacks the rights of root.

Belongs here: how such an error reads. Does not belong here: which files need those rights; the kernel decides that.
"""

from __future__ import annotations

import errno
import os

from vgpu.config.errors import VgpuError, shown
from vgpu.hook import error_line

ADVICE = "run as root"


def line(error: BaseException, program: str) -> str:
    """`error` as a line. If only root would not meet it, the advice is to run as root, and no other.

    `program` is the name before an error that names no file.
    """
    denied = is_cause(error)
    if not isinstance(error, VgpuError):
        return _of_system(error, program) + (f"; {ADVICE}" if denied else "")
    if not denied or ADVICE in str(error):
        return str(error)
    return VgpuError(error.what, expected=error.expected, found=error.found, do=ADVICE).line()


def is_cause(error: BaseException) -> bool:
    """Whether the kernel has refused something to a process that is not root's."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, PermissionError):
            return os.geteuid() != 0
        found = found.__cause__ or found.__context__
    return False


def _of_system(error: BaseException, program: str) -> str:
    if not isinstance(error, OSError):
        return shown(str(error))
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        return str(error_line.meaning(program, error))
    return f"{shown(error.filename or program)}: {error.strerror or error}"
