"""Volumes in the way of the hook, with real runtimes: nothing changes on them, and the host has no more mounts."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import bundles
import nodes
import podman_bed
import pytest

pytestmark = pytest.mark.root

GIB = 1 << 30
Rootfs = Callable[..., Path]
MakeBundle = Callable[..., bundles.Bundle]


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """A directory of the host in which the container's user may not write."""
    path = tmp_path / "volume"
    (path / "nvidia").mkdir(parents=True)
    (path / "vgpu").mkdir()
    return path


@pytest.fixture
def shared(volume: Path) -> Iterator[Path]:
    """The same as a mount with shared propagation, as each mount of a host with systemd is."""
    subprocess.run(["mount", "--bind", volume, volume], check=True)
    subprocess.run(["mount", "--make-shared", volume], check=True)
    yield volume
    subprocess.run(["umount", "--recursive", volume], check=True)


def host_mounts(directory: Path) -> list[str]:
    """The host's mounts below `directory`, and all of vgpu."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if str(directory) in line or " - tmpfs vgpu " in line]


def listing(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in directory.rglob("*")}


def log(node: nodes.SimulatedNode) -> str:
    return (Path(node.settings.run_dir) / "hook.log").read_text()


def claims(node: nodes.SimulatedNode) -> list[Path]:
    return list((Path(node.settings.run_dir) / "containers").iterdir())


def test_nothing_propagates_to_the_host_with_runc(
    runc1: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle, shared: Path, tmp_path: Path
) -> None:
    before = host_mounts(tmp_path)
    share = bundle(rootfs(), cores="30", memory="2Gi").bind(shared, "/data", "rshared").command("sleep", "60")
    share.config["linux"]["rootfsPropagation"] = "rshared"
    container, done = runc1.create(share)
    assert done.returncode == 0, done.stdout + done.stderr
    assert host_mounts(tmp_path) == before, "while it runs"
    runc1.delete(container)
    assert host_mounts(tmp_path) == before


def test_a_shared_volume_in_the_way_is_refused_with_runc(
    runc1: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle, shared: Path, tmp_path: Path, node: nodes.SimulatedNode
) -> None:
    before, content = host_mounts(tmp_path), listing(shared)
    share = bundle(rootfs(), cores="30", memory="2Gi").bind(shared, "/usr/local", "rshared").command("true")
    share.config["linux"]["rootfsPropagation"] = "rshared"
    done = runc1.run(share)
    assert done.returncode != 0
    assert "the volume that is mounted at /usr/local has shared propagation" in done.stderr
    assert host_mounts(tmp_path) == before
    assert listing(shared) == content
    assert claims(node) == []


@pytest.fixture
def podman(node: nodes.SimulatedNode) -> Iterator[podman_bed.Podman]:
    made = podman_bed.Podman(node)
    yield made
    made.cleanup()


def test_nothing_propagates_to_the_host_with_podman(
    podman: podman_bed.Podman, rootfs: Rootfs, shared: Path, tmp_path: Path
) -> None:
    before = host_mounts(tmp_path)
    options = ("--detach", "--name=train", f"--volume={shared}:/data:rshared")
    done = podman.run(rootfs(), "sleep", "60", options=options, cores="30", memory="1Gi")
    assert done.returncode == 0, done.stderr
    assert host_mounts(tmp_path) == before, "while it runs"
    podman.call("rm", "--force", "--time=0", "train")
    assert host_mounts(tmp_path) == before
    options = ("--rm", f"--volume={shared}:/usr/local:rshared")
    done = podman.run(rootfs(), "true", options=options, cores="30", memory="1Gi")
    assert done.returncode != 0
    assert "has shared propagation" in done.stderr
    assert host_mounts(tmp_path) == before


def test_a_private_volume_with_the_directories_is_mounted_over(
    runc1: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle, volume: Path
) -> None:
    content = listing(volume)
    share = bundle(rootfs(), cores="30", memory="2Gi").bind(volume, "/usr/local", "ro").command("cudaprobe", "info")
    done = runc1.run(share)
    assert done.returncode == 0, done.stderr
    assert f"card0.total {2 * GIB}" in done.stdout
    assert listing(volume) == content


@pytest.mark.parametrize("place", ["usr/local", "usr/bin"])
def test_nothing_is_made_where_the_user_may_not_write(
    runc1: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle, volume: Path, node: nodes.SimulatedNode, place: str
) -> None:
    """The image has a link into a volume where the container's user, nobody, gets EACCES."""
    shutil.rmtree(volume / "vgpu")
    tree = rootfs()
    shutil.rmtree(tree / place, ignore_errors=True)
    (tree / place).symlink_to("/mnt/volume")
    content = listing(volume)
    share = bundle(tree, cores="30", memory="2Gi").bind(volume, "/mnt/volume").command("true")
    share.config["process"]["user"] = {"uid": 65534, "gid": 65534}
    done = runc1.run(share)
    assert done.returncode != 0
    assert "would be made on the volume that is mounted at /mnt/volume" in done.stderr
    assert listing(volume) == content
    assert claims(node) == []


def test_a_cache_on_a_volume_stays_and_the_libraries_are_found(
    runc1: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle, volume: Path, node: nodes.SimulatedNode
) -> None:
    tree = rootfs()
    (tree / "etc/ld.so.cache").unlink(missing_ok=True)  # it may name the driver's libraries already
    shutil.move(tree / "etc", volume / "etc")
    (tree / "etc").symlink_to("/mnt/volume/etc")
    content = listing(volume)
    share = bundle(tree, cores="30", memory="2Gi").bind(volume, "/mnt/volume").command("cudaprobe", "info")
    share.config["process"]["user"] = {"uid": 65534, "gid": 65534}
    share.config["process"]["env"] = ["PATH=/usr/bin:/bin"]  # without LD_LIBRARY_PATH
    done = runc1.run(share)
    assert done.returncode == 0, done.stderr
    assert f"card0.total {2 * GIB}" in done.stdout
    assert listing(volume) == content
    notes = [note for line in log(node).splitlines() for note in json.loads(line).get("notes", ())]
    assert "/etc/ld.so.cache: left unchanged: it is on the volume that is mounted at /mnt/volume" in notes
