"""Stand-in for kubelet's manager of resource claims, written from the protocol and from recordings of kubelet 1.36.

Belongs here: registration, health streams, Prepare and Unprepare over a pod's life, a restart of kubelet and a reboot
of the node. RULES has each rule of the protocol; a stand-in may be made without one, which a test must notice. What is
due stands in a calendar with the earliest and the latest moment. Who lets time pass decides on the moment: the test of
recordings takes theirs, a test of a driver the earliest. The API server and its other clients are in dra_control.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from typing import Any

Object = dict[str, Any]

RULES = {
    "first": "It calls the first version of the driver's list that it knows.",
    "back-off": "An offer that it refuses is looked at again after ever longer times, counted by the socket's path.",
    "newest": "Of several instances of a driver it calls the newest one that is connected.",
    "twice": "It registers a driver twice if the socket was there when kubelet started, and nobody served it.",
    "slices": "It deletes the node's slices at its start, and 30 s after the last connection is lost.",
    "health": "It opens the health stream whatever is offered, and again every 5 s while there is none.",
    "reserved": "A claim that is not reserved for the pod is not prepared.",
    "same name": "Nor is a claim while an older one of the same name is in the checkpoint.",
    "together": "One call has all claims of the pod that are not prepared.",
    "all or nothing": "If one of them fails or is left out of the answer, none is prepared, and all come again.",
    "once": "A claim that is prepared causes no call for a further pod.",
    "sandbox": "A pod whose sandbox lives causes no call, whatever restarts.",
    "retry": "After a failure it tries again by itself after 45 to 90 s, at once if the pod changes.",
    "last": "Unprepare follows the end of the claim's last pod.",
    "checkpoint": "Unprepare has the claims that the checkpoint has for the pod, whatever the API server has by now.",
    "reboot": "What is prepared is not in the checkpoint: after a reboot all claims of living pods are prepared again.",
    "rounding": "The scheduler rounds capacities by their policy. What is above the maximum fits nowhere.",
}
#: Seconds from the cause to the earliest and to the latest moment, as far as the recordings show them.
WINDOWS = {
    "sync": (0.0, 3.0), "retry": (45.0, 90.0), "stop": (0.0, 3.0), "stop once more": (0.5, 1.5),
    "stop again": (9.0, 17.0), "while it is called": (0.1, 0.1), "orphans": (59.0, 62.0),
    "register": (0.0, 2.3), "deregister": (0.0, 1.2), "notify": (0.0, 0.3),
    "slices at start": (0.0, 0.5), "slices lost": (29.5, 31.0), "health": (0.0, 0.3), "health again": (4.98, 5.02),
}  # fmt: skip
DEADLINES = {"GetInfo": 1, "NotifyRegistrationStatus": 5, "NodePrepareResources": 45, "NodeUnprepareResources": 45}
BACK_OFF = (1, 2, 3, 5, 8, 16, 32)
KNOWN = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
REGISTRATION, HEALTH = "pluginregistration.Registration", "v1alpha1.DRAResourceHealth/NodeWatchResources"


@dataclasses.dataclass(frozen=True)
class Call:
    """What kubelet does next: a call of `driver`, or with "slices" as its method a deletion of the node's slices."""

    method: str
    driver: Any = None
    claims: tuple[tuple[str, str, str], ...] = ()  #: namespace, name, uid
    request: tuple[tuple[str, Any], ...] = ()

    @property
    def deadline(self) -> float | None:
        """Seconds. The health stream has none."""
        return DEADLINES.get(self.method.rpartition("/")[2])

    def fields(self) -> Object:
        claims = [{"namespace": namespace, "name": name, "uid": uid} for namespace, name, uid in self.claims]
        return {**dict(self.request), **({"claims": claims} if claims else {})}


@dataclasses.dataclass(eq=False)
class Due:
    """Work that is due. `plan` says what would be called now, without an effect."""

    earliest: float
    latest: float
    plan: Callable[[], Call | None]
    run: Callable[[], None]


@dataclasses.dataclass
class Info:
    """A claim in the checkpoint. Only `prepared` is not written down."""

    key: tuple[str, str, str]
    pods: set[str]
    prepared: bool = False
    devices: list[Object] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Pod:
    """A pod of the node. `claims` are their names by their names in the pod."""

    object: Object
    claims: dict[str, str]
    sandbox: bool = False
    has_run: bool = False
    deleted: bool = False
    calling: bool = False
    tries: int = 0  #: of Unprepare
    events: list[str] = dataclasses.field(default_factory=list)

    @property
    def uid(self) -> str:
        return str(self.object["metadata"]["uid"])


