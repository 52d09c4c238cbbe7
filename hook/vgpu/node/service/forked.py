"""What a process forked without exec has to do first: it shares nothing with its parent but what it was given.

Belongs here: descriptors, signals, and the end with its parent. Does not belong here: the fork and the work. The parent
has one thread, so fork without exec is safe.
"""

from __future__ import annotations

import os
import signal

from vgpu.hook.linux import syscalls

STANDARD = 3  #: a forked process keeps the descriptors below this one: stdin, stdout and stderr


def without_output() -> None:
    """Close the caller's stdin, stdout and stderr: a process that is left behind must not keep its pipes open."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(STANDARD):
        os.dup2(null, fd)
    os.close(null)


def isolate(*kept: int) -> None:
    """Make the forked process that calls this independent of its parent, of whose descriptors it keeps only `kept`.

    It keeps stdin, stdout and stderr, too. It dies with its parent, and signals have their usual effect.
    """
    syscalls.die_with_parent()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    first = STANDARD
    for fd in sorted(kept):
        os.closerange(first, fd)
        first = fd + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))
