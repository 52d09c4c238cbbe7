"""Pods on real containerds: 1.6 of Debian 12, 1.7 and 2.1 of newer suites, called over CRI as kubelet calls them.

Each is configured for the hook in each way: hooks in a base_runtime_spec, the shim as BinaryName, a CDI device.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import containerd_bed
import nodes
import oci_images
import pytest
import suites
from cri_client import CriError

pytestmark = pytest.mark.root

MIB = 1 << 20
GIB = 1 << 30
MACHINES = "1.6"
SUITES = {MACHINES: "bookworm", "1.7": "trixie", "2.1": "sid"}
WAYS = ("base", "base-prestart", "shim", "dropped", "cdi")
LOOK = "cudaprobe info; cudaprobe open /dev/nvidiactl /dev/nvidia-uvm; ls /dev; cat /proc/self/mountinfo"


@pytest.fixture(scope="module")
def image(base_trees: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    archive = tmp_path_factory.mktemp("image") / "base.tar"
    return oci_images.write(base_trees["debian"], archive, containerd_bed.IMAGE, ["sleep", "86400"])


@pytest.fixture(scope="module")
def daemons(
    image: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., containerd_bed.Containerd]]:
    """One daemon per version of containerd and of cgroup, started at its first use, on a node of its own."""
    running: dict[tuple[str, int], containerd_bed.Containerd] = {}

    def daemon(version: str, cgroup: int) -> containerd_bed.Containerd:
        if (version, cgroup) not in running:
            directory = tmp_path_factory.mktemp("ctd")
            node = nodes.SimulatedNode(directory / "node", "a100x2")
            node.take_inventory()
            made = containerd_bed.Containerd(directory / "bed", programs(version), node, cgroup)
            assert made.version.startswith(version)
            running[version, cgroup] = made.start(image)
        return running[version, cgroup]

    yield daemon
    for made in running.values():
        made.stop()


def programs(version: str) -> Path:
    """Of containerd `version`. Docker's packages bring another one than Debian 12, which then is fetched."""
    own = shutil.which("containerd")
    if own and version == MACHINES:
        found = subprocess.run([own, "--version"], capture_output=True, text=True, check=True).stdout.split()[2]
        if found.lstrip("v").startswith(version):
            return Path(own).parent
    return suites.unpack(SUITES[version], "containerd") / "usr/bin"


@pytest.fixture
def bed(
    request: pytest.FixtureRequest, daemons: Callable[..., containerd_bed.Containerd]
) -> Iterator[containerd_bed.Containerd]:
    """A daemon, and an empty node after each test."""
    made = daemons(*request.param)
    yield made
    made.remove_pods()
    left = claims(made)
    shutil.rmtree(Path(made.node.settings.state_dir) / "grants", ignore_errors=True)
    assert left == {}


def matrix() -> list[Any]:
    """Every version on both versions of cgroup in every way that it supports."""
    beds = [(version, cgroup) for version in SUITES for cgroup in (1, 2)]
    cells = [(bed, way) for bed in beds for way in WAYS if way != "cdi" or bed[0] != "1.6"]
    return [pytest.param(bed, way, id=f"{bed[0]}-v{bed[1]}-{way}") for bed, way in cells]


everywhere = pytest.mark.parametrize(("bed", "way"), matrix(), indirect=["bed"])
each_version = pytest.mark.parametrize("bed", [(version, 1) for version in SUITES], ids=list(SUITES), indirect=True)


def claims(bed: containerd_bed.Containerd) -> dict[str, dict[str, Any]]:
    directory = Path(bed.node.settings.run_dir) / "containers"
    return {path.parent.name: json.loads(path.read_text()) for path in directory.glob("*/claim.json")}


def allocate(bed: containerd_bed.Containerd, cores: int = 30, mib: int = 1024) -> dict[str, dict[str, str]]:
    """The part of a container's configuration that a device plugin's Allocate adds: each id twice."""
    ids = {"cores": bed.node.grant("cores", cores), "memory": bed.node.grant("memory", mib * MIB)}
    return {
        "annotations": {f"vgpu.io/grant-{name}": id for name, id in ids.items()},
        "env": {f"VGPU_GRANT_{name.upper()}": id for name, id in ids.items()},
    }


def pairs(text: str) -> dict[str, str]:
    """`key value` lines."""
    return dict(line.split(" ", 1) for line in text.splitlines() if " " in line)


def run(pod: containerd_bed.Pod, script: str, **fields: Any) -> str:
    """The output of a container that runs `script` and ends well."""
    container = pod.create(["sh", "-c", script], **fields)
    pod.start(container)
    status, output = pod.wait(container)
    assert status == 0, output
    return output


def refused(pod: containerd_bed.Pod, **fields: Any) -> str:
    """The hook's line in the CRI error, which kubelet writes into the pod's events."""
    container = pod.create(["true"], **fields)
    with pytest.raises(CriError) as error:
        pod.start(container)
    found = re.search(r"vgpu-hook: [^\n]*", str(error.value))
    assert found, error.value
    return found[0]


def eventually(what: str, seconds: float, condition: Any) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.05)