@dataclasses.dataclass
class Instance:
    """A registered driver."""

    driver: Any
    version: str


class Kubelet:
    """`time` keeps the calendar (`due`, `now`) and makes the calls; `control` has the claims and hears of pods' ends.

    `control`: `claim(namespace, name)` raises LookupError, `delete_slices()`, `started(pod, devices)`, `ended(pod)`.
    """

    def __init__(self, time: Any, control: Any, without: Collection[str] = ()) -> None:
        self.time, self.control = time, control
        self.rules = set(RULES) - set(without)
        self.checkpoint: dict[str, Info] = {}  #: by uid
        self.pods: dict[str, Pod] = {}
        self.sockets: dict[str, Any] = {}  #: drivers by their registration sockets
        self.up = False
        self.kills = 0
        self._forget()

    def _forget(self) -> None:
        self.instances: dict[str, Instance] = {}  #: by path, the newest last
        self.refused: dict[str, tuple[int, float]] = {}
        self.stale: set[str] = set()
        for info in self.checkpoint.values():
            info.prepared = "reboot" not in self.rules and info.prepared

    # Its own life

    def start(self) -> None:
        self.up = True
        if "slices" in self.rules:
            self._due("slices at start", "slices at start", lambda: Call("slices"), self.control.delete_slices)
        for path, driver in self.sockets.items():
            self.stale |= set() if driver.alive else {path}
            self.appear(path, driver)
        for pod in list(self.pods.values()):
            over = pod.deleted or (pod.has_run and not pod.sandbox and pod.object["spec"]["restartPolicy"] == "Never")
            self._stop(pod) if over else self.add(pod)
        known = {uid for info in self.checkpoint.values() for uid in info.pods}
        for uid in known - set(self.pods):
            gone = Pod({"metadata": {"uid": uid}}, {}, deleted=True)
            self._due("orphans", f"stop {uid}", lambda pod=gone: self._unprepare(pod), lambda pod=gone: self._ends(pod))  # type: ignore[misc]

    def kill(self) -> None:
        """Nobody takes the answers of the calls that are under way."""
        self.up = False
        self.time.due.clear()
        self.kills += 1
        for pod in self.pods.values():
            pod.calling = False
        self._forget()

    def reboot(self) -> None:
        for pod in self.pods.values():
            pod.sandbox = False

    def _due(self, window: str, what: str, plan: Callable[[], Call | None], run: Callable[[], None]) -> None:
        if self.up:
            earliest, latest = WINDOWS[window]
            self.time.due[what] = Due(self.time.now + earliest, self.time.now + latest, plan, run)

    def _ring(self, window: str, what: str, call: Call, done: Callable[[Object | None, str], None]) -> None:
        """A call that is due, of a driver that may have ended by then."""
        self._due(window, what, lambda: call if call.driver.alive else None, lambda: self._call(call, done))

    def _call(self, call: Call, done: Callable[[Object | None, str], None]) -> None:
        kills = self.kills
        self.time.call(call, lambda *answer: done(*answer) if self.kills == kills else None)

    # Drivers

    def appear(self, path: str, driver: Any) -> None:
        """A driver serves the socket `path`."""
        self.sockets[path] = driver
        if not driver.alive:
            return
        self._register(path)
        number, last = self.refused.get(path, (0, 0.0))
        if number and "back-off" in self.rules:
            due = self.time.due[f"register {path}"]
            shift = max(0.0, last + BACK_OFF[number - 1] - due.earliest)
            due.earliest, due.latest = due.earliest + shift, due.latest + shift

    def vanish(self, path: str) -> None:
        """The socket is gone, and soon with it the registration."""
        self.sockets.pop(path, None)
        self._due("deregister", f"register {path}", lambda: None, lambda: self.instances.pop(path, None))

    def lost(self) -> None:
        """A driver's process has ended."""
        if self.instances and not self._connected() and "slices" in self.rules:
            self._due("slices lost", "slices lost", lambda: Call("slices"), self.control.delete_slices)

    def _connected(self) -> list[Instance]:
        return [one for one in self.instances.values() if one.driver.alive]

    def _newest(self) -> Instance | None:
        found = self._connected() or list(self.instances.values())
        return found[-1 if "newest" in self.rules else 0] if found else None

    def _register(self, path: str) -> None:
        call = Call(f"{REGISTRATION}/GetInfo", self.sockets[path])
        self._ring("register", f"register {path}", call, lambda *answer: self._offered(path, call.driver, *answer))

    def _offered(self, path: str, driver: Any, info: Object | None, error: str) -> None:
        offered = [one for one in (info or {}).get("supported_versions", ()) if one in KNOWN]
        if error or self.sockets.get(path) is not driver:
            return
        fields: tuple[tuple[str, Any], ...] = (("plugin_registered", True),)
        if not offered:
            fields = (("error", "RegisterPlugin error -- plugin validation failed with err: invalid supported gRPC"),)
        call = Call(f"{REGISTRATION}/NotifyRegistrationStatus", driver, request=fields)
        self._due("notify", f"notify {path}", lambda: call, lambda: self._call(call, lambda *_: None))
        self.instances.pop(path, None)
        if not offered:
            number, _ = self.refused.get(path, (0, 0.0))
            self.refused[path] = (min(number + 1, len(BACK_OFF)), self.time.now)
            self.appear(path, driver)
            return
        self.refused.pop(path, None)
        self.instances[path] = Instance(driver, offered[0 if "first" in self.rules else -1])
        self.time.due.pop("slices lost", None)
        if path in self.stale and "twice" in self.rules:
            self._register(path)
        self.stale.discard(path)
        self._watch(path, "health")

    def _watch(self, path: str, window: str) -> None:
        call = Call(HEALTH, self.sockets[path])
        if "health" in self.rules:
            self._ring(window, f"health {path}", call, lambda *_: self._watched(path))

    def _watched(self, path: str) -> None:
        """The stream has ended. While it lasts, `done` is not called."""
        if path in self.instances and path in self.sockets:
            self._watch(path, "health again")

    # Pods

    def add(self, pod: Pod, window: str = "sync") -> None:
        """The pod is bound to the node, or has changed."""
        self.pods[pod.uid] = pod
        self._due(window, f"sync {pod.uid}", lambda: self._decide(pod)[0], lambda: self._sync(pod))

    def delete(self, pod: Pod, by_force: bool = False) -> None:
        """The pod is to end. Deleted by force, it is gone from the API server before."""
        pod.deleted = True
        self._stop(pod)
        if by_force:
            self.pods.pop(pod.uid, None)

    def finish(self, pod: Pod, seconds: float) -> None:
        """The pod's containers end by themselves, after `seconds`."""
        self._stop(pod)
        due = self.time.due[f"stop {pod.uid}"]
        due.earliest, due.latest = due.earliest + seconds - 1, due.latest + seconds

    def _decide(self, pod: Pod) -> tuple[Call | None, str]:
        """The call that the pod's preparation takes, or the reason why there is none. ("", None) if none is needed."""
        if pod.sandbox and "sandbox" in self.rules:
            return None, ""
        keys, namespace = [], pod.object["metadata"]["namespace"]
        for name in pod.claims.values():
            try:
                claim = self.control.claim(namespace, name)
            except LookupError as error:
                return None, f"fetch ResourceClaim {name}: {error}"
            key = (namespace, name, claim["metadata"]["uid"])
            reserved = {one["uid"] for one in claim.get("status", {}).get("reservedFor", ())}
            if pod.uid not in reserved and "reserved" in self.rules:
                return None, f"pod {pod.uid} is not allowed to use ResourceClaim {name}"
            older = [info for info in self.checkpoint.values() if info.key[:2] == key[:2] and info.key != key]
            if older and "same name" in self.rules:
                return None, f"old ResourceClaim with same name named and different UID {older[0].key[2]} still exists"
            keys.append(key)
        known = {uid: info.prepared for uid, info in self.checkpoint.items()}
        todo = [key for key in keys if not known.get(key[2]) or "once" not in self.rules]
        instance = self._newest()
        if todo and instance is None:
            return None, "DRA driver is not registered"
        if todo and instance is not None and not instance.driver.alive:
            return None, "NodePrepareResources: rpc error: code = Unavailable"
        if not todo or instance is None:
            return None, ""
        chosen = tuple(todo if "together" in self.rules else todo[:1])
        return Call(f"{instance.version}/NodePrepareResources", instance.driver, chosen), ""

    def _sync(self, pod: Pod) -> None:
        call, reason = self._decide(pod)
        if not reason or "not registered" in reason or "Unavailable" in reason:
            self._remember(pod)
        if reason:
            self._failed(pod, reason)
        elif call is None:
            self._runs(pod)
        else:
            pod.calling = True
            self._call(call, lambda answer, error: self._prepared(pod, call, answer, error))

    def _remember(self, pod: Pod) -> None:
        namespace = pod.object["metadata"]["namespace"]
        for name in pod.claims.values():
            uid = self.control.claim(namespace, name)["metadata"]["uid"] if not pod.sandbox else ""
            if uid:
                self.checkpoint.setdefault(uid, Info((namespace, name, uid), set())).pods.add(pod.uid)

    def _prepared(self, pod: Pod, call: Call, answer: Object | None, error: str) -> None:
        pod.calling = False
        answers = (answer or {}).get("claims", {})
        errors = [error] if error else []
        for _, name, uid in call.claims:
            one = answers.get(uid)
            if one is None or one.get("error"):
                errors.append(f"{name}: {one['error'] if one else 'left out'}")
            if uid in self.checkpoint and one:
                self.checkpoint[uid].devices += one.get("devices", [])
        if errors and "all or nothing" in self.rules:
            self._failed(pod, f"NodePrepareResources failed for ResourceClaim {errors[0]}")
            return
        for _, _, uid in call.claims:
            if uid in self.checkpoint:
                self.checkpoint[uid].prepared = True
        self._sync(pod) if "together" not in self.rules else self._runs(pod)

    def _failed(self, pod: Pod, reason: str) -> None:
        pod.events.append(f"Failed to prepare dynamic resources: prepare dynamic resources: {reason}")
        if "retry" in self.rules and not pod.deleted:
            self.add(pod, "retry")

    def _runs(self, pod: Pod) -> None:
        if not pod.sandbox:
            pod.sandbox = pod.has_run = True
            uids = [info.key[2] for info in self._infos(pod)]
            self.control.started(pod, {name: self._devices(pod, uids, name) for name in pod.claims})

    def _infos(self, pod: Pod) -> list[Info]:
        return [info for info in self.checkpoint.values() if pod.uid in info.pods]

    def _devices(self, pod: Pod, uids: list[str], name: str) -> list[Object]:
        """What the claim with this name in the pod was prepared to."""
        return [
            one
            for uid in uids
            if self.checkpoint[uid].key[1] == pod.claims[name]
            for one in self.checkpoint[uid].devices
        ]

    def _stop(self, pod: Pod, window: str = "stop") -> None:
        if not pod.calling:
            self.time.due.pop(f"sync {pod.uid}", None)
        self._due(window, f"stop {pod.uid}", lambda: self._unprepare(pod), lambda: self._ends(pod))

    def _unprepare(self, pod: Pod) -> Call | None:
        last = [one for one in self._infos(pod) if one.pods == {pod.uid} or "last" not in self.rules]
        instance = self._newest()
        if pod.calling or not last or instance is None or not instance.driver.alive:
            return None
        keys = [self._named(info.key) for info in last]
        return Call(f"{instance.version}/NodeUnprepareResources", instance.driver, tuple(keys))

    def _named(self, key: tuple[str, str, str]) -> tuple[str, str, str]:
        if "checkpoint" in self.rules:
            return key
        try:
            return (*key[:2], self.control.claim(*key[:2])["metadata"]["uid"])
        except LookupError:
            return key

    def _ends(self, pod: Pod) -> None:
        """The pod's containers have ended."""
        if pod.calling:
            self._stop(pod, "while it is called")
            return
        self.control.stopped(pod)
        pod.sandbox = False
        call = self._unprepare(pod)
        waits = any(info.pods == {pod.uid} for info in self._infos(pod))
        if call is not None:
            pod.calling = True
            self._call(call, lambda answer, error: self._unprepared(pod, call, answer, error))
        elif waits:
            self._again(pod)
        else:
            self._over(pod)

    def _unprepared(self, pod: Pod, call: Call, answer: Object | None, error: str) -> None:
        pod.calling = False
        answers = (answer or {}).get("claims", {})
        if error or any(answers.get(uid, {"error": "left out"}).get("error") for _, _, uid in call.claims):
            self._again(pod)
        else:
            self._over(pod)

    def _again(self, pod: Pod) -> None:
        """Failed, without an event."""
        pod.tries += 1
        self._stop(pod, "stop once more" if pod.tries == 1 else "stop again")

    def _over(self, pod: Pod) -> None:
        for info in self._infos(pod):
            info.pods.discard(pod.uid)
            if not info.pods:
                del self.checkpoint[info.key[2]]
        self.pods.pop(pod.uid, None)
        self.control.ended(pod)
