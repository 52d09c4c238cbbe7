"""The real kubelet, standalone: pods from manifests in a directory, containers on a private containerd.

Belongs here: running kubelet 1.20 (kubernetes_programs) so that it changes nothing of the machine. It shares a mount
namespace with containerd, in which /var/lib, /var/log, the few sysctls that it writes, and the id of this boot belong
to the test.
"""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import containerd_bed
import kubernetes_programs
from daemons import Process

#: kubelet appends it to the names of static pods. The node's settings have another name, so the plugin takes these pods
#: for pods of an API server, whose presence shows that kubelet's list is complete.
NODE = "anode"
SYSCTLS = (
    "vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes", "kernel/random/boot_id",
)  # fmt: skip


class Place:
    """A mount namespace in which /var/lib, /var/log and SYSCTLS are below `directory`. `prefix` enters it.

    `binds` are further directories, (source, target). `network` are shell commands that set up a network; with them
    the place has a network namespace of its own.
    """

    def __init__(self, directory: Path, binds: Sequence[tuple[Path, Path]] = (), network: Sequence[str] = ()) -> None:
        self.lib, self.log, self.sysctls = directory / "lib", directory / "log", directory / "sysctl"
        mine = [(self.lib, Path("/var/lib")), (self.log, Path("/var/log"))]
        for path in (self.lib, self.log):
            path.mkdir(parents=True, exist_ok=True)
        for name in SYSCTLS:
            copy = self.sysctls / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(Path("/proc/sys", name).read_text())
            mine.append((copy, Path("/proc/sys", name)))
        script = [*(f"mount --bind {source} {target}" for source, target in [*mine, *binds]), *network]
        command = ["unshare", "-mn" if network else "-m", "sh", "-ec", "; ".join([*script, "echo", "exec sleep 86400"])]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
        assert self.process.stdout is not None
        assert self.process.stdout.readline(), "no mount namespace"
        spaces = {"mount": "mnt", **({"net": "net"} if network else {})}
        files = {option: f"/proc/{self.process.pid}/ns/{name}" for option, name in spaces.items()}
        self.prefix = ("nsenter", *(f"--{option}={file}" for option, file in files.items()))

    def boot(self) -> None:
        """Another boot of the node, for programs that start from now on."""
        (self.sysctls / "kernel/random/boot_id").write_text(f"{uuid.uuid4()}\n")

    def unmount(self, *below: Path) -> None:
        """Unmount everything below these directories, as a loss of power does."""
        for line in reversed(Path(f"/proc/{self.process.pid}/mountinfo").read_text().splitlines()):
            point = Path(line.split()[4])
            if any(top in point.parents for top in below):
                subprocess.run([*self.prefix, "umount", "-l", str(point)], check=True)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


class RealKubelet(Process):
    """kubelet on `bed`, which has to be in the same `place`. Its cgroups are below the bed's."""

    def __init__(self, directory: Path, place: Place, bed: containerd_bed.Containerd) -> None:
        self.directory, self.place, self.bed = directory, place, bed
        self.manifests = directory / "manifests"
        self.manifests.mkdir(parents=True)
        super().__init__(directory / "kubelet.log")

    @property
    def device_plugins(self) -> Path:
        return self.place.lib / "kubelet/device-plugins"

    @property
    def pod_resources(self) -> Path:
        return self.directory / "root/pod-resources/kubelet.sock"

    def start(self) -> RealKubelet:
        for hierarchy in Path("/sys/fs/cgroup").iterdir():
            os.makedirs(f"{hierarchy}{self.bed.name}", exist_ok=True)
        for name in ("cpus", "mems"):
            value = Path(f"/sys/fs/cgroup/cpuset/cpuset.{name}").read_text()
            Path(f"/sys/fs/cgroup/cpuset{self.bed.name}/cpuset.{name}").write_text(value)
        config = self.directory / "config.json"
        config.write_text(json.dumps(self._config()))
        program = kubernetes_programs.build("kubelet")["kubelet"]
        command = [
            *self.place.prefix, str(program), f"--config={config}", "--container-runtime=remote",
            f"--container-runtime-endpoint=unix://{self.bed.socket}", f"--hostname-override={NODE}",
            f"--cert-dir={self.directory}/pki", "--v=3", *self._options(),
        ]  # fmt: skip
        self.launch(command)
        return self

    def _options(self) -> list[str]:
        return [f"--root-dir={self.directory}/root"]

    def _config(self) -> dict[str, Any]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "staticPodPath": str(self.manifests),
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "enableServer": False,
            "healthzPort": 0,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": self.bed.name,
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            "evictionHard": {"memory.available": "1Mi"},
            "fileCheckFrequency": "1s",
            "syncFrequency": "1s",
        }

    def manifest(self, name: str, containers: Sequence[dict[str, Any]], **fields: Any) -> Path:
        """Write a pod's manifest where kubelet looks. The simulated driver's state is a volume of the host."""
        mount = {"name": "sim", "mountPath": "/run/vgpu-sim"}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "annotations": fields.pop("annotations", {})},
            "spec": {
                "hostNetwork": True,
                "containers": [_container(one, mount) for one in containers],
                "initContainers": [_container(one, mount) for one in fields.pop("inits", [])],
                "volumes": [{"name": "sim", "hostPath": {"path": str(self.bed.node.sim)}}],
                **fields,
            },
        }
        path = self.manifests / f"{name}.json"
        temporary = self.directory / f"{name}.json"
        temporary.write_text(json.dumps(pod))
        os.replace(temporary, path)
        return path

    def output(self, pod: str, container: str, attempt: int = 0) -> str:
        """The output of a container so far; "" when it has not started."""
        for path in (self.place.log / "pods").glob(f"default_{pod}-{NODE}_*/{container}/{attempt}.log"):
            if path.exists():
                return "".join(line.split(" ", 3)[3] for line in path.read_text().splitlines(keepends=True))
        return ""

    def restart(self) -> None:
        self.stop()
        self.start()

    def end(self) -> None:
        """kubelet ends first, as it would restart the containers that are removed."""
        self.stop()
        client = self.bed.client
        if client is not None:
            for sandbox in client.call("ListPodSandbox").items:
                client.call("StopPodSandbox", pod_sandbox_id=sandbox.id)
                client.call("RemovePodSandbox", pod_sandbox_id=sandbox.id)


def _container(fields: dict[str, Any], mount: dict[str, str]) -> dict[str, Any]:
    return {"image": containerd_bed.IMAGE, "imagePullPolicy": "Never", "volumeMounts": [mount], **fields}
