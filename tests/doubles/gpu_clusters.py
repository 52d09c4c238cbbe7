"""Nodes and pods as the API server shows them, and the extender's state of them without a server.

Pods are the JSON of their manifests. Cards are those of vgpu.config.inventory, in the annotation that the device plugin
writes. Times are those of a clock that the test sets.
"""

from __future__ import annotations

import json
from typing import Any

from cards import card

from vgpu.config.dialects import registration
from vgpu.config.dialects.registration import Offer
from vgpu.config.inventory import Card
from vgpu.plugin.apiserver.client import ApiError
from vgpu.plugin.scheduler import demand
from vgpu.plugin.scheduler.cluster import Cluster
from vgpu.plugin.scheduler.node_answers import Answers
from vgpu.plugin.scheduler.service import Options, Service

Object = dict[str, Any]
GIB = 1 << 30
MIB = 1 << 20
CORES, MEMORY = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"
UNIT = 256 * MIB


def make_cards(node: str, count: int = 2, memory: int = 16 * GIB, name: str = "Tesla T4", link: str = "") -> list[Card]:
    """Cards of one kind; `link` joins each pair."""
    uuids = [f"GPU-{node}-{at}" for at in range(count)]

    def joined(uuid: str) -> dict[str, str]:
        return {other: link for other in uuids if link and other != uuid}

    return [card(at, memory, uuid=uuid, bus_id="", name=name, links=joined(uuid)) for at, uuid in enumerate(uuids)]


def node_object(name: str, cards: list[Card], labels: dict[str, str] | None = None, **offer: Any) -> Object:
    """A node with its cards; `offer` as in Offer."""
    reasons = offer.pop("reasons", {})
    text = registration.own(Offer(cards, reasons, "550.54.15", **offer))
    return {
        "kind": "Node",
        "metadata": {"name": name, "annotations": {registration.OWN: text}, "labels": dict(labels or {})},
    }


def uid_of(name: str) -> str:
    """A pod's uid, made from its name."""
    return f"{name.encode().hex():0>32.32}-0000"


def share(cores: int, memory: int) -> Object:
    """The limits of a share, or with memory 0 of whole cards."""
    amounts: Object = {CORES: str(cores)}
    return {**amounts, MEMORY: str(memory // UNIT)} if memory else amounts


def pod_object(
    name: str,
    *containers: Object,
    inits: tuple[Object, ...] = (),
    sidecars: tuple[Object, ...] = (),
    annotations: dict[str, str] | None = None,
    namespace: str = "default",
    node: str = "",
    priority: int = 0,
    created: int = 0,
) -> Object:
    """A pod with these limits of its containers: c0, c1, ..., init containers i0, ..., sidecars s0, ...."""
    first = [{"name": f"i{at}", "resources": {"limits": limits}} for at, limits in enumerate(inits)]
    first += [
        {"name": f"s{at}", "restartPolicy": "Always", "resources": {"limits": limits}}
        for at, limits in enumerate(sidecars)
    ]
    return {
        "kind": "Pod",
        "metadata": {
            "name": name, "namespace": namespace, "uid": uid_of(name), "annotations": dict(annotations or {}),
            "creationTimestamp": f"2026-01-01T00:{created // 60 % 60:02d}:{created % 60:02d}Z",
        },
        "spec": {
            "initContainers": first, "priority": priority, **({"nodeName": node} if node else {}),
            "containers": [{"name": f"c{at}", "resources": {"limits": limits}} for at, limits in enumerate(containers)],
        },
        "status": {"phase": "Pending"},
    }  # fmt: skip


class Server:
    """An API server in this process: pods by path. `faults` are the kinds of errors that the next writes get.

    A fault that begins with `late-` is an error after the write was done.
    """

    def __init__(self) -> None:
        self.pods: dict[str, Object] = {}
        self.faults: list[str] = []
        self.version = 1

    def put(self, pod: Object) -> Object:
        meta = pod["metadata"]
        self.version += 1
        meta["resourceVersion"] = str(self.version)
        self.pods[f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"] = pod
        return pod

    def get(self, path: str, **query: str) -> Object:
        del query
        if path not in self.pods:
            raise ApiError("missing", path)
        return json.loads(json.dumps(self.pods[path]))  # type: ignore[no-any-return]

    def patch(self, path: str, body: Object) -> Object:
        fault = self.faults.pop(0) if self.faults else ""
        if fault and not fault.startswith("late-"):
            raise ApiError(fault, "a fault")
        pod, meta = self.get(path), body["metadata"]
        for key in ("uid", "resourceVersion"):
            if meta.get(key) not in (None, pod["metadata"][key]):
                raise ApiError("conflict", key)
        for key, text in meta["annotations"].items():
            pod["metadata"]["annotations"].pop(key, None)
            if text is not None:
                pod["metadata"]["annotations"][key] = text
        return self._done(pod, fault)

    def post(self, path: str, body: Object) -> Object:
        fault = self.faults.pop(0) if self.faults else ""
        if fault and not fault.startswith("late-"):
            raise ApiError(fault, "a fault")
        pod = self.get(path.removesuffix("/binding"))
        if body["metadata"]["uid"] != pod["metadata"]["uid"] or pod["spec"].get("nodeName"):
            raise ApiError("conflict", "assigned")
        pod["spec"]["nodeName"] = body["target"]["name"]
        pod["metadata"]["annotations"].update(body["metadata"]["annotations"])
        return self._done(pod, fault)

    def _done(self, pod: Object, fault: str) -> Object:
        self.put(pod)
        if fault:
            raise ApiError(fault.removeprefix("late-"), "a fault")
        return pod


class Clock:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Site:
    """A service over a cluster of its own; `show` is what a watch does."""

    def __init__(self, *nodes: Object, **options: Any) -> None:
        self.clock = Clock()
        self.server = Server()
        self.nodes = list(nodes)
        self.options = Options(clock=self.clock, arrival=0.0, **options)
        self.problem = ""
        self.restart()

    def restart(self) -> None:
        """Begin anew with what the server has, as a new process does."""
        self.cluster = Cluster()
        self.service = Service(self.cluster, self.server, lambda: self.problem, self.options)
        self.cluster.replace_nodes(self.nodes, self.clock())
        for pod in self.server.pods.values():
            self.show(pod)

    def restart_answers(self) -> None:
        """Forget what the nodes have answered."""
        self.service.answers = Answers(self.cluster)

    def show(self, pod: Object) -> None:
        spec = demand.parse(json.loads(json.dumps(pod)), self.options.names, self.options.gpu)
        with self.cluster.guard:
            if spec is not None:
                self.cluster.put_pod(spec)
            else:
                meta = pod["metadata"]
                self.cluster.put_other(meta["uid"], meta["namespace"], meta["name"])

    def add(self, pod: Object) -> Object:
        """Put a pod into the server and show it."""
        self.show(self.server.put(pod))
        return pod

    def found(self, pod: Object) -> Object:
        """The pod as the server has it now."""
        meta = pod["metadata"]
        return self.server.get(f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}")

    def names(self) -> list[str]:
        return [node["metadata"]["name"] for node in self.nodes]

    def filter(self, pod: Object, names: list[str] | None = None) -> Any:
        return self.service.filter(args(pod, self.names() if names is None else names))

    def bind(self, pod: Object, node: str) -> str:
        meta = pod["metadata"]
        body = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}
        return self.service.bind(json.dumps(body).encode())


def args(pod: Object, names: list[str]) -> bytes:
    """ExtenderArgs of a scheduler to which the extender is nodeCacheCapable."""
    return json.dumps({"Pod": pod, "Nodes": None, "NodeNames": names}).encode()
