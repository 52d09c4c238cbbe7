"""The signature of a file by which a process sees that somebody has replaced it.

Belongs here: what stat(2) says of it, for settings, records and sockets alike. Not here: reading the file.
"""

from __future__ import annotations

import os

from vgpu.config.errors import is_absent

Signature = tuple[int, ...]


def signature(path: str, known: Signature = ()) -> Signature:
    """It changes when the file at `path` is written or replaced; () where there is none.

    `known` is the last one, which stays when the file cannot be looked at.
    """
    try:
        status = os.stat(path)
    except OSError as error:
        return () if is_absent(error) else known
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
