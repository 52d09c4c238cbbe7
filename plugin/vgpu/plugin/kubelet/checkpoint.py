"""kubelet's checkpoint of devices: the only place of kubelet that names grants, in the recorded answers to Allocate.

Belongs here: reading `kubelet_internal_checkpoint` beside kubelet's registration socket. The file is private to kubelet
and may be older than kubelet's own state. A grant that it names may be in use, or may have been. A grant that it has
not named for a while is not in use, because kubelet drops nothing before it has heard of all pods; neither is a claimed
one that it does not name, because kubelet writes it before it starts a container. A missing or malformed checkpoint
counts as naming every grant. The decision to delete belongs to vgpu.plugin.kubelet.grant_gc.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re

from vgpu.config import records
from vgpu.config.errors import VgpuError
from vgpu.config.paths import GRANT_ID_LENGTH

NAME = "kubelet_internal_checkpoint"
MAX_SIZE = 256 << 20  #: bytes
_ID = re.compile(rb"[0-9a-f]{%d}" % GRANT_ID_LENGTH)


class Checkpoint:
    """The checkpoint of the kubelet whose sockets lie in `directory`; read again when the file has changed."""

    def __init__(self, directory: str) -> None:
        self.path = f"{directory}/{NAME}"
        self._file: tuple[int, ...] = (-1,)
        self._names: set[str] | None = None

    def may_name(self, grant_id: str) -> bool:
        """False when kubelet's last checkpoint does not contain the grant."""
        self._read()
        return self._names is None or grant_id in self._names

    def file(self) -> tuple[int, ...]:
        """What tells one version of the file from the next; () without a file."""
        try:
            status = os.stat(self.path)
        except OSError:
            return ()
        return status.st_ino, status.st_mtime_ns, status.st_size

    def _read(self) -> None:
        file = self.file()
        if file == self._file:
            return
        self._file = file
        try:
            self._names = names_in(records.read_bounded(self.path, MAX_SIZE))
        except (VgpuError, OSError):
            self._names = None


def names_in(data: bytes) -> set[str]:
    """The ids of grants in the answers of a checkpoint; VgpuError when it has another form."""
    try:
        entries = json.loads(data)["Data"]["PodDeviceEntries"] or []
        answers = [base64.b64decode(entry["AllocResp"] or "", validate=True) for entry in entries]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, binascii.Error) as error:
        raise VgpuError(NAME, expected="entries with AllocResp", found=repr(error)) from error
    return {found.decode() for answer in answers for found in _ID.findall(answer)}
