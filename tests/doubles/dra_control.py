"""Stand-ins for the control plane around claims: the scheduler's loop and the controllers, for the pods of one node.

Belongs here: claims of templates and of extended resources, reservations, binding, deallocation, eviction by taints,
and a store in memory. A store of a real API server has the same methods.
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import Collection
from typing import Any

from dra_kubelet import Kubelet, Object, Pod
from dra_scheduler import COUNTERS, GATE, Allocator, Refused, tolerated

#: What an API server drops while the gate is off, by the ends of its paths.
GATED = {
    GATE: ("allowMultipleAllocations", "requestPolicy", "consumedCapacity", "shareID", "capacity.requests"),
    COUNTERS: ("sharedCounters", "consumesCounters"),
    "DRAExtendedResource": ("extendedResourceName",),
}
IMPLICIT = "deviceclass.resource.kubernetes.io/"


def _pruned(value: Any, dropped: Collection[str], path: str = "") -> Any:
    """`value` without the fields whose paths end as one of `dropped`."""
    if isinstance(value, list):
        return [_pruned(one, dropped, path) for one in value]
    if not isinstance(value, dict):
        return value
    ends = tuple(f".{end}" for end in dropped)
    kept = {key: one for key, one in value.items() if not f".{path}.{key}".endswith(ends)}
    return {key: _pruned(one, dropped, f"{path}.{key}") for key, one in kept.items()}


class Store:
    """Objects in memory. `dropped` as in GATED."""

    def __init__(self, dropped: Collection[str] = ()) -> None:
        self.dropped = dropped
        self.slices: list[Object] = []
        self.classes: dict[str, Object] = {}
        self.templates: dict[str, Object] = {}
        self.claims: dict[tuple[str, str], Object] = {}

    def create(self, claim: Object) -> Object:
        made = _pruned(claim, self.dropped)
        made["metadata"].setdefault("uid", str(uuid.uuid4()))
        self.claims[made["metadata"]["namespace"], made["metadata"]["name"]] = made
        return made

    def claim(self, namespace: str, name: str) -> Object:
        """A copy, as an API server's answer is one."""
        if (namespace, name) not in self.claims:
            raise LookupError(f'resourceclaims.resource.k8s.io "{name}" not found')
        return copy.deepcopy(self.claims[namespace, name])

    def listed(self) -> list[Object]:
        return list(self.claims.values())

    def set_status(self, claim: Object) -> None:
        self.claims[claim["metadata"]["namespace"], claim["metadata"]["name"]] = claim

    def remove(self, claim: Object) -> None:
        self.claims.pop((claim["metadata"]["namespace"], claim["metadata"]["name"]), None)

    def delete_slices(self) -> None:
        self.slices = []


