"""The agent at the API server: one thread follows this node's pods, another one answers schedulers.

Belongs here: starting and stopping the two threads, and the order of one round of answers. The agent logs each
condition when it begins and when it is over. After a round that fails it pauses, up to LONGEST seconds, and tries
again. What an answer contains belongs to vgpu.plugin.apiserver.scheduler_protocols.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable
from functools import partial

from vgpu.config import incidents, paths, rounds
from vgpu.config.errors import VgpuError, shown
from vgpu.config.pods import Pod
from vgpu.config.request import CORE_LIMITS
from vgpu.config.settings import Settings
from vgpu.hook.ledger.lock import Lock
from vgpu.node.service.log import Conditions, Log
from vgpu.plugin.apiserver import handover, pod_complaints, pod_incidents, scheduler_protocols
from vgpu.plugin.apiserver.client import Api, ApiError, Object
from vgpu.plugin.apiserver.node_annotations import NodeAnnotations
from vgpu.plugin.apiserver.node_condition import NodeCondition
from vgpu.plugin.apiserver.node_labels import NodeLabels
from vgpu.plugin.apiserver.outage import Outage
from vgpu.plugin.apiserver.pod_complaints import Complaint, InForce
from vgpu.plugin.apiserver.pod_incidents import HOUR, Notice, Repeats
from vgpu.plugin.apiserver.pod_objects import PodObject
from vgpu.plugin.apiserver.pods import PodInformer, node_path

#: Seconds between two reads of the claims while a scheduler waits; they grow with the wait, up to SLOW_TICK.
TICK, SLOW_TICK = 1.0, 5.0
PAUSE = 0.1  #: seconds after a wake-up, so that several changes at once make one round
REST = 15.0  #: seconds between rounds while no scheduler waits; the node's heartbeat needs them
LOOK = 0.7  #: seconds between two looks whether a claim or a grant has come or gone, which makes a round due
LONGEST = 60.0  #: seconds, the longest pause after a round that failed
RECONNECT = 30.0  #: seconds between attempts to find an API server
STOP_PATIENCE = 2.0  #: seconds to wait for each thread
INSTALL = "; install python3-kubernetes (Debian, Ubuntu) or run pip install kubernetes, or set kubernetes.api: never"
MAX_MESSAGE = 1000  #: characters of an event's message; Kubernetes allows 1024
MOST_NOTICES = 25  #: events about incidents that one round writes; the next rounds write the others
MOST_COMPLAINTS = 16  #: events about annotations that a pod gets in an hour: its owner may change them all the time


def _nobody() -> None:
    return


def _untold(reason: str) -> None:
    del reason


class Agent:
    """`reasons` returns card uuid -> why the card is unhealthy; `pod_over` is called when a pod of this node is over.

    `faults` returns the cards that are out of order themselves: card uuid -> card and fault in words. `upgrade` gets
    why the driver must not be used, or "", each time that the agent has read the node's labels. `not_known` returns why
    the health of the cards is not known, or "". `claims_seen` is the PodInformer's.
    VgpuError where the node has no name.
    """

    def __init__(
        self,
        settings: Settings,
        log: Log,
        node_name: str,
        reasons: Callable[[], dict[str, str]] = dict,
        clock: Callable[[], float] = time.time,
        pod_over: Callable[[], None] = _nobody,
        faults: Callable[[], dict[str, str]] = dict,
        upgrade: Callable[[str], None] = _untold,
        not_known: Callable[[], str] = str,
        claims_seen: Callable[[str, frozenset[str]], None] | None = None,
    ) -> None:
        if not node_name:
            do = "set NODE_NAME from spec.nodeName, or name the node in vgpuctl config apply --node"
            raise VgpuError("NODE_NAME", expected="this node's name in Kubernetes", found="nothing", do=do)
        self.settings = settings
        self.node = node_name
        self.conditions = Conditions(log)
        self.clock = clock
        self.dialects = scheduler_protocols.enabled(settings.texts("kubernetes.dialects"))
        self._stopped = threading.Event()
        self._woken = threading.Event()
        self.outage = Outage(self.conditions)
        self.informer = PodInformer(
            settings, node_name, self.conditions, self._stopped, self._woken.set, pod_over, self.outage, claims_seen
        )
        self.node_annotations = NodeAnnotations(settings, node_name, reasons, clock)
        self.node_labels = NodeLabels(
            node_name, self.conditions, upgrade, self.node_annotations.inventory, reasons,
            NodeCondition(node_path(node_name), faults, not_known, clock),
        )  # fmt: skip
        self._api: Api | None = None
        self._rounds = 0
        self._unlocked: set[str] = set()
        self._complained: dict[str, tuple[float, set[Complaint]]] = {}  # pod uid -> its events of an hour from then
        self.faults = faults
        self._repeats = Repeats()
        self._judged: dict[str, tuple[str, InForce]] = {}  # pod uid -> the state for which all events are written
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Returns at once: the first thread loads the client and connects."""
        self._start("agent", self._connect)

    def stop(self) -> None:
        """End both threads. A thread that waits for a silent server is left behind and changes nothing afterwards."""
        self._stopped.set()
        self._woken.set()
        self.informer.stop()
        if self._api is not None:
            self._api.interrupt()
        for thread in self._threads:
            thread.join(STOP_PATIENCE)

    def pods_gone(self) -> set[str]:
        """The uids of pods of this node that are over according to the API server."""
        return self.informer.gone()

    def handed_over(self, grant_id: str) -> None:
        """kubelet has the answer to an Allocate, so a container of some pod will start soon. Never blocks."""
        del grant_id
        self._woken.set()

    def _start(self, name: str, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _connect(self) -> None:
        kubeconfig = self.settings.text("kubernetes.kubeconfig")
        while not self._stopped.is_set():
            api = self._new_api(kubeconfig)
            if api is not None:
                self._api = api
                self._start("pods", partial(self.informer.run, api))
                return self._answer(api)
            self._stopped.wait(RECONNECT)
        return None

    def _new_api(self, kubeconfig: str) -> Api | None:
        """None while no usable configuration names a server."""
        try:
            api = Api(kubeconfig)
        except (VgpuError, ImportError) as error:
            do = INSTALL if isinstance(error, ImportError) else ""
            self.conditions.set("api", f"no access to the API server: {shown(str(error))}{do}")
            return None
        self.conditions.set("api", "")
        return api

    def _answer(self, api: Api) -> None:
        again = TICK
        while not self._stopped.is_set():
            seen = self._stamp()
            try:
                pause, again = self.round(api), TICK
                self.conditions.set("answers", "")
                self.outage.set("answers", "")
            except (ApiError, VgpuError, OSError) as error:
                pause = again = min(again * 2, LONGEST)
                if isinstance(error, ApiError) and error.is_outage:
                    self.outage.set("answers", str(error))
                else:
                    self.conditions.set("answers", f"schedulers are not answered: {error}")
                    self.outage.set("answers", "")
            self._rest(pause, seen)
            self._woken.clear()
            self._stopped.wait(PAUSE)

    def _rest(self, pause: float, seen: tuple[int, ...]) -> None:
        """Until somebody wakes the thread, claims or grants have changed since `seen`, or `pause` seconds are over."""
        end = time.monotonic() + pause
        while not self._woken.wait(max(min(LOOK, end - time.monotonic()), 0.0)):
            if time.monotonic() >= end or self._stamp() != seen:
                return

    def _stamp(self) -> tuple[int, ...]:
        """Changes when a claim or a grant comes or goes."""
        found = []
        for directory in (paths.containers(self.settings.run_dir), paths.grants(self.settings.state_dir)):
            try:
                found.append(os.stat(directory).st_mtime_ns)
            except OSError:
                found.append(0)
        return tuple(found)

    def round(self, api: Api) -> float:
        """Do what is due; returns the seconds until the next round. A step that fails does not prevent the others."""
        pods = self.informer.pods()
        self._forget({pod.pod.uid for pod in pods})
        failed: list[Exception] = []
        for work in (self._look_at_node, self._release, self._answer_pods, self._write_node_annotations):
            try:
                work(api, pods)
            except (ApiError, VgpuError) as error:
                failed.append(error)
        self._give_notice(api, pods)
        self._complain(api, pods)
        if failed:
            raise failed[0]
        waits = any(scheduler_protocols.awaits_answer(pod, self.dialects) for pod in pods)
        self._rounds = self._rounds + 1 if waits else 0
        return min(TICK * (1 + self._rounds / 20), SLOW_TICK) if waits else REST

    def _look_at_node(self, api: Api, pods: list[PodObject]) -> None:
        del pods
        self.node_labels.look(api)

    def _write_node_annotations(self, api: Api, pods: list[PodObject]) -> None:
        self.node_annotations.write(api, pods)

    def _forget(self, present: set[str]) -> None:
        self._unlocked &= present
        for known in (self._complained, self._judged):
            for uid in set(known) - present:
                known.pop(uid, None)

    def _release(self, api: Api, pods: list[PodObject]) -> None:
        """Release the locks of the node that schedulers took to bind `pods` here: they have arrived."""
        new = [
            pod
            for pod in pods
            if pod.pod.uid not in self._unlocked and scheduler_protocols.may_lock(pod, self.dialects)
        ]
        if new:
            released = self.node_annotations.release(api, new, self.dialects)
            if released:
                self.conditions.log.info("released", locks=", ".join(released), node=self.node)
            self._unlocked.update(pod.pod.uid for pod in new)

    def _answer_pods(self, api: Api, pods: list[PodObject]) -> None:
        """Answer the schedulers of the pods that have their devices, or will never have them."""
        waiting = [
            pod for pod in pods if scheduler_protocols.awaits_answer(pod, self.dialects) and self._is_unlocked(pod)
        ]
        if not waiting:
            return
        have = handover.pods_with_devices(self.settings.run_dir, self.settings.state_dir)
        if any(pod.pod.uid in have for pod in waiting):
            with Lock(self.settings.run_dir):  # a hook at work writes its grants first, and then its claim
                have = handover.pods_with_devices(self.settings.run_dir, self.settings.state_dir)
        failed: ApiError | None = None
        for pod in waiting:
            try:
                self._patch(api, pod, pod.pod.uid in have)
            except ApiError as error:
                failed = error if error.kind not in ("missing", "conflict") else failed
        if failed:
            raise failed

    def _is_unlocked(self, pod: PodObject) -> bool:
        """Whether `pod`'s lock was handled; after the pod's answer nothing shows that the lock was taken for it."""
        return pod.pod.uid in self._unlocked or not scheduler_protocols.may_lock(pod, self.dialects)

    def _patch(self, api: Api, pod: PodObject, handed_over: bool) -> None:
        annotations, labels = scheduler_protocols.due(pod, handed_over, self.dialects)
        if not annotations and not labels:
            return
        metadata: Object = {"uid": pod.pod.uid}  # the server refuses the patch if another pod has the name now
        if annotations:
            metadata["annotations"] = dict(annotations)
        if labels:
            metadata["labels"] = dict(labels)
        api.patch(pod.path, {"metadata": metadata})
        pod.annotations.update(annotations)  # until the watch delivers the same change
        pod.labels.update(labels)

    def _complain(self, api: Api, pods: list[PodObject]) -> None:
        """Write an event on each pod for each of its annotations that has no effect, for kubectl describe."""
        wishing = any(key in pod.annotations for pod in pods for key in CORE_LIMITS)
        shares = handover.shares_in_force(self.settings.run_dir) if wishing else {}
        served = self._served(pods)
        for pod in pods:
            in_force = _by_name(pod.pod, shares.get(pod.pod.uid, {}))
            state = (pod.version, in_force)
            if pod.ended or self._judged.get(pod.pod.uid) == state:
                continue
            found = pod_complaints.complaints(pod.pod, self.node, self.dialects, self.settings, in_force)
            if served is not None:
                own = served.get(pod.pod.uid, set())
                found += pod_complaints.without_hook(pod.pod, pod.running, own, self.settings)
            if all(self._write_event(api, pod, complaint) for complaint in found):
                self._judged[pod.pod.uid] = state

    def _served(self, pods: list[PodObject]) -> dict[str, set[str]] | None:
        """Pod uid -> its containers that the hook was called for; None if that is not known, or no pod needs it.

        The hook claims before a container's program starts. So a container that runs has a claim, or had one.
        """
        if not any(pod.running and self._judged.get(pod.pod.uid, ("", {}))[0] != pod.version for pod in pods):
            return None
        return handover.containers_with_devices(self.settings.run_dir, self.settings.state_dir)

    def _give_notice(self, api: Api, pods: list[PodObject]) -> None:
        """Write an event on each pod whose container met an incident, or uses a card that is out of order."""
        present = self._notices()
        by_uid = {pod.pod.uid: pod for pod in pods}
        due = [one for one in present if one.pod_uid in by_uid and self._repeats.is_due(one)]
        for one in due[:MOST_NOTICES]:
            content = (one.complaint.reason, one.subject, one.content)
            if self._post_event(api, by_uid[one.pod_uid], one.complaint, content):
                self._repeats.written(one)
        self._repeats.forget(present, self.clock())

    def _notices(self) -> list[Notice]:
        """The incidents of vgpud's last round, and the containers on faulty cards."""
        try:
            found = list(pod_incidents.of_incidents(incidents.of_record(rounds.read(self.settings.run_dir))))
        except (OSError, VgpuError):
            found = []  # without vgpud nobody finds incidents; the exporter shows that it is away
        faults = self.faults()
        if faults:
            found += pod_incidents.of_faults(handover.claims_of(self.settings.run_dir), faults, self.clock())
        return found

    def _write_event(self, api: Api, pod: PodObject, complaint: Complaint) -> bool:
        """Write an event unless it was written before, or the pod has had its events of this hour.

        False when it has to be tried again.
        """
        now = self.clock()
        since, written = self._complained.get(pod.pod.uid, (now, set()))
        if abs(now - since) >= HOUR:
            since, written = now, set()
        self._complained[pod.pod.uid] = since, written
        if complaint not in written and len(written) < MOST_COMPLAINTS:
            if not self._post_event(api, pod, complaint, complaint):
                return False
            written.add(complaint)
        return True

    def _post_event(self, api: Api, pod: PodObject, complaint: Complaint, content: tuple[str, ...]) -> bool:
        """Write an event; False when it has to be tried again.

        Its name is made of `content`, so that the server refuses it a second time, from a plugin that has restarted.
        """
        try:
            api.post(f"/api/v1/namespaces/{pod.pod.namespace}/events", self._event(pod, complaint, content))
            self.conditions.set("events", "")
        except ApiError as error:
            if error.is_outage:
                return False
            if error.kind != "conflict":
                self.conditions.set("events", f"no event could be written: {error}")
                name = f"{pod.pod.namespace}/{pod.pod.name}"
                self.conditions.log.warning(f"{complaint.reason}: {complaint.text}", pod=name)
        return True

    def _event(self, pod: PodObject, complaint: Complaint, content: tuple[str, ...]) -> Object:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.clock()))
        digest = hashlib.sha256("\0".join((pod.pod.uid, *content)).encode()).hexdigest()[:16]
        return {
            "apiVersion": "v1", "kind": "Event", "type": "Warning", "reason": complaint.reason,
            "message": complaint.text[:MAX_MESSAGE],
            "metadata": {"name": f"{pod.pod.name[:200].rstrip('-.')}.{digest}", "namespace": pod.pod.namespace},
            "involvedObject": {
                "apiVersion": "v1", "kind": "Pod", "name": pod.pod.name, "namespace": pod.pod.namespace,
                "uid": pod.pod.uid, "resourceVersion": pod.version,
            },
            "source": {"component": "vgpu-device-plugin", "host": self.node},
            "firstTimestamp": now, "lastTimestamp": now, "count": 1,
        }  # fmt: skip


def _by_name(pod: Pod, in_force: InForce) -> InForce:
    """`in_force` by the containers' names. Where the runtime passes on no name, it is the pod's only container."""
    names = pod.names()
    return {name or names[0]: share for name, share in in_force.items() if name or len(names) == 1}
