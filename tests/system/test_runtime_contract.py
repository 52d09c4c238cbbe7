"""What a container must get and must not get from the hook, whoever runs it: one list of tests for every runtime.

Bare runc and crun, podman, docker, and pods on containerd 1.6, 1.7 and 2.1 in each way of calling the hook. What only
one of them does follows, and is in test_podman.py and test_containerd.py.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import containerd_bed
import docker_bed
import nodes
import pytest
from container_site import CRUN, GIB, INFO, RUNTIMES, SLEEP, Site, frozen_beside, kinds_of_host_files, pairs
from daemons import wait_for
from runtime_clients import ByContainerd, ByDocker, ByPodman, ByRuntime, allocate

from vgpu.hook.linux import procfs

pytestmark = pytest.mark.root

SHARE = {"cores": "30", "memory": "1Gi"}
NO_DRIVER, REFUSED = "No such device or address", "Operation not permitted"
LOOK = (
    "cudaprobe info; mknod /tmp/n c 195 99; mknod /tmp/fuse c 10 229;"
    "cudaprobe open /dev/nvidiactl /dev/nvidia-uvm /tmp/n /tmp/fuse /dev/null; ls /dev; cat /proc/self/mountinfo"
)
#: crun 1.8.1, Debian 12's, cannot load a device program on v2 here; newer ones are in test_cgroup_matrix.py.
PODMANS = {"podman": ("runc", 1), "podman-v2": ("runc", 2), "podman-crun": ("crun", 1)}
WAYS = ("base", "base-prestart", "shim", "dropped", "cdi")
PODS = [
    f"{version} v{cgroup} {way}"
    for version in containerd_bed.SUITES
    for cgroup in (1, 2)
    for way in WAYS
    if (version, way) != ("1.6", "cdi")
]
CLIENTS = [*RUNTIMES, *PODMANS, "docker", *PODS]


@pytest.fixture(scope="module")
def docker(base_trees: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[docker_bed.Docker]:
    made = docker_bed.Docker(nodes.SimulatedNode(tmp_path_factory.mktemp("docker") / "node", "a100x2"))
    made.node.take_inventory()
    yield made.start(base_trees["debian"])
    made.stop()


@pytest.fixture
def client(request: pytest.FixtureRequest, base_trees: dict[str, Path], tmp_path: Path) -> Iterator[Any]:
    """The runtime of this name, whose node is empty after each test."""
    name = request.param
    if name == "docker":
        made: Any = ByDocker(request.getfixturevalue("docker"))
    elif name in PODS:
        version, cgroup, way = name.split()
        made = ByContainerd(request.getfixturevalue("containerds")(version, int(cgroup[1:])), way)
    else:
        site = Site(request.getfixturevalue("node"), tmp_path, base_trees, name if name in RUNTIMES else "runc")
        request.addfinalizer(site.end)
        made = ByRuntime(site) if name in RUNTIMES else ByPodman(site, *PODMANS[name])
    yield made
    if name in PODS:
        made.bed.remove_pods()
    elif name in PODMANS:
        made.podman.cleanup()
    left = made.node.claims()
    shutil.rmtree(Path(made.node.settings.state_dir) / "grants", ignore_errors=True)
    assert left == {} or name in RUNTIMES


everyone = pytest.mark.parametrize("client", CLIENTS, indirect=True)
#: Of containerd's cells one for each version; the others differ in how the hook is called, which the first two show.
each = pytest.mark.parametrize(
    "client", [name for name in CLIENTS if name not in PODS or name.endswith("v1 base")], indirect=True
)


@everyone
def test_a_container_gets_its_share_and_nothing_else(client: Any) -> None:
    out = client.run(LOOK, **SHARE)
    found = pairs(out)
    assert {found["card0.total"], found["card0.nvml_total"]} == {str(GIB)}
    assert found["cards"] == "1"
    assert found["/dev/nvidiactl"] == found["/dev/nvidia-uvm"] == NO_DRIVER, "permitted, but there is no driver here"
    assert found["/tmp/n"] == found["/tmp/fuse"] == REFUSED
    assert found["/dev/null"] == "opened"
    assert len(re.findall(r"^nvidia\d+$", out, re.MULTILINE)) == 1
    kinds = kinds_of_host_files(out)
    assert len(kinds) >= 7
    assert set(kinds.values()) == {"overlay"}, "a tenant's lease reaches no file of the host"
    assert client.node.claims() == {}, "poststop has released it"


@pytest.mark.parametrize("client", [name for name in CLIENTS if " v2 " not in name], indirect=True)
def test_a_container_without_a_share_sees_no_gpu(client: Any) -> None:
    """NVIDIA's variable gives no GPU, and neither do amounts that a tenant writes on a pod or its container.

    The hook leaves it alone before it looks at a cgroup, so containerd's cells with cgroup v2 are left out.
    """
    out = client.run(LOOK.replace("cudaprobe info; ", ""), "NVIDIA_VISIBLE_DEVICES=all", "VGPU_GRANT_CORES=")
    assert pairs(out)["/tmp/n"] == REFUSED
    assert "nvidia0" not in out
    assert "libcuda" not in out
    assert "/usr/local/vgpu" not in out


@each
def test_a_mig_instance_is_a_card_with_its_own_nodes(client: Any) -> None:
    for card in (0, 1):
        client.node.divide(card, "3g.20gb", "2g.10gb")
    client.node.take_inventory()
    known = [sorted(node.name for node in card.nodes[1:]) for card in client.node.inventory().cards]
    try:
        out = client.run(f"{LOOK}; ls /dev/nvidia-caps | sed s,^,nvidia-caps/,", **SHARE)
    finally:
        for card in (0, 1):
            nodes.simctl().set_mig(str(client.node.sim), card, False)
        client.node.show_layout()
        client.node.take_inventory()
    found = pairs(out)
    assert (found["card0.total"], found["cards"]) == (str(GIB), "1")
    assert sorted(re.findall(r"^nvidia-caps/\S+$", out, re.MULTILINE)) in known
    assert len(known) == 4
    assert len(re.findall(r"^nvidia\d+$", out, re.MULTILINE)) == 1


@each
def test_a_refusal_reaches_the_user_with_its_reason(client: Any) -> None:
    assert "3 cards" in client.refusal(cores="300")
    assert client.node.claims() == {}


@each
def test_a_container_that_ends_is_released_and_may_start_again(client: Any) -> None:
    share = {"cores": "80", "memory": "1Gi"}
    container = client.start(" ".join(SLEEP), **share)
    assert set(client.node.claims()) == {container}
    client.end(container)
    wait_for(lambda: client.node.claims() == {})
    client.again(container, **share)
    (again,) = client.node.claims()
    client.end(again)
    wait_for(lambda: client.node.claims() == {})


# docker


def test_under_cri_dockerd_the_cgroup_path_identifies_the_pod(docker: docker_bed.Docker) -> None:
    """It passes no annotations on. Grants are in the environment, and the container's name is unknown."""
    node, uid = docker.node, str(uuid.uuid4())
    options = ("--rm", *(f"--env={name}={id}" for name, id in allocate(node)["env"].items()))
    first, again = (docker.run(*INFO, pod=uid, options=options) for _ in range(2))
    assert first.returncode == again.returncode == 0, first.stderr + again.stderr
    assert pairs(first.stdout)["card0.total"] == str(GIB)
    assert pairs(again.stdout)["card0.uuid"] == pairs(first.stdout)["card0.uuid"]
    holders = [grant.holder for grant in node.grants() if grant.holder]
    assert {(holder.pod_uid, holder.container) for holder in holders} == {(uid, "")}
    other = docker.run("true", pod=str(uuid.uuid4()), options=options)
    assert other.returncode == 125
    assert uid in other.stderr


