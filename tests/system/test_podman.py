"""What only podman does with the shipped hooks.d files: conditions, its own pods, an image's words, rootless users.

What every runtime must do with a container is in test_runtime_contract.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import podman_bed
import pytest
from container_site import GIB, Site, kinds_of_host_files, of_a_user_namespace, pairs

pytestmark = pytest.mark.root

NOBODY = 65534


@pytest.fixture
def podman(site: Site) -> Iterator[podman_bed.Podman]:
    made = podman_bed.Podman(site.node)
    yield made
    made.cleanup()


def test_conditions(site: Site, podman: podman_bed.Podman, tmp_path: Path) -> None:
    """podman runs the hook only for vgpu's annotations. A stand-in for the hook records the containers."""
    stand_in, noted = tmp_path / "stand-in", tmp_path / "noted"
    stand_in.write_text(f"#!/bin/sh\ncat > /dev/null\necho $2 $3 $4 >> {noted}\n")
    stand_in.chmod(0o755)
    for path in podman.hooks.glob("*.json"):
        path.write_text(path.read_text().replace(str(podman.node.hook), str(stand_in)))
    tree = site.tree()
    strangers = ("--annotation=other.io/cores=30", "--annotation=xvgpu.io/cores=1", "--annotation=vgpuXio/cores=1")
    plain = podman.run(tree, "true", options=("--rm", "--env=VGPU_GRANT_CORES=x", *strangers))
    assert plain.returncode == 0, plain.stderr
    assert not noted.exists()
    assert podman.run(tree, "true", cores="").returncode == 0
    assert [line.split()[-1] for line in noted.read_text().splitlines()] == ["createRuntime", "poststop"]


def test_a_pod_of_podmans_is_not_kubernetes(site: Site, podman: podman_bed.Podman) -> None:
    """podman marks a pod's containers with CRI-O's annotations, but the host's root started them."""
    assert podman.call("pod", "create", "--infra=false", "--name=p", f"--cgroup-parent={podman.cgroup}").returncode == 0
    options = ("--rm", "--pod=p")
    done = podman.run(site.tree(), "cudaprobe", "info", options=options, cores="30", memory="1Gi")
    assert done.returncode == 0, done.stderr
    assert pairs(done.stdout)["card0.total"] == str(GIB)


def test_a_user_namespace(site: Site, podman: podman_bed.Podman) -> None:
    tree = of_a_user_namespace(site.plain_bundle()).rootfs
    options = ("--rm", "--uidmap=0:100000:65536", "--gidmap=0:100000:65536")
    look = ("sh", "-c", "cudaprobe info; cat /proc/self/mountinfo")
    done = podman.run(tree, *look, options=options, cores="30", memory="1Gi")
    assert done.returncode == 0, done.stderr
    assert pairs(done.stdout)["card0.total"] == str(GIB)
    assert set(kinds_of_host_files(done.stdout).values()) == {"overlay"}


def test_vgpu_is_removed(site: Site, podman: podman_bed.Podman) -> None:
    """When vgpu is removed and the files are left, podman ignores them: containers start and get no GPU."""
    for path in podman.hooks.glob("*.json"):
        path.write_text(path.read_text().replace(str(site.node.hook), "/nowhere/vgpu-hook"))
    tree = site.tree()
    plain = podman.run(tree, "ls", "/dev", options=("--rm", "--env=NVIDIA_VISIBLE_DEVICES=all"))
    assert plain.returncode == 0, plain.stderr
    assert "nvidia" not in plain.stdout
    asking = podman.run(tree, "ls", "/dev", cores="30", memory="1Gi")
    assert asking.returncode == 0, asking.stderr
    assert "nvidia" not in asking.stdout


def test_rootless_is_refused_in_one_line(site: Site, podman: podman_bed.Podman) -> None:
    done = podman_bed.rootless(site.tree(), podman.hooks, NOBODY, cores="30", memory="1Gi")
    assert done.returncode == 126
    assert (
        "stderr: vgpu-hook: authorization: rootless runtime: expected the host's root, found uid 0 of a user"
        in done.stderr
    )
    assert done.stderr.count("vgpu-hook: ") == 1
    assert site.node.log() == []
