"""Nodes and pods as the API server shows them, and the extender's state of them without a server.

Pods are the JSON of their manifests. Cards are those of vgpu.config.inventory, in the annotation that the device plugin
writes. Times are those of a clock that the test sets.
"""

from __future__ import annotations

import copy
import json
from typing import Any

from cards import card
from fake_apiserver import merge

from vgpu.config.dialects import registration
from vgpu.config.dialects.registration import Offer
from vgpu.config.inventory import Card
from vgpu.hook.placement.placement import NoFit
from vgpu.plugin.apiserver.client import ApiError
from vgpu.plugin.scheduler import demand
from vgpu.plugin.scheduler.cluster import Cluster
from vgpu.plugin.scheduler.decide import decide, short
from vgpu.plugin.scheduler.demand import Demand
from vgpu.plugin.scheduler.node_answers import Answers
from vgpu.plugin.scheduler.options import Options
from vgpu.plugin.scheduler.rank import rank
from vgpu.plugin.scheduler.service import Service

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
    """An API server in this process: pods and leases by path. `faults` are the errors that the next writes get.

    A fault that begins with `late-` is an error after the write was done.
    """

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.faults: list[str] = []
        self.version = 1

    def put(self, pod: Object) -> Object:
        meta = pod["metadata"]
        return self._keep(f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}", pod)

    def get(self, path: str, **query: str) -> Object:
        del query
        return self._find(path)

    def patch(self, path: str, body: Object) -> Object:
        fault, found = self._fault(), self._find(path)
        for key in ("uid", "resourceVersion"):
            if body.get("metadata", {}).get(key) not in (None, found["metadata"].get(key)):
                raise ApiError("conflict", key)
        merge(found, body)
        return self._done(path, found, fault)

    def post(self, path: str, body: Object) -> Object:
        fault = self._fault()
        if not path.endswith("/binding"):
            return self._create(f"{path}/{body['metadata']['name']}", body, fault)
        path = path.removesuffix("/binding")
        pod = self._find(path)
        if body["metadata"]["uid"] != pod["metadata"]["uid"] or pod["spec"].get("nodeName"):
            raise ApiError("conflict", "assigned")
        pod["spec"]["nodeName"] = body["target"]["name"]
        pod["metadata"]["annotations"].update(body["metadata"]["annotations"])
        return self._done(path, pod, fault)

    def _create(self, path: str, body: Object, fault: str) -> Object:
        if path in self.objects:
            raise ApiError("conflict", path)
        return self._done(path, copy.deepcopy(body), fault)

    def _find(self, path: str) -> Object:
        if path not in self.objects:
            raise ApiError("missing", path)
        return copy.deepcopy(self.objects[path])

    def _fault(self) -> str:
        fault = self.faults.pop(0) if self.faults else ""
        if fault and not fault.startswith("late-"):
            raise ApiError(fault, "a fault")
        return fault

    def _keep(self, path: str, value: Object) -> Object:
        self.version += 1
        value["metadata"]["resourceVersion"] = str(self.version)
        self.objects[path] = value
        return value

    def _done(self, path: str, value: Object, fault: str) -> Object:
        self._keep(path, value)
        if fault:
            raise ApiError(fault.removeprefix("late-"), "a fault")
        return value


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
        self.cluster = Cluster(clock=self.clock)
        self.service = Service(self.cluster, self.server, lambda: self.problem, self.options)
        self.cluster.replace_nodes(self.nodes, self.clock())
        for pod in self.server.objects.values():
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

    def check_answers(self, asked: Demand, names: list[str]) -> None:
        """Each kept answer is that of `decide` on the node as it is now."""
        for name, answer in self.service.answers.to(asked, names).items():
            cards, held = self.cluster.cards(name), self.cluster.held(name)
            assert cards is not None
            try:
                decision = decide(asked, cards, held)
            except NoFit as error:
                assert answer.reason == short(error)
            else:
                expected = rank(cards, held, decision, "binpack")
                assert (answer.reason, answer.decision, answer.rank) == ("", decision, expected)

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
