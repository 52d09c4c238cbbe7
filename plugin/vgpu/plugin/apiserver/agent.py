"""The life of the access to the API server: two threads, one that follows pods and one that answers.

Belongs here: starting, stopping, and the order of one round of answers. Each condition is told once when it begins and
once when it is over; a round that fails is made again, with pauses that grow.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

from vgpu.config.dialects import placements
from vgpu.config.errors import VgpuError, shown
from vgpu.config.settings import Settings
from vgpu.node.service.log import Conditions, Log
from vgpu.plugin.apiserver import handover, scheduler_protocols
from vgpu.plugin.apiserver.client import Api, ApiError, Object
from vgpu.plugin.apiserver.node_annotations import NodeSync
from vgpu.plugin.apiserver.pod_objects import Seen
from vgpu.plugin.apiserver.pods import PodWatch

TICK, SLOW_TICK = 1.0, 5.0  #: seconds between looks at the claims, while a scheduler waits; slower when it is long
PAUSE = 0.1
REST = 15.0  #: and otherwise, for the node's heartbeat
LONGEST = 60.0
RECONNECT = 30.0
STOP_PATIENCE = 2.0
MAX_MESSAGE = 1000  #: characters that an event's message may have are 1024


class Cluster:
    """`reasons` gives card uuid -> why it is unhealthy. VgpuError where the node has no name."""

    def __init__(
        self,
        settings: Settings,
        journal: Log,
        node_name: str,
        reasons: Callable[[], dict[str, str]] = dict,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not node_name:
            do = "set NODE_NAME from spec.nodeName, or name the node in vgpuctl config apply --node"
            raise VgpuError("NODE_NAME", expected="this node's name in Kubernetes", found="nothing", do=do)
        self.settings = settings
        self.node = node_name
        self.conditions = Conditions(journal)
        self.clock = clock
        self.dialects = scheduler_protocols.enabled(settings.texts("kubernetes.dialects"))
        self._stopped = threading.Event()
        self._woken = threading.Event()
        self.watch = PodWatch(settings, node_name, self.conditions, self._stopped, self._woken.set)
        self.sync = NodeSync(settings, node_name, reasons, clock)
        self._api: Api | None = None
        self._rounds = 0
        self._unlocked: set[str] = set()
        self._complained: set[str] = set()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Returns at once: connecting, and loading what it takes, is the threads' own affair."""
        self._start("cluster", self._connect)

    def stop(self) -> None:
        """Ends both threads; one that waits for a server that is silent is left behind and does nothing any more."""
        self._stopped.set()
        self._woken.set()
        self.watch.stop()
        if self._api is not None:
            self._api.interrupt()
        for thread in self._threads:
            thread.join(STOP_PATIENCE)

    def handed_over(self, grant_id: str) -> None:
        """An Allocate was answered: a start is near, whichever pod's it is. Never blocks."""
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
                self._start("pods", partial(self.watch.run, api))
                return self._answer(api)
            self._stopped.wait(RECONNECT)
        return None

    def _new_api(self, kubeconfig: str) -> Api | None:
        """None while nothing that is any use tells of a server."""
        try:
            api = Api(kubeconfig)
        except (VgpuError, ImportError) as error:
            self.conditions.set("api", f"no access to the API server: {shown(str(error))}")
            return None
        self.conditions.set("api", "")
        return api

    def _answer(self, api: Api) -> None:
        again = TICK
        while not self._stopped.is_set():
            try:
                pause, again = self.round(api), TICK
                self.conditions.set("answers", "")
            except (ApiError, VgpuError, OSError) as error:
                pause = again = min(again * 2, LONGEST)
                self.conditions.set("answers", f"schedulers are not answered: {error}")
            self._woken.wait(pause)
            self._woken.clear()
            self._stopped.wait(PAUSE)  # several changes at once are one round

    def round(self, api: Api) -> float:
        """Do what is due; returns the seconds until the next look. What fails keeps nothing else from being done."""
        seen = self.watch.pods()
        self._forget({pod.pod.uid for pod in seen})
        failed: list[Exception] = []
        for work in (self._release, self._answer_pods, self._register):
            try:
                work(api, seen)
            except (ApiError, VgpuError) as error:
                failed.append(error)
        self._complain(api, seen)
        if failed:
            raise failed[0]
        waits = any(scheduler_protocols.open_for(pod, self.dialects) for pod in seen)
        self._rounds = self._rounds + 1 if waits else 0
        return min(TICK * (1 + self._rounds / 20), SLOW_TICK) if waits else REST

    def _register(self, api: Api, seen: list[Seen]) -> None:
        del seen
        self.sync.register(api)

    def _forget(self, present: set[str]) -> None:
        self._unlocked &= present
        self._complained &= present

    def _release(self, api: Api, seen: list[Seen]) -> None:
        """Give back the locks that were taken to bind `seen` here: they have arrived."""
        new = [
            pod
            for pod in seen
            if pod.pod.uid not in self._unlocked and scheduler_protocols.may_lock(pod, self.dialects)
        ]
        if new:
            released = self.sync.release(api, new, self.dialects)
            if released:
                self.conditions.log.info("released", locks=", ".join(released), node=self.node)
            self._unlocked.update(pod.pod.uid for pod in new)

    def _answer_pods(self, api: Api, seen: list[Seen]) -> None:
        """Tell schedulers of the pods that have their devices, or will never have them."""
        waiting = [pod for pod in seen if scheduler_protocols.open_for(pod, self.dialects) and self._is_unlocked(pod)]
        if not waiting:
            return
        have = handover.pods_with_devices(self.settings.run_dir, self.settings.state_dir)
        failed: ApiError | None = None
        for pod in waiting:
            try:
                self._patch(api, pod, pod.pod.uid in have)
            except ApiError as error:
                failed = error if error.kind not in ("missing", "conflict") else failed
        if failed:
            raise failed

    def _is_unlocked(self, pod: Seen) -> bool:
        """Its lock was looked after: once it has its answer, nothing tells any more that the lock was its."""
        return pod.pod.uid in self._unlocked or not scheduler_protocols.may_lock(pod, self.dialects)

    def _patch(self, api: Api, pod: Seen, handed_over: bool) -> None:
        annotations, labels = scheduler_protocols.due(pod, handed_over, self.dialects)
        if not annotations and not labels:
            return
        metadata: Object = {"uid": pod.pod.uid}  # of another pod by that name the server refuses it
        if annotations:
            metadata["annotations"] = dict(annotations)
        if labels:
            metadata["labels"] = dict(labels)
        api.patch(pod.path, {"metadata": metadata})
        pod.annotations.update(annotations)  # until the watch says the same
        pod.labels.update(labels)

    def _complain(self, api: Api, seen: list[Seen]) -> None:
        """An event on a pod whose placement no start will accept: kubectl describe then says it before kubelet does."""
        for pod in seen:
            if pod.ended or pod.pod.uid in self._complained:
                continue
            text = self._complaint(pod)
            self._complained.add(pod.pod.uid)
            if not text:
                continue
            try:
                api.post(f"/api/v1/namespaces/{pod.pod.namespace}/events", self._event(pod, text))
                self.conditions.set("events", "")
            except ApiError as error:  # the start that fails tells it again
                self.conditions.set("events", f"no event could be written: {error}")

    def _complaint(self, pod: Seen) -> str:
        try:
            for name in pod.pod.names():
                placements.choices(pod.pod, name, self.node, self.dialects)
        except VgpuError as error:
            return str(error)
        return ""

    def _event(self, pod: Seen, text: str) -> Object:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.clock()))
        return {
            "apiVersion": "v1", "kind": "Event", "type": "Warning", "reason": "PlacementRefused",
            "message": text[:MAX_MESSAGE],
            "metadata": {"generateName": f"{pod.pod.name[:200]}.", "namespace": pod.pod.namespace},
            "involvedObject": {
                "apiVersion": "v1", "kind": "Pod", "name": pod.pod.name, "namespace": pod.pod.namespace,
                "uid": pod.pod.uid, "resourceVersion": pod.version,
            },
            "source": {"component": "vgpu-device-plugin", "host": self.node},
            "firstTimestamp": now, "lastTimestamp": now, "count": 1,
        }  # fmt: skip
