"""An OCI image of one layer, made from a root file system as a tar file for `ctr images import`. No registry."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import subprocess
import tarfile
from pathlib import Path

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
ENVIRONMENT = ["PATH=/usr/local/nvidia/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LD_LIBRARY_PATH=/usr/local/nvidia/lib64"]
MEDIA = "application/vnd.oci.image"


def write(tree: Path, archive: Path, name: str, command: list[str], annotations: dict[str, str] | None = None) -> Path:
    """Write image `name` of `tree`, which runs `command`, to `archive`. The manifest has `annotations`."""
    layer = subprocess.run(
        ["tar", "-C", str(tree), "--numeric-owner", "-c", "."], capture_output=True, check=True
    ).stdout
    system = {"architecture": ARCHITECTURES[platform.machine()], "os": "linux"}
    config = _json(
        {
            **system,
            "config": {"Cmd": command, "Env": ENVIRONMENT},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": f"{MEDIA}.manifest.v1+json",
            "config": _descriptor("config.v1+json", config),
            "layers": [_descriptor("layer.v1.tar", layer)],
            "annotations": annotations or {},
        }
    )
    entry = {**_descriptor("manifest.v1+json", manifest), "platform": system}
    entry["annotations"] = {"io.containerd.image.name": name}
    with tarfile.open(archive, "w") as stream:
        _add(stream, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _add(stream, "index.json", _json({"schemaVersion": 2, "manifests": [entry]}))
        for blob in (config, manifest, layer):
            _add(stream, "blobs/" + _digest(blob).replace(":", "/"), blob)
    return archive


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _descriptor(kind: str, data: bytes) -> dict[str, object]:
    return {"mediaType": f"{MEDIA}.{kind}", "digest": _digest(data), "size": len(data)}


def _add(stream: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    stream.addfile(entry, io.BytesIO(data))