class Control:
    """The control plane of `kubelet`'s node. Containers are up to subclasses: `started` and `stopped`."""

    def __init__(
        self, store: Any, time: Any, gates: Collection[str] = (GATE, COUNTERS), without: Collection[str] = ()
    ) -> None:
        self.store, self.gates = store, frozenset(gates)
        self.rounding = "rounding" not in without
        self.kubelet = Kubelet(time, self, without)
        self.claim, self.delete_slices = store.claim, store.delete_slices
        self.waiting: dict[str, Pod] = {}
        self.reasons: dict[str, str] = {}  #: why a pod waits

    # What users do

    def create(self, pod: Object) -> Pod:
        """Create the pod, with the claims of its templates."""
        pod = copy.deepcopy(pod)
        pod["metadata"].setdefault("uid", str(uuid.uuid4()))
        pod["metadata"].setdefault("namespace", "default")
        pod["spec"].setdefault("restartPolicy", "Always")
        claims = {}
        for one in pod["spec"].get("resourceClaims", ()):
            name = one.get("resourceClaimName")
            if name is None:
                spec = self.store.templates[one["resourceClaimTemplateName"]]["spec"]["spec"]
                name = self._generate(pod, one["name"], spec)
            claims[one["name"]] = name
        made = Pod(pod, claims)
        self.waiting[made.uid] = made
        self.schedule()
        return made

    def delete(self, pod: Pod, by_force: bool = False) -> None:
        if self.waiting.pop(pod.uid, None):
            self._free(pod)
        else:
            if by_force:
                self._free(pod)
            self.kubelet.delete(pod, by_force)
        self.schedule()

    def slices_changed(self) -> None:
        """Evict pods whose devices have got a taint, then look for room."""
        for pod in list(self.kubelet.pods.values()):
            after = self._evicted(pod)
            if after is not None and not pod.deleted:
                pod.deleted = True
                self.kubelet.finish(pod, after)
        self.schedule()

    # The scheduler and the controllers

    def schedule(self) -> None:
        for pod in list(self.waiting.values()):
            self.reasons.pop(pod.uid, None)
            try:
                self._bind(pod)
            except (Refused, LookupError) as error:
                self.reasons[pod.uid] = str(error)

    def _bind(self, pod: Pod) -> None:
        extended = self._extended(pod)
        claims = [self.claim(pod.object["metadata"]["namespace"], name) for name in pod.claims.values()]
        claims += [extended] if extended else []
        for claim in claims:
            if "allocation" not in claim.setdefault("status", {}):
                others = [
                    one["status"]["allocation"]
                    for one in [*self.store.listed(), *claims]
                    if one.get("status", {}).get("allocation")
                ]
                allocator = Allocator(self.store.slices, self.store.classes, others, self.gates, self.rounding)
                allocation = allocator.allocate(claim)
                if allocation is None:
                    raise Refused("cannot allocate all claims")
                claim["status"]["allocation"] = allocation
        del self.waiting[pod.uid]
        for claim in claims:
            if claim is extended:
                name = self._generate(pod, "extended-resources", claim["spec"])
                claim["metadata"] = self.claim(pod.object["metadata"]["namespace"], name)["metadata"]
                pod.claims["extended-resources"] = name
            reserved = claim["status"].setdefault("reservedFor", [])
            reserved.append({"resource": "pods", "name": pod.object["metadata"]["name"], "uid": pod.uid})
            self.store.set_status(claim)
        self.kubelet.add(pod)

    def _generate(self, pod: Object | Pod, name: str, spec: Object) -> str:
        """Create a claim that the pod owns. Returns its name."""
        metadata = (pod.object if isinstance(pod, Pod) else pod)["metadata"]
        owner = {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": metadata["name"],
            "uid": metadata["uid"],
            "controller": True,
        }
        made = {
            "name": self.name_of(f"{metadata['name']}-{name}-"),
            "namespace": metadata["namespace"],
            "ownerReferences": [owner],
        }
        claim = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": made,
            "spec": copy.deepcopy(spec),
        }
        return str(self.store.create(claim)["metadata"]["name"])

    def name_of(self, prefix: str) -> str:
        return f"{prefix}{uuid.uuid4().hex[:5]}"

    def _extended(self, pod: Pod) -> Object | None:
        """The claim that the scheduler would make for the pod's extended resources: so many devices of a class."""
        named = {one["spec"].get("extendedResourceName"): name for name, one in self.store.classes.items()}
        requests = []
        for number, container in enumerate(pod.object["spec"]["containers"]):
            limits = container.get("resources", {}).get("limits", {})
            for place, (resource, count) in enumerate(limits.items()):
                device_class = named.get(resource) or resource.removeprefix(IMPLICIT)
                exactly = {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": int(count)}
                requests.append({"name": f"container-{number}-request-{place}", "exactly": exactly})
        if not requests:
            return None
        return {
            "metadata": {"namespace": pod.object["metadata"]["namespace"], "name": ""},
            "spec": {"devices": {"requests": requests}},
        }

    def _evicted(self, pod: Pod) -> float | None:
        """After how many seconds the pod ends because of a taint; None: it stays."""
        taints = {
            one["name"]: one.get("taints", ()) for each in self.store.slices for one in each["spec"].get("devices", ())
        }
        after: list[float] = []
        for name in pod.claims.values():
            claim = self.claim(pod.object["metadata"]["namespace"], name)
            requests = {one["name"]: one.get("exactly", {}) for one in claim["spec"]["devices"]["requests"]}
            for result in claim["status"]["allocation"]["devices"]["results"]:
                tolerations = requests.get(result["request"], {}).get("tolerations", ())
                for taint in taints.get(result["device"], ()):
                    by = tolerated(taint, tolerations)
                    if taint["effect"] == "NoExecute" and (by is None or "tolerationSeconds" in by):
                        after.append(by["tolerationSeconds"] if by else 0)
        return min(after, default=None)

    def _free(self, pod: Pod) -> None:
        """The pod is over: its reservations end, claims that nobody has reserved are free, its own are deleted."""
        for claim in [copy.deepcopy(one) for one in self.store.listed()]:
            status = claim.get("status", {})
            left = [one for one in status.get("reservedFor", ()) if one["uid"] != pod.uid]
            if any(one["uid"] == pod.uid for one in claim["metadata"].get("ownerReferences", ())):
                self.store.remove(claim)
            elif len(left) < len(status.get("reservedFor", ())):
                claim["status"] = {**status, "reservedFor": left} if left else {}
                self.store.set_status(claim)

    # What kubelet reports

    def started(self, pod: Pod, devices: dict[str, list[Object]]) -> None:
        """`devices`: what each claim was prepared to, by its name in the pod."""

    def stopped(self, pod: Pod) -> None:
        """Its containers are to end."""

    def ended(self, pod: Pod) -> None:
        self._free(pod)
        self.schedule()
