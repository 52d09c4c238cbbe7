"""A node whose cards are offered by resource claims: the plugin as a process, kubelet's stand-in on its sockets.

Belongs here: the clock of the stand-in, instances of the plugin (several in a rollout), the API server's stand-in, and
what has to hold of records and CDI files. Pods have no containers here; a subclass may start them.
"""

from __future__ import annotations

import json
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import helm
import nodes
from dra_control import Control, Store
from dra_kubelet import HEALTH, Call, Due, Object, Pod
from fake_apiserver import FakeApiServer
from google.protobuf import json_format
from plugin_process import Plugin
from pod_site import plugin_settings, short_directory

from vgpu.config import prepared
from vgpu.node.service.claim_devices import EIGHTHS, PARTS
from vgpu.plugin.kubelet.proto import dra_v1_pb2, dra_v1beta1_pb2, pluginregistration_pb2, services

NODE, DRIVER = "n", "gpu.vgpu.io"
API = "/apis/resource.k8s.io/v1"
SETTINGS = {"kubernetes.api": "auto", "kubernetes.dra": True, "kubernetes.dra_parts": True}
PROTOCOLS = {"v1": dra_v1_pb2, "v1beta1": dra_v1beta1_pb2, "pluginregistration": pluginregistration_pb2}
SPEED = 20  #: kubelet's seconds in one of ours, for what it waits for by itself; deadlines of calls are as they are
PATIENCE = 600.0  #: seconds for anything that happens at all


class Clock:
    """The stand-in's calendar in real time. Calls are made by threads, all else happens in `until`."""

    def __init__(self) -> None:
        self.due: dict[str, Due] = {}
        self._began = time.monotonic()
        self._threads = ThreadPoolExecutor(16)
        self._called: list[tuple[Future[tuple[Object | None, str]], Callable[[Object | None, str], None]]] = []

    @property
    def now(self) -> float:
        return (time.monotonic() - self._began) * SPEED

    def call(self, call: Call, done: Callable[[Object | None, str], None]) -> None:
        if call.method != HEALTH:  # component/plugin/test_dra.py has the stream
            self._called.append((self._threads.submit(call.driver.serve, call), done))

    def step(self) -> None:
        for what, due in sorted(self.due.items(), key=lambda item: item[1].earliest):
            if due.earliest <= self.now and self.due.get(what) is due:
                del self.due[what]
                due.run()
        over = [one for one in self._called if one[0].done()]
        self._called = [one for one in self._called if one not in over]
        for future, done in over:
            done(*future.result())

    def until(self, holds: Callable[[], Any], what: Callable[[], object] = str) -> Any:
        end = time.monotonic() + PATIENCE
        while not (found := holds()):
            assert time.monotonic() < end, what()
            self.step()
            time.sleep(0.005)
        return found

    def close(self) -> None:
        self._threads.shutdown()


class Instance(Plugin):
    """A process of the plugin, in a pod of its own. `serve` makes kubelet's calls."""

    def __init__(self, node: nodes.SimulatedNode) -> None:
        super().__init__(node)
        self.uid, self.options = str(uuid.uuid4()), ("--hook", str(node.hook))
        kubelet = Path(node.settings.text("plugin.socket_dir")).parent
        self.registry = kubelet / f"plugins_registry/{DRIVER}-{self.uid}-reg.sock"
        self.endpoint = kubelet / f"plugins/{DRIVER}/dra-{self.uid}.sock"

    def serve(self, call: Call) -> tuple[Object | None, str]:
        version, _, rest = call.method.partition(".")
        service, _, method = rest.partition("/")
        module, socket = PROTOCOLS[version], self.registry if version == "pluginregistration" else self.endpoint
        kinds = {"GetInfo": "InfoRequest", "NotifyRegistrationStatus": "RegistrationStatus"}
        request = json_format.ParseDict(call.fields(), getattr(module, kinds.get(method, f"{method}Request"))())
        with grpc.insecure_channel(f"unix:{socket}") as channel:
            try:
                answer = getattr(services.Client(channel, module, service), method)(request, timeout=call.deadline)
            except grpc.RpcError as error:
                return None, f"{error.code().name}: {error.details()}"
        return json_format.MessageToDict(answer, preserving_proto_field_name=True), ""


