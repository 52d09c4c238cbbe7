"""podman with the shipped hooks.d files: by runc and crun, on cgroup v1 and v2, rootful and rootless."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import nodes
import podman_bed
import pytest

pytestmark = pytest.mark.root

GIB = 1 << 30
Rootfs = Callable[..., Path]
#: crun 1.8.1, Debian 12's, cannot load a device program on v2 here; newer ones are in test_device_cgroup.
CELLS = {"runc-v1": ("runc", 1), "runc-v2": ("runc", 2), "crun-v1": ("crun", 1)}
NOBODY = 65534


@pytest.fixture
def podman(node: nodes.SimulatedNode, request: pytest.FixtureRequest) -> Iterator[podman_bed.Podman]:
    runtime, cgroup = getattr(request, "param", ("runc", 1))
    made = podman_bed.Podman(node, runtime, cgroup)
    yield made
    made.cleanup()


def pairs(text: str) -> dict[str, str]:
    """`key value` lines."""
    return dict(line.split(" ", 1) for line in text.splitlines() if " " in line)


def claims(node: nodes.SimulatedNode) -> dict[str, dict[str, object]]:
    directory = Path(node.settings.run_dir) / "containers"
    return {path.parent.name: json.loads(path.read_text()) for path in directory.glob("*/claim.json")}


def log(node: nodes.SimulatedNode) -> list[dict[str, object]]:
    path = Path(node.settings.run_dir) / "hook.log"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize("podman", CELLS.values(), ids=list(CELLS), indirect=True)
def test_share(podman: podman_bed.Podman, rootfs: Rootfs, node: nodes.SimulatedNode) -> None:
    tree = rootfs()
    done = podman.run(
        tree, "sh", "-c", "cudaprobe info; cudaprobe open /dev/nvidiactl /dev/nvidia-uvm", cores="30", memory="1Gi"
    )
    assert done.returncode == 0, done.stderr
    found = pairs(done.stdout)
    assert found["cards"] == "1"
    assert found["card0.total"] == found["card0.nvml_total"] == str(GIB)
    assert found["/dev/nvidiactl"] == found["/dev/nvidia-uvm"] == "No such device or address"
    assert claims(node) == {}
    assert [record["stage"] for record in log(node)] == ["createRuntime", "poststop"]


@pytest.mark.parametrize("podman", CELLS.values(), ids=list(CELLS), indirect=True)
def test_refusal_as_its_user_sees_it(podman: podman_bed.Podman, rootfs: Rootfs, node: nodes.SimulatedNode) -> None:
    """runc's error has the hook's line. crun's has only the exit status, and the line is in hook.log."""
    done = podman.run(rootfs(), "true", cores="300", memory="1Gi")
    assert done.returncode == 126
    line = str(log(node)[-1]["error"])
    assert "2 cards" in line
    if podman.runtime == "crun":
        assert f"executing hook `{node.hook}` (exit code: 1)" in done.stderr
    else:
        assert f"vgpu-hook: {line}" in done.stderr
    assert claims(node) == {}


def test_a_killed_container_is_released_and_may_start_again(
    podman: podman_bed.Podman, rootfs: Rootfs, node: nodes.SimulatedNode
) -> None:
    done = podman.run(rootfs(), "sleep", "60", options=("--detach", "--name=train"), cores="80", memory="1Gi")
    assert done.returncode == 0, done.stderr
    container = done.stdout.strip()
    assert set(claims(node)) == {container}
    for command in (("kill", "train"), ("start", "train"), ("kill", "train")):
        assert podman.call(*command).returncode == 0
        end = time.monotonic() + 60
        while bool(claims(node)) != (command[0] == "start"):
            assert time.monotonic() < end, f"{command[0]}: claims {set(claims(node))}"
            time.sleep(0.05)


def test_conditions(podman: podman_bed.Podman, rootfs: Rootfs, tmp_path: Path) -> None:
    """podman runs the hook only for vgpu's annotations. A stand-in for the hook records the containers."""
    stand_in, noted = tmp_path / "stand-in", tmp_path / "noted"
    stand_in.write_text(f"#!/bin/sh\ncat > /dev/null\necho $2 $3 $4 >> {noted}\n")
    stand_in.chmod(0o755)
    for path in podman.hooks.glob("*.json"):
        path.write_text(path.read_text().replace(str(podman.node.hook), str(stand_in)))
    tree = rootfs()
    strangers = ("--annotation=other.io/cores=30", "--annotation=xvgpu.io/cores=1", "--annotation=vgpuXio/cores=1")
    plain = podman.run(tree, "true", options=("--rm", "--env=VGPU_GRANT_CORES=x", *strangers))
    assert plain.returncode == 0, plain.stderr
    assert not noted.exists()
    assert podman.run(tree, "true", cores="").returncode == 0
    assert [line.split()[-1] for line in noted.read_text().splitlines()] == ["createRuntime", "poststop"]


def test_a_pod_of_podmans_is_not_kubernetes(
    podman: podman_bed.Podman, rootfs: Rootfs, node: nodes.SimulatedNode
) -> None:
    """podman marks a pod's containers with CRI-O's annotations, but the host's root started them."""
    assert podman.call("pod", "create", "--infra=false", "--name=p", f"--cgroup-parent={podman.cgroup}").returncode == 0
    options = ("--rm", "--pod=p")
    done = podman.run(rootfs(), "cudaprobe", "info", options=options, cores="30", memory="1Gi")
    assert done.returncode == 0, done.stderr
    assert pairs(done.stdout)["card0.total"] == str(GIB)


def test_vgpu_is_removed(podman: podman_bed.Podman, rootfs: Rootfs, node: nodes.SimulatedNode) -> None:
    """When vgpu is removed and the files are left, podman ignores them: containers start and get no GPU."""
    for path in podman.hooks.glob("*.json"):
        path.write_text(path.read_text().replace(str(node.hook), "/nowhere/vgpu-hook"))
    tree = rootfs()
    plain = podman.run(tree, "ls", "/dev", options=("--rm", "--env=NVIDIA_VISIBLE_DEVICES=all"))
    assert plain.returncode == 0, plain.stderr
    assert "nvidia" not in plain.stdout
    asking = podman.run(tree, "ls", "/dev", cores="30", memory="1Gi")
    assert asking.returncode == 0, asking.stderr
    assert "nvidia" not in asking.stdout


def test_image_variables_give_nothing(podman: podman_bed.Podman, rootfs: Rootfs) -> None:
    """An image may contain VGPU_GRANT_*. Outside Kubernetes it has no effect, even with an annotation of vgpu."""
    options = ("--rm", "--env=VGPU_GRANT_CORES=" + "0" * 32, "--annotation=vgpu.io/use-gpuuuid=GPU-x")
    done = podman.run(rootfs(), "ls", "/dev", options=options)
    assert done.returncode == 0, done.stderr
    assert "nvidia" not in done.stdout


def test_rootless_is_refused_in_one_line(podman: podman_bed.Podman, rootfs: Rootfs, node: nodes.SimulatedNode) -> None:
    done = podman_bed.rootless(rootfs(), podman.hooks, NOBODY, cores="30", memory="1Gi")
    assert done.returncode == 126
    assert (
        "stderr: vgpu-hook: authorization: rootless runtime: expected the host's root, found uid 0 of a user"
        in done.stderr
    )
    assert done.stderr.count("vgpu-hook: ") == 1
    assert log(node) == []
