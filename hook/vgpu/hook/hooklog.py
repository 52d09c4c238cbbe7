"""The hook's own log: one JSON line per start and stop that concerned a card, in `<run>/hook.log`.

Why it exists: crun shows its user a hook's exit status only, and containerd keeps a line of it at most. Bounded: past
MAX_SIZE the file is renamed to hook.log.1. Writing never fails a container: what cannot be logged was still reported
on stderr.
"""

from __future__ import annotations

import os

from vgpu.config import paths
from vgpu.config.records import encode

MAX_SIZE = 1 << 20


def write(run_dir: str, record: dict[str, object]) -> None:
    """Append `record` as one line; a single write(2) to an O_APPEND file, so that lines of hooks at once stay whole."""
    path = paths.hook_log(run_dir)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.write(fd, (encode(record) + "\n").encode("ascii"))
            status = os.fstat(fd)
            if status.st_size > MAX_SIZE and status.st_ino == os.stat(path).st_ino:  # else another hook was faster
                os.rename(path, path + ".1")
        finally:
            os.close(fd)
    except OSError:
        return
