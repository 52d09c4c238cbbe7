"""The stand-in for kubelet and scheduler makes the calls of a real kubelet 1.36: 26 recordings, and no rule too many.

data/recorded/dra.json.gz has what was done and each call, of recordings of Kubernetes 1.36.2 with containerd 2.1.9 and
a driver in Python (November 2026, one run each). The recording gives causes and moments; the calls, whom they reach,
their claims, order and deadlines are the stand-in's. A pod's `activeDeadlineSeconds` is how long its container ran.
"""

from __future__ import annotations

import functools
import gzip
import json
from collections.abc import Callable, Collection
from typing import Any

import pytest
from checkout import DATA
from dra_control import GATED, Control, Store
from dra_kubelet import HEALTH, RULES, Call, Due, Object, Pod
from dra_scheduler import GATE

OFF = {"12-gate-off-apiserver": ("server",), "12-gate-off-scheduler": ("scheduler",)}
CLASS = {"spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.rec.example.com'"}}]}}
EVENTS = (
    "is forbidden",
    "is not registered",
    "Unavailable",
    "is not allowed to use",
    "old ResourceClaim with same name",
)
#: Recordings that a stand-in without the rule does not follow.
SHOWN = {
    "first": "01", "back-off": "01", "newest": "07", "twice": "08-", "slices": "07", "health": "10", "reserved": "09",
    "same name": "14", "together": "17", "all or nothing": "17", "once": "04", "sandbox": "07", "retry": "06-",
    "last": "04", "checkpoint": "14", "reboot": "08b-as-after-a-reboot-driver", "rounding": "03",
}  # fmt: skip


@functools.lru_cache
def recordings() -> dict[str, Any]:
    with gzip.open(DATA / "recorded/dra.json.gz", "rt") as file:
        return json.load(file)  # type: ignore[no-any-return]


class Driver:
    """An instance of the recording's driver. `health`: whether it serves the stream, and whether it ends it at once."""

    def __init__(self, name: str, health: tuple[bool, bool] = (False, False)) -> None:
        self.name, self.health, self.alive = name, health, True
        self.stream: Callable[[], None] | None = None


class RecordedStore(Store):
    """New claims get the uids that the recording has for their names. `refuses` as a server's authorizer may."""

    def __init__(self, dropped: Collection[str], uids: dict[str, str]) -> None:
        super().__init__(dropped)
        self.uids, self.refuses = uids, False

    def create(self, claim: Object) -> Object:
        name = claim["metadata"]["name"]
        uid = claim["metadata"].get("uid") or self.uids.get(name) or f"of-{name}"
        return super().create({**claim, "metadata": {**claim["metadata"], "uid": uid}})

    def claim(self, namespace: str, name: str) -> Object:
        if self.refuses:
            raise LookupError("is forbidden")
        return super().claim(namespace, name)


class RecordedControl(Control):
    """Claims have the names of the recording, and containers end when theirs did."""

    def __init__(self, recording: Recording, gates: Collection[str], without: Collection[str]) -> None:
        super().__init__(recording.store, recording, gates, without)
        self.recording = recording

    def name_of(self, prefix: str) -> str:
        length, now = len(prefix) + 5, self.recording.now
        later = (one for step in self.recording.steps if step["s"] >= now for one, _ in step.get("claims", ()))
        return next((one for one in later if one.startswith(prefix) and len(one) == length), f"{prefix}00000")

    def started(self, pod: Pod, devices: dict[str, list[Object]]) -> None:
        if "activeDeadlineSeconds" in pod.object["spec"]:
            self.kubelet.finish(pod, pod.object["spec"]["activeDeadlineSeconds"])


