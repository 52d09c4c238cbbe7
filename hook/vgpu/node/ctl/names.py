"""The names by which people know containers, beside the ids by which runtimes know them.

Belongs here: a pod's name from the claim, and the names that podman and Docker keep in their own files. Does not belong
here: which container a user means (vgpu.node.ctl.set). A file that is missing or of another form gives no name: names
are for people, and no decision but that of `vgpuctl set` depends on one.
"""

from __future__ import annotations

import json
import os

from vgpu.config import records
from vgpu.config.claims import Claim
from vgpu.config.errors import VgpuError

MAX_FILE = 16 << 20
PODMAN = ("containers.json", "volatile-containers.json")  #: of containers/storage; the latter for podman run --rm
DOCKER_NAMESPACE = "moby"


class Names:
    """Names of containers. Each file is read once."""

    def __init__(self) -> None:
        self.files: dict[str, object] = {}

    def of(self, claim: Claim) -> str:
        """`namespace/pod/container` of a pod's container, podman's or Docker's name of another, or ""."""
        return claim.name or self._by_podman(claim) or self._by_docker(claim)

    def _by_podman(self, claim: Claim) -> str:
        """The bundle is <graphroot>/<driver>-containers/<id>/userdata, beside containers/storage's lists."""
        userdata, container = os.path.basename(claim.bundle), os.path.dirname(claim.bundle)
        if userdata != "userdata" or os.path.basename(container) != claim.container:
            return ""
        for name in PODMAN:
            entries = self._read(f"{os.path.dirname(container)}/{name}")
            for entry in entries if isinstance(entries, list) else []:
                if isinstance(entry, dict) and entry.get("id") == claim.container:
                    found = entry.get("names")
                    return _text(found[0]) if isinstance(found, list) and found else ""
        return ""

    def _by_docker(self, claim: Claim) -> str:
        """The bundle is <containerd's state>/<...>/moby/<id>. Docker mounts files from <its data>/containers/<id>."""
        if os.path.basename(os.path.dirname(claim.bundle)) != DOCKER_NAMESPACE:
            return ""
        bundle = self._read(f"{claim.bundle}/config.json")
        mounts = bundle.get("mounts") if isinstance(bundle, dict) else None
        for mount in mounts if isinstance(mounts, list) else []:
            directory = os.path.dirname(_text(mount.get("source"))) if isinstance(mount, dict) else ""
            if directory.endswith(f"/containers/{claim.container}"):
                found = self._read(f"{directory}/config.v2.json")
                return _text(found.get("Name")).lstrip("/") if isinstance(found, dict) else ""
        return ""

    def _read(self, path: str) -> object:
        if path not in self.files:
            try:
                self.files[path] = json.loads(records.read_bounded(path, MAX_FILE))
            except (OSError, ValueError, RecursionError, VgpuError):
                self.files[path] = None
        return self.files[path]


def _text(value: object) -> str:
    return value if isinstance(value, str) and value.isprintable() else ""