@everywhere
def test_a_pods_container_gets_its_share(bed: containerd_bed.Containerd, way: str) -> None:
    pod = bed.pod(way, annotations={"vgpu.io/cores": "100", "vgpu.io/memory": "40Gi"})
    out = run(pod, LOOK, **allocate(bed))
    found = pairs(out)
    assert {found["card0.total"], found["card0.nvml_total"]} == {str(GIB)}
    assert found["cards"] == "1"
    assert found["/dev/nvidiactl"] == found["/dev/nvidia-uvm"] == "No such device or address"
    assert len(re.findall(r"^nvidia\d+$", out, re.MULTILINE)) == 1
    assert claims(bed) == {}, "poststop has released it"
    sandbox = Path(f"/proc/{pod.pid()}/mountinfo").read_text()
    assert "nvidia" not in sandbox
    assert "vgpu/" not in sandbox


@everywhere
def test_a_container_without_grants_sees_no_gpu(bed: containerd_bed.Containerd, way: str) -> None:
    """NVIDIA's variable gives no GPU, and neither do amounts that a tenant writes on the pod or the container."""
    forged = {"vgpu.io/cores": "100", "vgpu.io/memory": "40Gi", "vgpu.io/gpus": "2"}
    pod = bed.pod(way, annotations=forged)
    env = {"NVIDIA_VISIBLE_DEVICES": "all", "VGPU_GRANT_CORES": ""}
    out = run(
        pod,
        LOOK.replace("cudaprobe info", "mknod /tmp/n c 195 255; cudaprobe open /tmp/n"),
        annotations=forged,
        env=env,
    )
    assert "/tmp/n Operation not permitted" in out
    assert "nvidia0" not in out
    assert "libcuda" not in out
    assert "/usr/local/vgpu" not in out


@each_version
def test_a_pods_claim_has_its_names(bed: containerd_bed.Containerd) -> None:
    pod = bed.pod("base")
    container = pod.create(["sleep", "60"], **allocate(bed))
    pod.start(container)
    claim = claims(bed)[container]
    assert claim["holder"] == {"pod_uid": pod.uid, "container": "train"}
    assert claim["name"] == f"default/pod-{pod.uid[:8]}/train"
    row = next(row for row in json.loads(bed.node.vgpuctl("status", "--output", "json").stdout)["containers"])
    assert row["container"] == container
    pod.stop_container(container)
    eventually("the claim of a killed container is released", 60, lambda: claims(bed) == {})


@each_version
@pytest.mark.parametrize("way", ["base", "dropped"])
def test_only_the_same_container_of_the_same_pod_claims_again(bed: containerd_bed.Containerd, way: str) -> None:
    first = bed.pod(way)
    grants = allocate(bed)
    before = pairs(run(first, LOOK, **grants))
    blocker = bed.pod("base")  # so that the same card is not chosen because it is emptier
    blocking = blocker.create(["sleep", "60"], name="other", **allocate(bed, 70))
    blocker.start(blocking)
    after = pairs(run(first, LOOK, **grants))
    assert after["card0.uuid"] == before["card0.uuid"]
    again = bed.pod(way, uid=first.uid)  # a new sandbox, as after the node's reboot
    assert pairs(run(again, LOOK, **grants))["card0.uuid"] == before["card0.uuid"]
    stranger = bed.pod(way)
    line = refused(stranger, **grants)
    assert first.uid in line
    assert "holder" in line or "grant" in line
    assert "train" in refused(again, name="sidecar", **grants)
    assert set(claims(bed)) == {blocking}


@each_version
def test_a_full_card_is_reported_and_tried_again(bed: containerd_bed.Containerd) -> None:
    """Under kubelet StartContainer fails, the event has the reason, and a later attempt with the grants succeeds."""
    holders = [bed.pod("base") for _ in range(2)]
    held = [allocate(bed, 80) for _ in holders]
    started = [pod.create(["sleep", "60"], **grants) for pod, grants in zip(holders, held)]
    for pod, container in zip(holders, started):
        pod.start(container)
    late = bed.pod("base")
    grants = allocate(bed, 40)
    line = refused(late, **grants)
    for card in bed.node.read_cards():
        assert card["uuid"] in line
    assert "20 cores free" in line
    holders[0].stop_container(started[0])
    for id in held[0]["annotations"].values():  # the pod is deleted, and so the plugin removes its grants
        Path(bed.node.settings.state_dir, "grants", f"{id}.json").unlink()
    assert pairs(run(late, LOOK, **grants))["cards"] == "1"


@each_version
def test_tenants_cannot_forge_grants(bed: containerd_bed.Containerd) -> None:
    pod = bed.pod("base", annotations={"vgpu.io/grant-cores": "f" * 32})
    assert "unknown" in refused(pod)
    real = allocate(bed)
    assert pairs(run(pod, LOOK, **real))["card0.total"] == str(GIB), "the container's own annotation counts"
    del real["annotations"]
    line = refused(bed.pod("base"), env={**real["env"], "VGPU_GRANT_CORES": str(uuid.uuid4().hex)})
    assert "unknown" in line


@each_version
def test_the_shims_own_refusal_is_reported(bed: containerd_bed.Containerd) -> None:
    """Of a failed create containerd reads only the runtime's log, so the shim writes its line there."""
    pod = bed.pod("shim")
    container = pod.create(["true"], **allocate(bed))
    wrapper = bed.directory / "runc-shim"
    sound = wrapper.read_text()
    wrapper.write_text(sound.replace(containerd_bed.RUNC, "/nowhere/runc"))
    try:
        with pytest.raises(CriError, match="vgpu-runtime: find the OCI runtime: expected /nowhere/runc"):
            pod.start(container)
    finally:
        wrapper.write_text(sound)
