"""The names by which people know containers, beside the ids by which runtimes know them.

Belongs here: a pod's name from the claim, the names that podman and Docker keep in their own files, and the labels of
metrics, of which each container has other ones. Does not belong here: which container a user means (vgpu.node.ctl.set).
A file that is missing or of another form gives no name: names
are for people, and no decision but that of `vgpuctl set` depends on one.
"""

from __future__ import annotations

import json
import os
from collections import Counter

from vgpu.config import pods, records
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


class Labels:
    """(namespace, pod, container) of each container, as metrics and vgpud's record have them. They stay while it lives.

    Outside Kubernetes the first two are "", and the third is what podman or Docker calls it, else its id.
    """

    def __init__(self, run_dir: str) -> None:
        self.run_dir = run_dir
        self._known: dict[str, tuple[str, str, str]] = {}

    def of(self, claims: list[Claim]) -> dict[str, tuple[str, str, str]]:
        """The labels of all containers of the node, by id."""
        names = Names()
        found = {claim.container: self._known.get(claim.container) or self._of(claim, names) for claim in claims}
        self._known = {
            claim.container: at for claim in claims for at in [found[claim.container]] if at[0] or claim.holder is None
        }  # else the pod's record may still come
        number = Counter(found.values())
        twice = {claim.container for claim in claims if claim.holder is None and number[found[claim.container]] > 1}
        return {container: ("", "", container) if container in twice else one for container, one in found.items()}

    def of_line(self, name: str, pod_uid: str, container: str) -> tuple[str, str, str]:
        """Those of a container that has ended, from the stop hook's line."""
        parts = name.split("/")
        if len(parts) == 3 and all(parts):
            return parts[0], parts[1], parts[2]
        return self._known.get(container) or ("", pod_uid, container)

    def _of(self, claim: Claim, names: Names) -> tuple[str, str, str]:
        if claim.holder is None:
            return "", "", names.of(claim) or claim.container
        parts = claim.name.split("/")
        if len(parts) == 3 and all(parts):
            return parts[0], parts[1], parts[2]
        try:
            pod = pods.read(self.run_dir, claim.holder.pod_uid)
        except (OSError, VgpuError):
            return "", claim.holder.pod_uid, claim.holder.container
        return pod.namespace, pod.name, claim.holder.container


def _text(value: object) -> str:
    return value if isinstance(value, str) and value.isprintable() else ""
