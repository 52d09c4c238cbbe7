"""Runtimes as their users call them, in one way: bare runc and crun, podman, docker, containerd over CRI.

Belongs here: running a shell script in a container with a share or without, and what its user sees of a refusal. A
share is requested by annotations, or by grants where the caller is kubelet. What must hold is in
test_runtime_contract.py.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from typing import Any

import containerd_bed
import docker_bed
import nodes
import podman_bed
from container_site import MIB, SLEEP, Site
from cri_client import CriError


def hooks_line(text: str) -> str:
    found = re.search(r"vgpu-hook: [^\n]*", text)
    assert found, text
    return found[0]


class ByRuntime:
    """runc or crun, called directly."""

    def __init__(self, site: Site) -> None:
        self.site, self.node = site, site.node
        self.is_crun = site.runtime.command[-3] == "crun"

    def _bundle(self, script: str, env: tuple[str, ...], share: dict[str, str]) -> Any:
        made = self.site.bundle(None, "sh", "-c", script, **share)
        made.config["process"]["env"] += env
        return made

    def run(self, script: str, *env: str, **share: str) -> str:
        return self.site.output(self._bundle(script, env, share))

    def refusal(self, **share: str) -> str:
        """The hook's line as the user sees it. crun tells the exit status alone, and the line is in the log."""
        if not self.is_crun:
            return self.site.refused(self._bundle("true", (), share))
        done = self.site.runtime.run(self._bundle("true", (), share))
        assert done.returncode != 0
        assert f"error executing hook `{self.node.hook}` (exit code: 1)" in done.stderr
        assert "vgpu-hook: " not in done.stderr, "newer cruns may tell more: then say so in docs/runtimes.md"
        return str(self.node.log()[-1]["error"])

    def start(self, script: str, **share: str) -> str:
        return self.site.start(self._bundle(script, (), share))

    def end(self, container: str) -> None:
        """End a container's program by force. A bare runtime's poststop comes with the deletion."""
        self.site.delete(container)

    def again(self, container: str, **share: str) -> None:
        """Start it once more."""
        self.start(" ".join(SLEEP), **share)


class ByCommand:
    """A command line like Docker's."""

    _run: Callable[..., subprocess.CompletedProcess[str]]

    def run(self, script: str, *env: str, **share: str) -> str:
        done = self._run(script, "--rm", *(f"--env={one}" for one in env), **share)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, script: str, **share: str) -> str:
        done = self._run(script, "--detach", **share)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


class ByPodman(ByCommand):
    """podman by runc or crun, with the shipped hooks.d files."""

    def __init__(self, site: Site, runtime: str = "runc", cgroup: int = 1) -> None:
        self.site, self.node = site, site.node
        self.podman = podman_bed.Podman(site.node, runtime, cgroup)

    def _run(self, script: str, *options: str, **share: str) -> subprocess.CompletedProcess[str]:
        options = ("--cap-add=mknod", *options)
        return self.podman.run(self.site.tree(), "sh", "-c", script, options=options, **share)

    def refusal(self, **share: str) -> str:
        done = self._run("true", "--rm", **share)
        assert done.returncode == 126
        if self.podman.runtime == "crun":
            assert f"executing hook `{self.node.hook}` (exit code: 1)" in done.stderr
            return str(self.node.log()[-1]["error"])
        return hooks_line(done.stderr)

    def end(self, container: str) -> None:
        assert self.podman.call("kill", container).returncode == 0

    def again(self, container: str, **share: str) -> None:
        assert self.podman.call("start", container).returncode == 0


class ByDocker(ByCommand):
    """dockerd with the shim as a runtime."""

    def __init__(self, docker: docker_bed.Docker) -> None:
        self.docker, self.node = docker, docker.node

    def _run(self, script: str, *options: str, **share: str) -> subprocess.CompletedProcess[str]:
        wanted = [f"--annotation=vgpu.io/{key}={value}" for key, value in share.items()]
        return self.docker.run("sh", "-c", script, options=(*options, *wanted))

    def refusal(self, **share: str) -> str:
        done = self._run("true", "--rm", **share)
        assert done.returncode == 125
        return hooks_line(done.stderr)

    def end(self, container: str) -> None:
        assert self.docker.call("kill", container).returncode == 0

    def again(self, container: str, **share: str) -> None:
        assert self.docker.call("restart", "--time=0", container).returncode == 0


class ByContainerd:
    """A pod's container as kubelet makes it: grants in annotations and environment, on one way of calling the hook.

    Amounts that a tenant writes on the pod are there, too, and have no effect.
    """

    def __init__(self, bed: containerd_bed.Containerd, way: str) -> None:
        self.bed, self.node, self.way = bed, bed.node, way
        self.pods: dict[str, tuple[containerd_bed.Pod, dict[str, Any]]] = {}

    def _create(self, script: str, env: tuple[str, ...], share: dict[str, str]) -> tuple[containerd_bed.Pod, str]:
        forged = {"vgpu.io/cores": "100", "vgpu.io/memory": "40Gi", "vgpu.io/gpus": "2"}
        pod = self.bed.pod(self.way, annotations=forged)
        fields = allocate(self.node, int(share["cores"]), gib(share.get("memory", "0Gi"))) if share else {}
        fields.setdefault("annotations", forged)
        fields["env"] = {**fields.get("env", {}), **dict(one.split("=", 1) for one in env)}
        container = pod.create(["sh", "-c", script], **fields)
        self.pods[container] = pod, fields
        return pod, container

    def run(self, script: str, *env: str, **share: str) -> str:
        pod, container = self._create(script, env, share)
        pod.start(container)
        status, output = pod.wait(container)
        assert status == 0, output
        return output

    def refusal(self, **share: str) -> str:
        """The hook's line in the CRI error, which kubelet writes into the pod's events."""
        pod, container = self._create("true", (), share)
        return refused(pod, container)

    def start(self, script: str, **share: str) -> str:
        pod, container = self._create(script, (), share)
        pod.start(container)
        return container

    def end(self, container: str) -> None:
        self.pods[container][0].stop_container(container)

    def again(self, container: str, **share: str) -> None:
        """kubelet makes a container anew, with the same grants."""
        pod, fields = self.pods[container]
        made = pod.create(list(SLEEP), **fields)
        self.pods[made] = pod, fields
        pod.start(made)


def refused(pod: containerd_bed.Pod, container: str) -> str:
    try:
        pod.start(container)
    except CriError as error:
        return hooks_line(str(error))
    raise AssertionError("the container started")


def gib(text: str) -> int:
    return int(text.removesuffix("Gi")) * 1024


def allocate(node: nodes.SimulatedNode, cores: int = 30, mib: int = 1024) -> dict[str, dict[str, str]]:
    """The part of a container's configuration that a device plugin's Allocate adds: each id twice."""
    amounts = {"cores": cores, **({"memory": mib * MIB} if mib else {})}
    ids = {name: node.grant(name, amount) for name, amount in amounts.items()}
    return {
        "annotations": {f"vgpu.io/grant-{name}": id for name, id in ids.items()},
        "env": {f"VGPU_GRANT_{name.upper()}": id for name, id in ids.items()},
    }
