"""One node of a real cluster with vgpu on it: the hook in its containerd, and the device plugin as a process.

Belongs here: joining real_cluster, the simulated cards and the plugin, and the queries that tests make about pods. The
plugin has its manifest's service account, as a pod has. It is a process, so tests can stop it and change its settings.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import containerd_bed
import nodes
import real_cluster
import yaml
from checkout import CHECKOUT
from daemons import wait_for
from plugin_process import Plugin
from pod_site import CORE, GPU, MEMORY
from real_cluster import Cluster, ClusterKubelet, Object
from real_kubelet import NODE

from vgpu.config import grants
from vgpu.config.claims import Claim

MANIFESTS = CHECKOUT / "packaging/kubernetes/node"
ACCOUNT, NAMESPACE = "vgpu-node", "vgpu-system"
SECRETS = "secrets/kubernetes.io/serviceaccount"
#: What the node offers, by the name of its resource of cores, or by its mode.
OFFERED = {
    "": {CORE: 200, MEMORY: 314}, "gpu": {GPU: 4},
    "nvidia.com/vcuda-core": {"nvidia.com/vcuda-core": 200, "nvidia.com/vcuda-memory": 80768},
}  # fmt: skip
ENVIRONMENT = {"KUBERNETES_SERVICE_HOST": real_cluster.API, "KUBERNETES_SERVICE_PORT": "443", "NODE_NAME": NODE}
USUAL: Object = {
    "plugin.http": "",
    "metrics.listen": "",
    "kubernetes.api": "auto",
    "kubernetes.register": ["vgpu"],
    "plugin.socket_dir": "/var/lib/kubelet/device-plugins",
    "plugin.pod_resources_socket": "/var/lib/kubelet/pod-resources/kubelet.sock",
}
#: Every real node has a pod of some DaemonSet. On a node without one the plugin acts on kubelet's list of pods only
#: after a pod has lived for a round of 10 s.
RESIDENT: Object = {
    "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "resident", "namespace": "kube-system"},
    "spec": {"terminationGracePeriodSeconds": 0, "containers": [{"name": "c", "image": containerd_bed.IMAGE}]},
}  # fmt: skip


def documents(path: Path) -> list[Object]:
    """The objects in a file of YAML."""
    return [item for item in yaml.safe_load_all(path.read_text()) if item]


class Site:
    """A node that is up, with its manifests applied. `configure` starts the plugin."""

    def __init__(self, directory: Path, image: Path, names: Sequence[str], cdi: bool = False) -> None:
        """With `cdi` the hook comes to containers by CDI alone, and nothing is in its directory yet."""
        self.directory = directory
        self.node = nodes.SimulatedNode(directory / "node", "a100x2")
        self.node.take_inventory()
        state, run = (Path(self.node.settings.text(f"paths.{name}")) for name in ("state", "run"))
        state.mkdir(exist_ok=True)
        self.place = real_cluster.make_place(directory, (state, Path("/var/lib/vgpu")), (run, Path("/run/vgpu")))
        self.cluster = Cluster(directory / "cluster", self.place)
        self.cards = [str(card["uuid"]) for card in self.node.read_cards()]
        self._before = dict(self.node.settings._values)
        sim = {"destination": "/run/vgpu-sim", "type": "bind", "source": str(self.node.sim), "options": ["rbind", "rw"]}
        programs = containerd_bed.programs("1.7") if cdi else Path("/usr/bin")
        default = "plain" if cdi else "base"
        self.bed = containerd_bed.Containerd(
            directory / "bed", programs, self.node, default=default, patterns=(), prefix=self.place.prefix,
            mounts=[sim], network=real_cluster.write_network(directory / "cni"),
        )  # fmt: skip
        self.kubelet = ClusterKubelet(directory / "k", self.place, self.bed, self.cluster)
        self.plugin = Plugin(self.node, self.place.prefix)
        self._image, self._names = image, names

    def start_alone(self) -> None:
        """Start the cluster and its node, with nothing of vgpu."""
        subprocess.run([*self.place.prefix, "mount", "--make-rshared", "/"], check=True)  # as systemd does
        self.cluster.start()
        self.bed.start(self._image)
        for name in self._names:
            self.tag(containerd_bed.IMAGE, name)
        self.kubelet.start()
        self.kubelet.ready()
        self.cluster.apply(RESIDENT)

    def start(self) -> Site:
        self.start_alone()
        self.cluster.kubectl("apply", "-k", str(MANIFESTS))
        secrets = self.directory / "run" / SECRETS
        secrets.mkdir(parents=True)
        (secrets / "token").write_text(self.cluster.account(ACCOUNT, NAMESPACE))
        (secrets / "ca.crt").write_text(self.cluster.ca.read_text())
        (secrets / "namespace").write_text(NAMESPACE)
        return self

    def tag(self, image: str, name: str) -> None:
        """Give `image` the further name `name`, as if it had been pulled."""
        registry, slash, _ = name.partition("/")
        full = name if slash and "." in registry else f"docker.io/{name if slash else f'library/{name}'}"
        self.ctr("images", "tag", image, full if ":" in full else f"{full}:latest")

    def ctr(self, *arguments: str) -> None:
        command = ["ctr", "--address", str(self.bed.socket), "-n", "k8s.io", *arguments]
        subprocess.run(command, check=True, capture_output=True)

    def end(self) -> None:
        self.plugin.kill()
        self.kubelet.end()
        self.bed.stop()
        self.cluster.end()
        self.place.end()

    # A reboot of the node

    def lose_power(self) -> None:
        """kubelet, runtime, plugin and all containers end at once. /run, cgroups and tmpfs are gone with them."""
        self.kubelet.kill()
        self.plugin.kill()
        self.bed.lose_power()
        self.place.unmount(self.bed.directory / "state", Path("/run/netns"), Path("/var/lib/kubelet/pods"))
        for directory in (self.bed.directory / "state", Path(self.node.settings.run_dir)):
            for path in directory.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.place.boot()

    def boot(self, plugin: bool = True) -> None:
        """The node boots: inventory, runtime, the plugin's unit if there is one, then kubelet."""
        self.take_inventory()
        self.bed.launch()
        if plugin:
            self.start_plugin()
        self.kubelet.start()

    def take_inventory(self) -> None:
        """As vgpud does, in this boot of the node."""
        program = str(Path(sys.executable).parent / "vgpuctl")
        command = [*self.place.prefix, program, "--config", str(self.node.config), "inventory", "refresh"]
        subprocess.run(command, env=self.node.environment(), capture_output=True, check=True)

    def start_plugin(self) -> None:
        self.plugin.start(**ENVIRONMENT)

    # The plugin and its settings

    def configure(self, expected: dict[str, int], **settings: object) -> None:
        """Start a plugin with these settings, and wait until the API server shows `expected` for the node."""
        values = {**self._before, **USUAL, **{name.replace("__", "."): value for name, value in settings.items()}}
        if values != self.node.settings._values or not self.plugin.alive:
            self.plugin.kill()
            self.node.settings._values.clear()
            self.node.settings._values.update(values)
            self.node.write_settings()
            self.start_plugin()
        wait_for(lambda: self.offered() == expected, 60, lambda: f"{self.offered()} {self.plugin.text()[-2000:]}")

    def offered(self) -> dict[str, int]:
        return {name: int(amount) for name, amount in self.kubelet.allocatable().items() if amount != "0"}

    # Pods

    def create(self, name: str, limits: dict[str, int], **fields: Any) -> str:
        """Create a pod of one container, `main`. Returns its uid."""
        metadata = {"name": name, **fields.pop("metadata", {})}
        texts = {key: str(amount) for key, amount in limits.items()}
        container = {
            "name": "main", "image": containerd_bed.IMAGE, "resources": {"limits": texts},
            "command": fields.pop("command", ["sh", "-c", "cudaprobe info; exec sleep 86400"]),
        }  # fmt: skip
        spec = {"terminationGracePeriodSeconds": 0, "containers": [container], **fields}
        self.cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        return str(self.cluster.find("pod", name)["metadata"]["uid"])

    def find_pod(self, name: str) -> Object:
        return self.cluster.find("pod", name)

    def phase(self, name: str, *phases: str, seconds: float = 90) -> Object:
        """The pod, as soon as it is in one of `phases`."""

        def reached() -> Object | None:
            pod = self.find_pod(name)
            return pod if pod.get("status", {}).get("phase") in phases else None

        return wait_for(reached, seconds, lambda: self.what_happened(name))  # type: ignore[no-any-return]

    def what_happened(self, name: str) -> str:
        return self.cluster.kubectl("describe", "pod", name, check=False) + self.plugin.text()[-2000:]

    def log(self, name: str, container: str = "") -> str:
        chosen = ["-c", container] if container else []
        return self.cluster.kubectl("logs", name, *chosen, check=False)  # fails until the container has started

    def wait_for_log(self, name: str, text: str, container: str = "") -> str:
        """The log of a container, once it has `text`."""

        def found() -> str:
            printed = self.log(name, container)
            return printed if text in printed else ""

        return str(wait_for(found, 60, lambda: self.what_happened(name)))

    def events(self, name: str, reason: str = "") -> list[Object]:
        chosen = f"involvedObject.name={name}" + (f",reason={reason}" if reason else "")
        listed = self.cluster.kubectl("get", "events", f"--field-selector={chosen}", "-o", "json")
        return json.loads(listed)["items"]  # type: ignore[no-any-return]

    def reporters(self, name: str) -> set[str]:
        """The components that reported the pod's events."""
        return {event["reportingComponent"] or event["source"]["component"] for event in self.events(name)}

    def delete(self, *names: str) -> None:
        self.cluster.kubectl("delete", "pod", *names, "--ignore-not-found", "--grace-period=1", "--timeout=90s")

    def delete_all(self) -> None:
        """Delete all pods of tests and their claims. Unclaimed grants stay until kubelet allocates again."""
        self.cluster.kubectl("delete", "pods", "--all", "--grace-period=1", "--timeout=90s")
        wait_for(lambda: not self.claims() and not self.claimed(), 90, lambda: self.plugin.text()[-2000:])

    # The node's records

    def grants(self) -> list[grants.Grant]:
        return self.node.grants()

    def claimed(self) -> list[int]:
        """The amounts of grants that have a holder."""
        return sorted(grant.amount for grant in self.grants() if grant.holder)

    def claims(self) -> dict[str, Claim]:
        """The claims that are ready, by the names of pod and container."""
        found = []
        for path in self.node.containers.glob("[!.]*/claim.json"):
            with suppress(FileNotFoundError):  # it has not begun, or has just ended
                found.append(self.node.claim(path.parent.name))
        return {claim.name.partition("/")[2]: claim for claim in found if claim.ready}

    def held(self, name: str, container: str = "main") -> list[tuple[str, int, int]]:
        """(card, MiB, cores) of a container that runs."""
        claim = wait_for(lambda: self.claims().get(f"{name}/{container}"), 90, lambda: self.what_happened(name))
        return [(card.uuid, card.memory >> 20, card.cores) for card in claim.cards]
