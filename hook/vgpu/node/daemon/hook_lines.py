"""Follows hook.log: the lines that hooks have added since the last look, through the file's renaming.

Belongs here: the place in the file up to which it was read, which may come from an earlier vgpud. Not here: what a line
means (vgpu.node.daemon.hook_counts, vgpu.node.daemon.held_time).
"""

from __future__ import annotations

import contextlib
import os

from vgpu.config import paths

MAX_READ = 4 << 20  #: bytes in one look; a hook's line has some hundred

Place = tuple[int, int]  #: the file's inode, and the offset up to which its whole lines were read


class HookLines:
    """`place` is where to go on; without it, at the end: earlier lines are none of these."""

    def __init__(self, run_dir: str, place: Place | None = None) -> None:
        self.path = paths.hook_log(run_dir)
        self._inode, self._offset = place or self._end()

    @property
    def place(self) -> Place:
        return self._inode, self._offset

    def new(self) -> list[bytes]:
        """The whole lines since the last call, the oldest first."""
        inode, size = self._end()
        if inode == self._inode:
            return self._read(self.path) if size > self._offset else []
        found = []
        if self._inode:  # hooks have renamed the file meanwhile, once or more often
            before = _inode_of(self.path + ".1")
            if before != self._inode:
                self._inode, self._offset = before, 0
            found = self._read(self.path + ".1") if before else []
        self._inode, self._offset = inode, 0
        return found + (self._read(self.path) if inode else [])

    def _end(self) -> Place:
        try:
            status = os.stat(self.path)
        except OSError:
            return 0, 0
        return status.st_ino, status.st_size

    def _read(self, path: str) -> list[bytes]:
        with contextlib.suppress(OSError), open(path, "rb") as file:
            if os.fstat(file.fileno()).st_ino == self._inode:
                data = os.pread(file.fileno(), MAX_READ, self._offset)
                *lines, rest = data.split(b"\n")
                self._offset += len(data) - (0 if len(data) == MAX_READ and not lines else len(rest))
                return lines
        return []


def _inode_of(path: str) -> int:
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0
