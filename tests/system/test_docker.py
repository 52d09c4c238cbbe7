"""Docker with the shim as a runtime: standalone, and under kubelet, where only the cgroup path identifies the pod."""

from __future__ import annotations

import json
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import docker_bed
import nodes
import pytest

pytestmark = pytest.mark.root

GIB = 1 << 30
STANDALONE = ("--rm", "--annotation=vgpu.io/cores=30", "--annotation=vgpu.io/memory=1Gi")


@pytest.fixture(scope="module")
def daemon(base_trees: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[docker_bed.Docker]:
    node = nodes.SimulatedNode(tmp_path_factory.mktemp("docker") / "node", "a100x2")
    node.take_inventory()
    made = docker_bed.Docker(node).start(base_trees["debian"])
    yield made
    made.stop()


@pytest.fixture
def docker(daemon: docker_bed.Docker) -> Iterator[docker_bed.Docker]:
    """The daemon, and an empty node after each test."""
    yield daemon
    left = claims(daemon.node)
    shutil.rmtree(Path(daemon.node.settings.state_dir) / "grants", ignore_errors=True)
    assert left == set()


def claims(node: nodes.SimulatedNode) -> set[str]:
    return {path.parent.name for path in (Path(node.settings.run_dir) / "containers").glob("*/claim.json")}


def pairs(text: str) -> dict[str, str]:
    """`key value` lines."""
    return dict(line.split(" ", 1) for line in text.splitlines() if " " in line)


def test_standalone_share(docker: docker_bed.Docker) -> None:
    done = docker.run("sh", "-c", "cudaprobe info; cudaprobe open /dev/nvidiactl", options=STANDALONE)
    assert done.returncode == 0, done.stderr
    found = pairs(done.stdout)
    assert found["card0.total"] == found["card0.nvml_total"] == str(GIB)
    assert found["/dev/nvidiactl"] == "No such device or address"


def test_refusal_as_its_user_sees_it(docker: docker_bed.Docker) -> None:
    done = docker.run("true", options=("--rm", "--annotation=vgpu.io/cores=300"))
    assert done.returncode == 125
    assert "stderr: vgpu-hook: allocation: no cards for 3 cards" in done.stderr


def test_without_a_share_no_gpu(docker: docker_bed.Docker) -> None:
    done = docker.run("ls", "/dev", options=("--rm", "--env=NVIDIA_VISIBLE_DEVICES=all"))
    assert done.returncode == 0, done.stderr
    assert "nvidia" not in done.stdout


def test_restart_and_kill(docker: docker_bed.Docker) -> None:
    done = docker.run("sleep", "60", options=("--detach", "--name=train", *STANDALONE[1:]))
    assert done.returncode == 0, done.stderr
    container = done.stdout.strip()
    assert claims(docker.node) == {container}
    assert docker.call("restart", "--time=0", "train").returncode == 0
    assert claims(docker.node) == {container}
    assert docker.call("kill", "train").returncode == 0
    end = time.monotonic() + 60
    while claims(docker.node):
        assert time.monotonic() < end, "the claim of a killed container is not released"
        time.sleep(0.05)
    assert docker.call("rm", "train").returncode == 0


def test_under_kubelet_the_cgroup_path_identifies_the_pod(docker: docker_bed.Docker) -> None:
    """cri-dockerd passes no annotations on. Grants are in the environment, and the container's name is unknown."""
    node, uid = docker.node, str(uuid.uuid4())
    ids = {"CORES": node.grant("cores", 30), "MEMORY": node.grant("memory", GIB)}
    options = ("--rm", *(f"--env=VGPU_GRANT_{name}={id}" for name, id in ids.items()))
    first = docker.run("cudaprobe", "info", pod=uid, options=options)
    assert first.returncode == 0, first.stderr
    assert pairs(first.stdout)["card0.total"] == str(GIB)
    record = json.loads((Path(node.settings.state_dir) / f"grants/{ids['CORES']}.json").read_text())
    assert record["holder"] == {"pod_uid": uid, "container": ""}
    again = docker.run("cudaprobe", "info", pod=uid, options=options)
    assert pairs(again.stdout)["card0.uuid"] == pairs(first.stdout)["card0.uuid"]
    other = docker.run("true", pod=str(uuid.uuid4()), options=options)
    assert other.returncode == 125
    assert uid in other.stderr


def test_a_pod_is_never_standalone(docker: docker_bed.Docker) -> None:
    done = docker.run("ls", "/dev", pod=str(uuid.uuid4()), options=STANDALONE)
    assert done.returncode == 0, done.stderr
    assert "nvidia" not in done.stdout