class Recording:
    """A control plane and kubelet to which a recording happens. `now` is the second of the recording."""

    def __init__(self, name: str, without: Collection[str] = ()) -> None:
        recorded = recordings()[name]
        self.steps, self.allocations = recorded["steps"], recorded["allocations"]
        self.now, self.due, self.step = 0.0, dict[str, Due](), dict[str, Any]()
        self.made: list[Call] = []
        off = OFF.get(name, ())
        uids = {one: uid for step in self.steps for one, uid in step.get("claims", ())}
        self.store = RecordedStore(GATED[GATE] if "server" in off else (), uids)
        self.control = RecordedControl(self, () if "scheduler" in off else (GATE,), without)
        self.kubelet = self.control.kubelet
        self.health = (False, False)
        self.pods: dict[str, Any] = {}
        self.store.classes["rec-gpu"] = CLASS
        self._begin()

    def _begin(self) -> None:
        """The node as it is before the first step: kubelet runs, and a driver unless one is started first."""
        first = next(
            (step for step in self.steps if {"start", "end", "stopped"} & set(step) and "kubelet" not in step.values()),
            {},
        )
        self.slice = next(one["slice"] for one in recordings()["02-one-pod-one-claim"]["steps"] if "slice" in one)
        self._publish(self.slice)
        self.kubelet.start()
        self.due.clear()
        self.drivers: dict[str, Driver] = {}
        if first.get("start") != "driver":
            self.drivers["driver"] = driver = Driver("driver")
            self.kubelet.sockets["driver"] = driver
            self.kubelet._offered("driver", driver, {"supported_versions": ["v1.DRAPlugin"]}, "")
            self.due.pop("notify driver")

    # Time

    def call(self, call: Call, done: Callable[[Object | None, str], None]) -> None:
        """Answer as the recording's driver did, after as long as it took."""
        self.made.append(call)
        if call.method == HEALTH:
            call.driver.stream = functools.partial(done, None, "")
            if call.driver.health != (True, False):
                self._later("stream", 0.0, call.driver.stream)
            return
        assert "call" in self.step, f"{self.now:.2f} s: the stand-in makes {call}, kubelet none"
        took, answer, error = self.step["took"], self.step["answer"], self.step["error"] or ""
        if call.deadline is not None and took > call.deadline:
            took, answer, error = call.deadline, None, "DeadlineExceeded"
        self._later("answer", took, lambda: done(answer, error))

    def _later(self, what: str, seconds: float, run: Callable[[], None]) -> None:
        moment = self.now + seconds
        self.due[f"{what} {len(self.due)} {moment} {id(run)}"] = Due(moment, moment, lambda: None, run)

    def _seen(self, call: Call | None) -> bool:
        """Whether the recording would have the call. Health streams that the driver does not serve are not in it."""
        return call is not None and not (call.method == HEALTH and not call.driver.health[0])

    def pass_until(self, moment: float) -> None:
        """Do what is due at its latest moment. A call would be missing in the recording."""
        while True:
            what, due = min(self.due.items(), key=lambda item: item[1].latest, default=("", None))
            if due is None or due.latest > moment:
                break
            del self.due[what]
            self.now = max(self.now, due.latest)
            call, before = due.plan(), set(self.due.values())
            assert not self._seen(call), f"kubelet would have made {call} for {what} by {due.latest:.2f} s"
            due.run()
            for further in set(self.due.values()) - before:  # it may have happened earlier
                further.earliest -= due.latest - due.earliest
        self.now = moment

    # What happens

    def run(self) -> None:
        for step in self.steps:
            self.pass_until(step["s"])
            self.step = step
            for kind in set(step) & {
                "create",
                "delete",
                "slice",
                "start",
                "end",
                "stopped",
                "reboot",
                "behave",
                "nudge",
                "event",
                "call",
                "removed",
            }:
                getattr(self, f"_{kind}")(step)
        self.pass_until(self.now + 3)

    def _call(self, step: Object) -> None:
        claims = {tuple(one) for one in step["claims"]}
        wanted = (step["call"], step["instance"], claims)
        self._makes(
            wanted, lambda call: (call.method, getattr(call.driver, "name", ""), {key[1:] for key in call.claims})
        )
        deadline = self.made[-1].deadline
        assert (step["deadline"] is None) == (deadline is None)
        assert deadline is None or deadline - 0.5 < step["deadline"] <= deadline
        for _, uid in step["claims"]:
            self._allocated(uid)

    def _removed(self, step: Object) -> None:
        self._makes("slices", lambda call: call.method)

    def _makes(self, wanted: Any, of: Callable[[Call], Any]) -> None:
        """Something that is due now makes this call, maybe after a pod of the same claim has ended without one."""
        while True:
            plans = {what: due.plan() for what, due in self.due.items() if due.earliest <= self.now + 0.05}
            found = next((what for what, call in plans.items() if call is not None and of(call) == wanted), None)
            silent = next((what for what, call in plans.items() if call is None and what.startswith("stop ")), None)
            if found is not None or silent is None:
                break
            self.due.pop(silent).run()
        assert found is not None, f"{self.now:.2f} s: kubelet made {wanted}, the stand-in {plans} of {list(self.due)}"
        self.due.pop(found).run()

    def _allocated(self, uid: str) -> None:
        """The stand-in's scheduler has given the claim what the real one gave."""
        for claim in self.store.listed():
            if claim["metadata"]["uid"] == uid and "allocation" in claim.get("status", {}) and uid in self.allocations:
                results = claim["status"]["allocation"]["devices"]["results"]
                assert [{key: one[key] for key in one if key != "shareID"} for one in results] == self.allocations[uid]

    def _create(self, step: Object) -> None:
        made = step["create"]
        kind, name = made["kind"], made["metadata"]["name"]
        if kind == "Pod":
            self.pods[name] = self.control.create(made)
        elif kind == "ResourceClaim":
            self.store.create(made)
        else:
            (self.store.templates if kind == "ResourceClaimTemplate" else self.store.classes)[name] = made
        self.control.schedule()

    def _delete(self, step: Object) -> None:
        kind, _, name = step["delete"].partition("/")
        if kind == "Pod" and name in self.pods:
            self.control.delete(self.pods.pop(name), step.get("force", False))
        elif kind == "ResourceClaim":
            self.store.claims.pop(("default", name), None)

    def _slice(self, step: Object) -> None:
        self._publish(step["slice"])
        self.control.slices_changed()

    def _publish(self, devices: list[Object]) -> None:
        spec = {"driver": "gpu.rec.example.com", "pool": {"name": "anchor-node"}, "devices": devices}
        self.store.slices = [{"spec": spec}]

    def _start(self, step: Object) -> None:
        name = step["start"]
        if name == "kubelet":
            self.kubelet.start()
            return
        self.drivers[name] = Driver(name, self.health)
        self.kubelet.appear(name, self.drivers[name])

    def _stopped(self, step: Object) -> None:
        """A driver that ends in order removes its sockets."""
        self._end({"end": step["stopped"]})
        self.kubelet.vanish(step["stopped"])

    def _end(self, step: Object) -> None:
        if step["end"] == "kubelet":
            self.kubelet.kill()
        elif self.drivers[step["end"]].alive:
            self.drivers[step["end"]].alive = False
            self.kubelet.lost()

    def _reboot(self, step: Object) -> None:
        self.kubelet.reboot()

    def _behave(self, step: Object) -> None:
        self.health = ("health" in step["behave"], "health_end" in step["behave"])
        for driver in self.drivers.values():
            driver.health = self.health
            if all(driver.health) and driver.stream:
                self._later("stream", 0.2, driver.stream)

    def _nudge(self, step: Object) -> None:
        self.kubelet.add(self.pods[step["nudge"]])

    def _event(self, step: Object) -> None:
        """A preparation failed before a call. The API server's authorizer may not have seen the pod yet (forbidden)."""
        pod = self.pods[step["event"]]
        self.store.refuses = "is forbidden" in step["message"]
        self.due.pop(f"sync {pod.uid}").run()
        self.store.refuses = False
        part = next(one for one in EVENTS if one in step["message"])
        assert pod.events and part in pod.events[-1], f"{step} {pod.events}"


@pytest.mark.parametrize("name", sorted(recordings()))
def test_calls_are_those_of_the_recording(name: str) -> None:
    Recording(name).run()


@pytest.mark.parametrize("rule", RULES)
def test_no_recording_is_followed_without_each_rule(rule: str) -> None:
    (name,) = (one for one in recordings() if one.startswith(SHOWN[rule]))
    with pytest.raises(AssertionError):
        Recording(name, without=(rule,)).run()
