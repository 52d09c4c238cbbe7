"""A node with grants, and kubelet's list of the devices that are still in use."""

from __future__ import annotations

import base64
import io
import json
import os
from pathlib import Path

from vgpu.config import grants, paths, records
from vgpu.config.claims import Claim
from vgpu.config.grants import Grant, Holder
from vgpu.config.settings import Settings
from vgpu.hook.linux import procfs
from vgpu.node.service import kubelet_resources
from vgpu.node.service.log import Log
from vgpu.plugin.kubelet import checkpoint, pod_resources
from vgpu.plugin.kubelet.grant_gc import GrantGc
from vgpu.plugin.kubelet.pod_resources import Listing
from vgpu.plugin.kubelet.proto import deviceplugin_pb2, podresources_pb2

CARD = "GPU-00000000-0000-0000-0000-000000000001"
CORE, MEMORY = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"
GRACE = 60.0


def ids(low: int, high: int, card: str = CARD) -> list[str]:
    return [f"{kubelet_resources.tag_of(card)}-{number}" for number in range(low, high + 1)]


class Kubelet:
    """Its list: pod -> container -> resource -> ids. `life` is its socket's. `error` is raised instead of an answer."""

    def __init__(self) -> None:
        self.life = 1
        self.pods: dict[tuple[str, str], dict[str, dict[str, list[str]]]] = {("kube-system", "network-x7d9k"): {}}
        self.error: Exception | None = None

    def lists(self, pod: str, container: str = "main", **devices: list[str]) -> None:
        of = {{"core": CORE, "memory": MEMORY}.get(name, name): found for name, found in devices.items()}
        self.pods.setdefault(("default", pod), {})[container] = of

    def response(self) -> podresources_pb2.ListPodResourcesResponse:
        response = podresources_pb2.ListPodResourcesResponse()
        for (namespace, name), containers in self.pods.items():
            pod = response.pod_resources.add(namespace=namespace, name=name)
            for container, devices in containers.items():
                one = pod.containers.add(name=container)
                for resource, found in devices.items():
                    one.devices.add(resource_name=resource, device_ids=found)
        return response

    def ask(self, settings: Settings) -> Listing:
        if self.error is not None:
            raise self.error
        return pod_resources.listing((0, self.life, 0), self.response(), settings)


class Node:
    """State on disk, a kubelet, and a clock that the test advances."""

    def __init__(self, path: Path) -> None:
        values = {"paths.state": str(path / "state"), "paths.run": str(path / "run"), "plugin.socket_dir": str(path)}
        self.settings = Settings({**values, "plugin.grant_grace": int(GRACE)}, node="gpu-7.example.org")
        self.checkpoint = path / checkpoint.NAME
        self.remembers()
        self.kubelet = Kubelet()
        self.now = 1000.0
        self.log = io.StringIO()
        self.started = 0.0
        self.gone: set[str] = set()  # uids of pods that are over according to the API server
        self.grant_gc = self.plugin()

    def plugin(self) -> GrantGc:
        """A plugin's collector that has just started."""
        return GrantGc(
            self.settings, Log(self.log, levels=False), lambda: set(self.gone), self.kubelet.ask, lambda: self.now
        )

    def grant(
        self, low: int = 0, high: int = 49, holder: tuple[str, str] | None = None, pod: str = "",
        resource: str = "cores",
    ) -> str:  # fmt: skip
        """A grant of the ids from `low` to `high`; `holder` (pod uid, container) has claimed it, as `pod` by name."""
        self.started += 1
        found = Grant(grants.new_id(), resource, 1, self.started, devices={CARD: f"{low}-{high}"})
        if holder:
            found.holder, found.cards = Holder(*holder), [CARD]
            found.name = f"default/{pod}/{holder[1]}" if pod else ""
        grants.write(self.settings.state_dir, found)
        return found.id

    def remembers(self, *ids: str) -> None:
        """Write kubelet's checkpoint with the answers of Allocate for these grants."""
        entries = []
        for grant_id in ids:
            answer = deviceplugin_pb2.ContainerAllocateResponse(envs={"VGPU_GRANT_CORES": grant_id})
            kept = base64.b64encode(answer.SerializeToString()).decode()
            entries.append({"PodUID": "u", "ContainerName": "c", "DeviceIDs": {"-1": ["x"]}, "AllocResp": kept})
        data = {"PodDeviceEntries": entries or None, "RegisteredDevices": {}}
        self.checkpoint.write_text(json.dumps({"Data": data, "Checksum": 1}))

    def claim(self, container: str, *held: str, pid: int = 0) -> None:
        """Write the claim of a container whose init is this process, or `pid`."""
        pid = pid or os.getpid()
        made = Claim(container, pid, procfs.start_time(pid), [], True, None, list(held), "", 1.0)
        path = paths.claim(self.settings.run_dir, container)
        os.makedirs(os.path.dirname(path))
        records.write(path, made.record())

    def rounds(self, seconds: float = 3 * GRACE, step: float = 10.0) -> list[str]:
        """Run the rounds of a plugin in that time. Returns the grants that ended."""
        ended = []
        for _ in range(int(seconds / step)):
            ended += self.grant_gc.round()
            self.now += step
        return ended

    def left(self) -> set[str]:
        return {grant.id for grant in grants.read_all(self.settings.state_dir)[0]}
