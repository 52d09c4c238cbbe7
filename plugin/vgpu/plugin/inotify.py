"""inotify(7): an fd that becomes readable when something is made or deleted in a directory.

Belongs here: the two system calls. Where the kernel gives no instance (a full fs.inotify.max_user_instances) there is
no fd, and who wants to know has to look.
"""

from __future__ import annotations

import ctypes
import os

IN_MOVED_TO = 0x00000080
IN_CREATE = 0x00000100
IN_DELETE = 0x00000200
IN_DELETE_SELF = 0x00000400
IN_MOVE_SELF = 0x00000800
IN_ONLYDIR = 0x01000000
MASK = IN_MOVED_TO | IN_CREATE | IN_DELETE | IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR

_libc = ctypes.CDLL(None, use_errno=True)
_libc.inotify_init1.argtypes = (ctypes.c_int,)
_libc.inotify_add_watch.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32)


def open_watch(directory: str) -> int:
    """The fd, non-blocking; OSError when the directory is not there or no instance is left."""
    fd: int = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if fd < 0:
        raise _error("inotify_init1()")
    if _libc.inotify_add_watch(fd, os.fsencode(directory), MASK) < 0:
        error = _error(f"inotify_add_watch({directory!r})")
        os.close(fd)
        raise error
    return fd


def drain(fd: int) -> None:
    """Take what there is to read: that something happened is all that matters."""
    try:
        while os.read(fd, 1 << 16):
            pass
    except BlockingIOError:
        return


def _error(call: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{call}: {os.strerror(number)}")
