"""inotify(7): a file descriptor that becomes readable when a file is created or deleted in a directory.

Belongs here: the two system calls. If the kernel has no instance left (fs.inotify.max_user_instances), `open_watch`
raises OSError, and its caller has to poll the directory. What a change means belongs to the caller.
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
    """A non-blocking fd; OSError when the directory does not exist or no instance is left."""
    fd: int = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if fd < 0:
        raise _error("inotify_init1()")
    if _libc.inotify_add_watch(fd, os.fsencode(directory), MASK) < 0:
        error = _error(f"inotify_add_watch({directory!r})")
        os.close(fd)
        raise error
    return fd


def drain(fd: int) -> None:
    """Read and drop all pending events. Callers only need the fact that something changed."""
    try:
        while os.read(fd, 1 << 16):
            pass
    except BlockingIOError:
        return


def _error(call: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{call}: {os.strerror(number)}")
