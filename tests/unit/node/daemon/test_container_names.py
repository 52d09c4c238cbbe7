"""Names of containers, from trees of files like those of podman and Docker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vgpu.config.claims import Claim
from vgpu.node.daemon.container_names import Names

ID = "ab" * 32


def claim(bundle: str, name: str = "", container: str = ID) -> Claim:
    return Claim(container, 1, 1, [], False, None, [], bundle, 1.0, name)


def write(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def test_a_pods_name_comes_from_the_claim() -> None:
    assert Names().of(claim("/b", "lab/train-0/main")) == "lab/train-0/main"


@pytest.mark.parametrize("file", ["containers.json", "volatile-containers.json"])
def test_podman(tmp_path: Path, file: str) -> None:
    directory = tmp_path / "storage/vfs-containers"
    write(directory / file, [{"id": "c" * 64, "names": ["other"]}, {"id": ID, "names": ["train"]}])
    assert Names().of(claim(f"{directory}/{ID}/userdata")) == "train"
    assert Names().of(claim(f"{directory}/{'d' * 64}/userdata")) == ""


def test_docker(tmp_path: Path) -> None:
    """Its data may lie anywhere: `dockerd --data-root` is in no file."""
    bundle, data = tmp_path / f"state/moby/{ID}", tmp_path / f"srv/anywhere/containers/{ID}"
    write(data / "config.v2.json", {"Name": "/train"})
    assert Names().of(claim(str(bundle))) == ""
    mounts = [{"destination": "/proc", "source": "proc"}, 3, {"source": f"{data}/resolv.conf"}]
    write(bundle / "config.json", {"mounts": mounts})
    assert Names().of(claim(str(bundle))) == "train"


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", "[1]", json.dumps([{"id": ID}]), json.dumps([{"id": ID, "names": [3]}])]
)
def test_a_damaged_file_gives_no_name(tmp_path: Path, content: str) -> None:
    directory = tmp_path / "storage/overlay-containers"
    directory.mkdir(parents=True)
    (directory / "containers.json").write_text(content)
    assert Names().of(claim(f"{directory}/{ID}/userdata")) == ""


def test_other_runtimes_give_ids_only() -> None:
    assert Names().of(claim("/run/containerd/io.containerd.runtime.v2.task/default/train")) == ""
