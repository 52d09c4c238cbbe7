"""Run a command in which some system calls fail with ENOSYS, as on a kernel that is too old for them.

    python3 without_calls.py 437,428 COMMAND [ARGUMENT ...]

All children inherit the seccomp filter. It kills no process, so a program with a fallback uses that.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

PR_SET_NO_NEW_PRIVS = 38
PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2
LOAD_NUMBER = (0x20, 0, 0, 0)  # BPF_LD | BPF_W | BPF_ABS of seccomp_data.nr
RETURN = 0x06
JUMP_EQUAL = 0x15
ALLOW = 0x7FFF0000
ERRNO = 0x00050000


def program(numbers: list[int]) -> bytes:
    """One comparison per call; the return of ENOSYS comes last."""
    lines = [LOAD_NUMBER]
    for index, number in enumerate(numbers):
        lines.append((JUMP_EQUAL, len(numbers) - index, 0, number))
    lines += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, ERRNO | errno.ENOSYS)]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def install(numbers: list[int]) -> None:
    code = program(numbers)
    buffer = ctypes.create_string_buffer(code, len(code))
    filter_program = struct.pack("=HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, filter_program, 0, 0)):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    install([int(number) for number in sys.argv[1].split(",")])
    os.execv(sys.argv[2], sys.argv[2:])