class SharedStore(Store):
    """Claims that the API server has, too."""

    def __init__(self, api: FakeApiServer) -> None:
        self.api = api
        super().__init__()

    @property
    def slices(self) -> list[Object]:
        return [self.api.get(path) or {} for path in sorted(self.api.objects) if "/resourceslices/" in path]

    @slices.setter
    def slices(self, value: list[Object]) -> None:
        assert not value, "the plugin publishes them"

    def create(self, claim: Object) -> Object:
        made = super().create(claim)
        self.api.create(_path(made).rpartition("/")[0], {"kind": "ResourceClaim", **made})
        return made

    def set_status(self, claim: Object) -> None:
        super().set_status(claim)
        self.api.put_object(_path(claim), {"kind": "ResourceClaim", **claim})

    def remove(self, claim: Object) -> None:
        super().remove(claim)
        self.api.remove(_path(claim))

    def delete_slices(self) -> None:
        for one in self.slices:
            self.api.remove(f"{API}/resourceslices/{one['metadata']['name']}")


def _path(claim: Object) -> str:
    return f"{API}/namespaces/{claim['metadata']['namespace']}/resourceclaims/{claim['metadata']['name']}"


class DraSite(Control):
    """The control plane and kubelet of a node with the cards of `node`, which has been made for this site."""

    def __init__(self, node: nodes.SimulatedNode, cdi: Path | None = None) -> None:
        self.node, self.api, self.clock = node, FakeApiServer(), Clock()
        self.api.put_node(NODE)
        self.api.nodes[NODE]["metadata"]["uid"] = str(uuid.uuid4())
        directory = node.directory
        self.sockets = short_directory()
        settings = plugin_settings(self.sockets, **SETTINGS)
        kubeconfig = self.api.kubeconfig(directory / "kubeconfig")
        self.cdi = cdi or directory / "cdi"  #: where the runtime looks
        node.change_settings(**{**settings, "kubernetes.kubeconfig": kubeconfig, "kubernetes.cdi_dir": str(self.cdi)})
        super().__init__(SharedStore(self.api), self.clock)
        for one in helm.objects(values={"dra": {"enabled": True, "parts": True}}):
            if one["kind"] == "DeviceClass":
                self.store.classes[one["metadata"]["name"]] = one
                self.api.put_object(f"{API}/deviceclasses/{one['metadata']['name']}", one)
        self.instances: list[Instance] = []
        self.given: dict[str, list[str]] = {}  #: pod uid -> CDI devices of its claims

    # The plugin's processes

    def start(self) -> Instance:
        made = Instance(self.node)
        self.instances.append(made.start(NODE_NAME=NODE, POD_UID=made.uid))  # type: ignore[arg-type]
        self.until(lambda: made.registry.is_socket() or not made.alive, made.text)
        assert made.alive, made.text()
        self.kubelet.appear(made.registry.name, made)
        return made

    def kill(self, instance: Instance, kindly: bool = False) -> None:
        """End it by SIGTERM, which removes its sockets, or by SIGKILL, which leaves them."""
        instance.stop() if kindly else instance.kill()
        self.instances.remove(instance)
        self.kubelet.lost()
        if not instance.registry.exists():
            self.kubelet.vanish(instance.registry.name)

    def close(self) -> None:
        for one in self.instances:
            one.kill()
        self.clock.close()
        self.api.close()
        shutil.rmtree(self.sockets)

    # What users and tests do

    def until(self, holds: Callable[[], Any], what: Callable[[], object] | None = None) -> Any:
        def scheduled() -> Any:
            self.schedule()
            return holds()

        return self.clock.until(scheduled, what or self.what_happened)

    def what_happened(self) -> str:
        events = {pod.object["metadata"]["name"]: pod.events[-2:] for pod in self.kubelet.pods.values()}
        return f"{events} {self.reasons} {[one.text()[-1500:] for one in self.instances]}"

    def published(self) -> list[Object]:
        """The devices, once the pool has all of its slices."""
        if any(len(self.store.slices) < one["spec"]["pool"]["resourceSliceCount"] for one in self.store.slices):
            return []
        return [device for one in self.store.slices for device in one["spec"].get("devices", ())]

    def make_claim(self, name: str, cores: int, memory: str = "1Gi") -> str:
        requests = {"cores": str(cores), "memory": memory}
        exactly = {"deviceClassName": DRIVER, "capacity": {"requests": requests}}
        spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
        metadata = {"name": name, "namespace": "default"}
        made = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "spec": spec}
        return str(self.store.create(made)["metadata"]["name"])

    def pod(self, claim: str, name: str = "") -> Pod:
        """A pod with one container and this claim."""
        spec = {
            "resourceClaims": [{"name": "gpu", "resourceClaimName": claim}],
            "containers": [{"name": "main", "resources": {"claims": [{"name": "gpu"}]}}],
        }
        return self.create({"metadata": {"name": name or f"{claim}-{uuid.uuid4().hex[:4]}"}, "spec": spec})

    def part_pod(self, part: str, name: str) -> Pod:
        """A pod with one container that asks for a part of a card as for a resource of a device plugin."""
        limits = {f"{DRIVER}/{part}": "1"}
        spec = {"containers": [{"name": "main", "resources": {"limits": limits}}]}
        return self.create({"metadata": {"name": name}, "spec": spec})

    def _bind(self, pod: Pod) -> None:
        """With the pod's own object at the API server, from which the plugin learns of a claim's further pods."""
        super()._bind(pod)
        spec = {**pod.object["spec"], "nodeName": NODE}
        self.api.put_whole_pod({"kind": "Pod", **pod.object, "spec": spec, "status": {"phase": "Pending"}})

    def started(self, pod: Pod, devices: dict[str, list[Object]]) -> None:
        ids = [one for each in devices.values() for device in each for one in device["cdi_device_ids"]]
        self.given[pod.uid] = list(dict.fromkeys(ids))

    def ended(self, pod: Pod) -> None:
        self.given.pop(pod.uid, None)
        name = pod.object["metadata"].get("name", "")
        if f"default/{name}" in self.api.pods:
            self.api.remove_pod(name)
        super().ended(pod)

    def empty_cdi(self) -> None:
        for path in self.cdi.glob("vgpu.io-claim_*"):
            path.unlink(missing_ok=True)  # the plugin may be unpreparing the claim

    def new_boot(self) -> None:
        """The node has booted: /var/run is empty, and all records are of an earlier boot."""
        self.empty_cdi()
        for claim in self.records().values():
            claim.boot_id = str(uuid.uuid4())
            prepared.write(self.node.settings.state_dir, claim)

    # What has to hold

    def records(self) -> dict[str, prepared.PreparedClaim]:
        found, damaged = prepared.read_all(self.node.settings.state_dir)
        assert not damaged
        return {one.uid: one for one in found}

    def resolvable(self) -> set[str]:
        """The CDI devices that a runtime finds."""
        found: set[str] = set()
        for path in self.cdi.glob("vgpu.io-claim_*.json"):
            with suppress(FileNotFoundError):  # the plugin has just removed it
                one = json.loads(path.read_text())
                found |= {f"{one['kind']}={device['name']}" for device in one["devices"]}
        return found

    def problems(self) -> list[str]:
        """What is wrong: a claim of a running pod that is lost, a record too many, a card above 100."""
        records, found = self.records(), []
        for pod in self.kubelet.pods.values():
            for name in pod.claims.values() if pod.sandbox and not pod.deleted else ():
                claim = self.store.claim("default", name)
                record = records.get(claim["metadata"]["uid"])
                results = claim["status"]["allocation"]["devices"]["results"]
                if record is None or pod.uid not in record.pods:
                    found.append(f"{name} is lost to {pod.object['metadata']['name']}: {record and record.pods}")
                elif [one.cores for one in record.results] != [cores_of(one) for one in results]:
                    found.append(f"{name} has other cores than the scheduler gave")
            if pod.sandbox and not pod.deleted and not set(self.given.get(pod.uid, ["none"])) <= self.resolvable():
                found.append(f"a CDI device of {pod.object['metadata']['name']} does not resolve")
        known = {info.key[2] for info in self.kubelet.checkpoint.values()}
        found += [f"{records[uid].name} is left over" for uid in records.keys() - known]
        found += [
            f"{one} is left over"
            for one in self.resolvable()
            if one.partition("=")[2].rpartition("-")[0] not in records
        ]
        cores: dict[str, int] = {}
        serves: dict[str, set[bool]] = {}
        for record in records.values():
            for result in record.results:
                cores[result.card] = cores.get(result.card, 0) + result.cores
                serves.setdefault(result.card, set()).add(result.device == result.card.lower())
        found += [f"{card} serves shares and parts" for card, kinds in serves.items() if len(kinds) > 1]
        return found + [f"{card} has {sum_} cores" for card, sum_ in cores.items() if sum_ > 100]

    def settled(self) -> None:
        """Everything is as it has to be, maybe after the plugin's next round."""
        self.until(lambda: not self.problems(), lambda: f"{self.problems()} {self.what_happened()}")


def cores_of(result: Object) -> int:
    """Of a share as consumed, of a part by its name."""
    part = result["device"].split("-")[-2]
    consumed = result.get("consumedCapacity", {"cores": 100 * PARTS.get(part, 0) // EIGHTHS})
    return int(consumed["cores"])


@contextmanager
def running(made: DraSite) -> Iterator[DraSite]:
    made.kubelet.start()
    try:
        yield made
    finally:
        made.close()
