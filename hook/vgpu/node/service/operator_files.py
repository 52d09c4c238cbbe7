"""Files in directories that are not vgpu's: a runtime's configuration, /etc/vgpu/config.yaml, the driver's nodes.

Belongs here: replacing one as a whole, and clearing up after a vgpuctl that was killed meanwhile. Not here: vgpu's own
records, which vgpud clears up (node/daemon/reaper.py); it has no business in the operator's directories.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat

from vgpu.config import records

TEMPORARY = re.compile(r"\.(?P<name>.+)\.(?P<pid>[0-9]+)\.tmp")  # as records.write_bytes names them


def replace(path: str, data: bytes, mode: int = 0o644) -> None:
    """Replace `path` by `data`, by rename, with owner and mode as they were; a new file gets `mode`.

    What killed writers of the same file left beside it goes. Raises OSError; the file is as it was then.
    """
    remove_leftovers(path)
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        records.write_bytes(path, data, mode)
    else:
        kept = stat.S_IMODE(status.st_mode)
        records.write_bytes(path, data, kept, group=status.st_gid, owner=status.st_uid)


def temporary(path: str) -> str:
    """The name under which this process makes `path`, before it renames it."""
    directory, base = os.path.split(path)
    return os.path.join(directory, f".{base}.{os.getpid()}.tmp")


def remove_leftovers(path: str) -> None:
    """Remove the temporary files of `path` whose writers are gone."""
    directory, base = os.path.split(path)
    for name in os.listdir(directory or "."):
        found = TEMPORARY.fullmatch(name)
        if not found or found["name"] != base or os.path.exists(f"/proc/{found['pid']}"):
            continue
        left = os.path.join(directory, name)
        with contextlib.suppress(FileNotFoundError):  # another vgpuctl was first
            if not stat.S_ISDIR(os.lstat(left).st_mode):
                os.unlink(left)
