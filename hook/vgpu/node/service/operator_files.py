"""The operator's own files that vgpuctl changes: a runtime's configuration, /etc/vgpu/config.yaml.

Belongs here: replacing one as a whole, and clearing up after a vgpuctl that was killed meanwhile. Not here: vgpu's own
records, which vgpud clears up (node/daemon/reaper.py); it has no business in the operator's directories.
"""

from __future__ import annotations

import os
import re
import stat

from vgpu.config import records

TEMPORARY = re.compile(r"\.(?P<name>.+)\.(?P<pid>[0-9]+)\.tmp")  # as records.write_bytes names them


def replace(path: str, data: bytes, mode: int = 0o644) -> None:
    """Replace `path` by `data`, by rename, with owner and mode as they were; a new file gets `mode`.

    What killed writers of the same file left beside it goes. Raises OSError; the file is as it was then.
    """
    try:
        status: os.stat_result | None = os.lstat(path)
    except FileNotFoundError:
        status = None
    remove_leftovers(path)
    records.write_bytes(path, data, stat.S_IMODE(status.st_mode) if status else mode)
    if status and (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
        os.chown(path, status.st_uid, status.st_gid)


def remove_leftovers(path: str) -> None:
    """Remove the temporary files of `path` whose writers are gone."""
    directory, base = os.path.split(path)
    for name in os.listdir(directory or "."):
        found = TEMPORARY.fullmatch(name)
        if not found or found["name"] != base or os.path.exists(f"/proc/{found['pid']}"):
            continue
        left = os.path.join(directory, name)
        if stat.S_ISREG(os.lstat(left).st_mode):
            os.unlink(left)
