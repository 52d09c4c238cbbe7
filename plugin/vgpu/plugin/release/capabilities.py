"""Gives up the capabilities that a program does not need and its container has.

vgpud's container is privileged, because only such a one may open the driver's nodes. containerd gives it all
capabilities, whatever its securityContext drops. Belongs here: which capabilities each program keeps, and giving up
all others for good.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable

#: capabilities(7), by their numbers: those of packaging/systemd/vgpud.service, where the reason stands beside each.
VGPUD = {"CHOWN": 0, "DAC_OVERRIDE": 1, "KILL": 5, "SYS_PTRACE": 19, "SYS_ADMIN": 21, "MKNOD": 27}
#: The plugin needs none. With one that containers lack, root of a container that sees the host's processes may neither
#: trace it nor read its account's token through /proc (ptrace(2), "Ptrace access mode checking").
PLUGIN = {"SYS_PTRACE": 19}
#: program -> what it keeps. vgpuctl looks at what vgpud looks at, and mends what vgpud mends.
KEPT = {"vgpud": VGPUD, "vgpuctl": VGPUD, "vgpu-device-plugin": PLUGIN}

LAST = 63  #: more than any kernel has
PR_CAPBSET_READ, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 23, 24, 38
LINUX_CAPABILITY_VERSION_3 = 0x20080522


def keep(numbers: Iterable[int]) -> None:
    """Give up all capabilities but these, so that no program that is executed later has them. OSError.

    A container that is not privileged may lack some of these; then the program does without.
    """
    kept = sum(1 << number for number in numbers) & _permitted()
    for number in range(LAST + 1):
        if not kept >> number & 1 and _libc().prctl(PR_CAPBSET_READ, number, 0, 0, 0) == 1:
            _call("prctl", PR_CAPBSET_DROP, number, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(LINUX_CAPABILITY_VERSION_3, 0)
    low, high = kept & 0xFFFFFFFF, kept >> 32
    _call("capset", header, (ctypes.c_uint32 * 6)(low, low, 0, high, high, 0))  # effective, permitted, inheritable
    _call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def _permitted() -> int:
    with open(
        "/proc/self/status", "rb"
    ) as stream:  # as bytes: in the host's root there is no Python to load a codec of
        return next(int(line.split()[1], 16) for line in stream if line.startswith(b"CapPrm:"))


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc(), name)(*arguments):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), name)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
