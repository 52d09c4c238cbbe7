"""The runtimes of the kubelet stand-in: containerd over CRI, or runc itself for tests with a thousand pods.

Belongs here: making a container of a spec and the device manager's merged answers, as kubelet does. On runc the cgroup
path and the annotations are those that kubelet and containerd would make, so the hook sees no difference.
"""

from __future__ import annotations

import itertools
import shutil
import subprocess
import threading
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import bundles
import cgroup_trees
import containerd_bed
import nodes
from cri_client import CriError

if TYPE_CHECKING:
    from kubelet import Container, Spec
    from kubelet_devices import Options


class StartError(Exception):
    """The runtime's message, as kubelet shows it in the pod's events."""


class Runtime(Protocol):
    """Sandboxes are opaque objects of the runtime, which kubelet passes back. `stop` ends all containers.

    `remove` also removes the pod's cgroup, which kubelet makes and removes in reality.
    """

    def sandbox(self, spec: Spec) -> Any: ...

    def start(self, sandbox: Any, container: Container, options: Options) -> str: ...

    def exit_code(self, sandbox: Any, container: str) -> int | None: ...

    def output(self, sandbox: Any, container: str) -> str: ...

    def stop(self, sandbox: Any) -> None: ...

    def remove(self, sandbox: Any) -> None: ...

    def lose(self, sandbox: Any) -> None: ...


class CriRuntime:
    """containerd. Pods run under `handler`."""

    def __init__(self, bed: containerd_bed.Containerd, handler: str = "base") -> None:
        self.bed = bed
        self.handler = handler
        self._attempts: dict[str, int] = {}

    def sandbox(self, spec: Spec) -> containerd_bed.Pod:
        try:
            return self.bed.pod(self.handler, spec.uid, spec.annotations)
        except CriError as error:
            raise StartError(str(error)) from None

    def start(self, sandbox: containerd_bed.Pod, container: Container, options: Options) -> str:
        """The environment is in kubelet's order: the plugins' first, then the pod's own."""
        try:
            made = sandbox.create(
                container.command, container.name, options.annotations, [*options.envs.items(), *container.env],
                cdi_devices=options.cdi,
            )  # fmt: skip
            self._attempts[made] = sandbox.attempts
            sandbox.start(made)
        except CriError as error:
            raise StartError(str(error)) from None
        return made

    def exit_code(self, sandbox: containerd_bed.Pod, container: str) -> int | None:
        status = sandbox.status(container)
        return int(status.exit_code) if status.state == sandbox.client.messages.CONTAINER_EXITED else None

    def output(self, sandbox: containerd_bed.Pod, container: str) -> str:
        return sandbox.output(self._attempts[container])

    def kill(self, sandbox: containerd_bed.Pod, container: str) -> None:
        sandbox.stop_container(container)

    def stop(self, sandbox: containerd_bed.Pod) -> None:
        sandbox.stop()

    def remove(self, sandbox: containerd_bed.Pod) -> None:
        sandbox.remove()
        cgroup_trees.remove(sandbox.cgroup)

    def lose(self, sandbox: containerd_bed.Pod | None) -> None:
        if sandbox is not None:
            self.remove(sandbox)


class Box:
    """A pod on runc: its containers and their bundles."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.bundles: dict[str, bundles.Bundle] = {}


class RuncRuntime:
    """runc without a daemon, with `rootfs` for all containers. runc's state is below `directory`."""

    def __init__(self, directory: Path, node: nodes.SimulatedNode, rootfs: Path) -> None:
        self.directory = directory
        self.node = node
        self.rootfs = rootfs
        self.cgroup = f"/vgpu-test-{uuid.uuid4().hex[:8]}"
        self.runc = bundles.Runtime(directory / "runc", "runc")
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def sandbox(self, spec: Spec) -> Box:
        return Box(spec)

    def start(self, sandbox: Box, container: Container, options: Options) -> str:
        with self._lock:
            name = f"{self.runc.prefix}-{next(self._numbers)}-{uuid.uuid4().hex[:6]}"
        bundle = self._bundle(sandbox, container, options, name)
        log = bundle.path / "log"
        with (bundle.path / "output").open("wb") as output:
            command = [
                *self.runc.command, "--log", str(log), "create", "--pid-file", str(bundle.path / "pid"), "--bundle",
                str(bundle.write()), name,
            ]  # fmt: skip
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False)
        if done.returncode != 0:
            self.runc.delete(name)
            raise StartError((bundle.path / "output").read_text())
        sandbox.bundles[name] = bundle
        self.runc.call("start", name, check=True)
        return name

    def _bundle(self, sandbox: Box, container: Container, options: Options, name: str) -> bundles.Bundle:
        made = bundles.Bundle(self.directory / "bundles" / name, self.rootfs).hooks(self.node).simulated(self.node)
        made.pod(sandbox.spec.uid, container.name, self.cgroup).command(*container.command)
        spec = sandbox.spec
        names = {"sandbox-name": spec.name, "sandbox-namespace": spec.namespace}
        made.config["annotations"].update({f"io.kubernetes.cri.{key}": value for key, value in names.items()})
        made.config["annotations"].update(options.annotations)
        made.config["process"]["env"] += [f"{key}={value}" for key, value in [*options.envs.items(), *container.env]]
        return made

    def exit_code(self, sandbox: Box, container: str) -> int | None:
        """No process waits for runc's containers, so their exit codes are lost. Returns 0."""
        try:
            pid = int((sandbox.bundles[container].path / "pid").read_text())
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return 0
        return 0 if state in ("Z", "X") else None

    def output(self, sandbox: Box, container: str) -> str:
        return (sandbox.bundles[container].path / "output").read_text()

    def stop(self, sandbox: Box) -> None:
        for container in sandbox.bundles:
            self.runc.delete(container)

    def remove(self, sandbox: Box) -> None:
        for bundle in sandbox.bundles.values():
            shutil.rmtree(bundle.path, ignore_errors=True)
        sandbox.bundles = {}
        cgroup_trees.remove(bundles.pod_cgroup(self.cgroup, sandbox.spec.uid))

    def lose(self, sandbox: Box | None) -> None:
        if sandbox is not None:
            self.stop(sandbox)
            self.remove(sandbox)

    def end(self) -> None:
        """Remove the remains of all pods."""
        for state in self.runc.root.glob("*"):
            self.runc.delete(state.name)
        shutil.rmtree(self.directory, ignore_errors=True)
        cgroup_trees.remove(self.cgroup)
