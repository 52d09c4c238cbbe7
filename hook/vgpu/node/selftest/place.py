"""The one directory with all that a run of the self-test makes, and its lock.

Belongs here: taking it, and finding what a killed run left. Does not belong here: what has to be ended before the
directory can go, which each way knows. The kernel frees the lock when its holder dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from vgpu.config.errors import VgpuError
from vgpu.node.selftest.program import NotJudged

LOCK = "vgpu-selftest.lock"  #: a directory without it is not one of a run, and stays


@contextmanager
def taken(paths: Iterable[str], end: Callable[[str], None]) -> Iterator[str]:
    """The first of `paths` that can be taken. `end` ends what a killed run has left in one; first of all, in all."""
    places = list(paths)
    for path in filter(os.path.isdir, places):
        with contextlib.suppress(OSError):
            fd = _take(path)
            if fd >= 0:
                _remove(path, end, fd)
    refused: VgpuError = NotJudged("self-test", expected="a free directory", found="all of them in use")
    for path in places:
        try:
            fd = _take(path)
        except OSError as error:
            refused = NotJudged(os.path.dirname(path), expected="a directory to write in", found=error.strerror)
            continue
        if fd < 0:
            continue
        try:
            yield path
        finally:
            _remove(path, end, fd)
        return
    raise refused


def _remove(path: str, end: Callable[[str], None], fd: int) -> None:
    try:
        end(path)
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(fd)


def _take(path: str) -> int:
    """The lock of the directory, which is made; -1 if another run has it, or it is no run's of this user."""
    while True:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            os.mkdir(path, 0o755)
            flags |= os.O_CREAT
        except FileExistsError:
            found = os.lstat(path)
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                return -1
        try:
            fd = os.open(f"{path}/{LOCK}", flags, 0o600)
        except FileNotFoundError:
            if not _is_removed(path):
                return -1
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return -1
        if os.path.exists(f"{path}/{LOCK}") and os.path.samestat(os.fstat(fd), os.stat(f"{path}/{LOCK}")):
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)  # for people
            return fd
        os.close(fd)  # whoever had it before has just removed the directory


def _is_removed(path: str) -> bool:
    """Whether a directory without a lock is gone: it was empty, like that of a run which was killed as it began."""
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
