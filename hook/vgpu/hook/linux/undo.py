"""Steps that undo a change in a directory of a container: as values, and as a journal for another process.

Belongs here: the steps (`rmdir`, `unlink`, `symlink`, `restore`), what they need, and how a file or a link takes the
place of another. Not here: which changes are made, and in which directories (rootfs).
"""

from __future__ import annotations

import os
import stat

FAILED = "failed"  #: in the journal: the change of the step before this was not made
_FIELDS = 5


class Old:
    """What a change replaced: a link's target, or a file's content and what it was `like`."""

    __slots__ = ("content", "like")

    def __init__(self, content: bytes = b"", like: tuple[int, ...] = ()) -> None:
        self.content = content
        self.like = like


NOTHING = Old()


def take_back(step: str, parent: int, name: str, old: Old) -> None:
    """Undo one step in the directory `parent`. What nobody made is no error."""
    if step == "restore":
        replace_by_file(parent, name, old.content, old.like)
    elif step == "symlink":
        replace_by_link(parent, name, old.content)
    else:
        try:
            (os.rmdir if step == "rmdir" else os.unlink)(name, dir_fd=parent)
        except FileNotFoundError:
            return


def temporary(name: str, pid: int = 0) -> str:
    """The name of a file that process `pid` (0: this one) is to rename to `name`."""
    return f".vgpu.{pid or os.getpid()}.{name}"


def replace_by_link(parent: int, name: str, target: bytes) -> None:
    """Put a symlink in the place of `name`."""
    made = temporary(name)
    os.symlink(target, os.fsencode(made), dir_fd=parent)
    try:
        os.rename(made, name, src_dir_fd=parent, dst_dir_fd=parent)
    except OSError:
        os.unlink(made, dir_fd=parent)
        raise


def replace_by_file(parent: int, name: str, data: bytes, as_before: tuple[int, ...] = ()) -> None:
    """Put a file of `data` in the place of `name`, with the owner, mode and times of `like` if these are given."""
    made = temporary(name)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(made, flags, 0o644, dir_fd=parent)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        if as_before:
            uid, gid, mode, accessed, modified = as_before
            os.fchown(fd, uid, gid)
            os.fchmod(fd, mode)
            os.utime(fd, ns=(accessed, modified))
        os.rename(made, name, src_dir_fd=parent, dst_dir_fd=parent)
    except OSError:
        os.unlink(made, dir_fd=parent)
        raise
    finally:
        os.close(fd)


def like(status: os.stat_result) -> tuple[int, ...]:
    """Owner, mode and times."""
    return status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode), status.st_atime_ns, status.st_mtime_ns


# The journal: records of five fields, each ended by a NUL, as they fit in no name


def write(journal: int, step: str, path: str, name: str, old: Old) -> None:
    """Append a step to the pipe `journal`, which does not block. The content of files is too long for it."""
    content = old.content if step == "symlink" else b""
    fields = (step.encode(), os.fsencode(path), os.fsencode(name), content, " ".join(map(str, old.like)).encode())
    try:
        os.write(journal, b"".join(field + b"\0" for field in fields))
    except (BlockingIOError, BrokenPipeError):
        return  # it is full, or nobody will read it


def read(journal: bytes) -> list[tuple[str, str, str, Old]]:
    """The steps, in their order, without those whose change failed."""
    fields = journal.split(b"\0")
    steps: list[tuple[str, str, str, Old]] = []
    for at in range(0, len(fields) - _FIELDS, _FIELDS):
        step, path, name, content, status = fields[at : at + _FIELDS]
        if step.decode() == FAILED:
            steps.pop()
            continue
        old = Old(content, tuple(map(int, status.split())))
        steps.append((step.decode(), os.fsdecode(path), os.fsdecode(name), old))
    return steps