# crun


@CRUN
@pytest.mark.parametrize("stage", ["prestart", "createRuntime"])
def test_crun_has_hooks_at_both_stages(site: Site, stage: str) -> None:
    share = site.plain_bundle(**SHARE).hooks(site.node, stage)
    assert site.seen(share, "cudaprobe", "alloc", "512", "9")["refused"] == "2"
    assert [record["stage"] for record in site.node.log()] == [stage, "poststop"]


@CRUN
def test_cruns_state_has_its_own_status_and_root(site: Site, tmp_path: Path) -> None:
    """The hook handles this state. The test notices a crun with another one."""
    recorder = tmp_path / "recorder"
    recorder.write_text(f"#!/bin/sh\ncat > {tmp_path}/$1\n")
    recorder.chmod(0o755)
    share = site.share()
    for name in ("prestart", "poststop"):
        share.config["hooks"][name].append({"path": str(recorder), "args": ["recorder", name]})
    site.output(share)
    before, after = (json.loads((tmp_path / name).read_text()) for name in ("prestart", "poststop"))
    assert (before["status"], before["root"]) == ("created", str(share.rootfs))
    assert (after["status"], after["pid"]) == ("stopped", 0)


@CRUN
def test_crun_ends_a_container_whose_init_is_still_exiting(site: Site) -> None:
    container = site.start(site.share())
    with frozen_beside(pid := site.pid(container)):
        deletion = subprocess.Popen([*site.runtime.command, "delete", "--force", container])
        wait_for(lambda: procfs.is_exiting(pid))
        with pytest.raises(subprocess.TimeoutExpired):
            deletion.wait(1)
        assert site.node.held() == {container}
    assert (deletion.wait(), site.node.held()) == (0, set())


@CRUN
def test_crun_with_a_rootfs_relative_to_the_bundle(site: Site) -> None:
    share = site.share()
    shutil.move(share.rootfs, share.path / "rootfs")
    share.config["root"]["path"] = "rootfs"
    assert site.seen(share)["card0.total"] == str(2 * GIB)


@CRUN
def test_the_shim_by_its_name(site: Site) -> None:
    """vgpu-runtime-crun, as Docker and containerd call it."""
    site.runtime = site.other_runtime(f"{site.node.shim}-crun", "--vgpu-config", str(site.node.config))
    assert site.seen(site.plain_bundle(**SHARE))["card0.total"] == str(GIB)
    assert site.node.claims() == {}
