"""Volumes in the way of the hook, with real runtimes: nothing changes on them, and the host has no more mounts."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import podman_bed
import pytest
from container_site import GIB, SHARE, SLEEP, Site, listing, mounts_with

pytestmark = pytest.mark.root


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """A directory of the host in which the container's user may not write."""
    path = tmp_path / "volume"
    for name in ("nvidia", "vgpu"):
        (path / name).mkdir(parents=True)
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
    return mounts_with(str(directory)) + mounts_with(" - tmpfs vgpu ")


def test_nothing_propagates_to_the_host_with_podman(site: Site, shared: Path, tmp_path: Path) -> None:
    before = host_mounts(tmp_path)
    podman = podman_bed.Podman(site.node)
    try:
        options = ("--detach", "--name=train", f"--volume={shared}:/data:rshared")
        done = podman.run(site.tree(), *SLEEP, options=options, **SHARE)
        assert done.returncode == 0, done.stderr
        assert host_mounts(tmp_path) == before, "while it runs"
        podman.call("rm", "--force", "--time=0", "train")
        assert host_mounts(tmp_path) == before
        done = podman.run(site.tree(), "true", options=("--rm", f"--volume={shared}:/usr/local:rshared"), **SHARE)
        assert done.returncode != 0
        assert "the volume that is mounted at /usr/local has shared propagation" in done.stderr
        assert host_mounts(tmp_path) == before
        assert site.node.held() == set()
    finally:
        podman.cleanup()


def test_a_private_volume_with_the_directories_is_mounted_over(site: Site, volume: Path) -> None:
    before = listing(volume)
    assert site.seen(site.share().bind(volume, "/usr/local", "ro"))["card0.total"] == str(2 * GIB)
    assert listing(volume) == before


def test_a_cache_on_a_volume_stays_and_the_libraries_are_found(site: Site, volume: Path) -> None:
    tree = site.tree()
    (tree / "etc/ld.so.cache").unlink(missing_ok=True)  # it may name the driver's libraries already
    shutil.move(tree / "etc", volume / "etc")
    (tree / "etc").symlink_to("/mnt/volume/etc")
    before = listing(volume)
    share = site.share(tree=tree).bind(volume, "/mnt/volume")
    share.config["process"]["user"] = {"uid": 65534, "gid": 65534}
    share.config["process"]["env"] = ["PATH=/usr/bin:/bin"]  # without LD_LIBRARY_PATH
    assert site.seen(share)["card0.total"] == str(2 * GIB)
    assert listing(volume) == before
    notes = [note for line in site.node.log() for note in line.get("notes", ())]
    assert "/etc/ld.so.cache: left unchanged: it is on the volume that is mounted at /mnt/volume" in notes
