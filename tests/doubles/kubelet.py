"""A stand-in for kubelet: its device manager speaks the real protocol, and it keeps pods running on a runtime.

Belongs here: a pod's life: admission, init containers, restarts with back-off, deletion, kubelet's own restart, the
node's reboot, and the pod-resources service. Devices are in kubelet_devices, containers in kubelet_runtimes. The pods
themselves outlive a restart of this kubelet, as they do in an API server.
"""

from __future__ import annotations

import dataclasses
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubelet_api
from daemons import wait_for
from kubelet_api import message
from kubelet_devices import AdmissionError, DeviceManager
from kubelet_runtimes import Runtime, StartError

PENDING, RUNNING, SUCCEEDED, FAILED = "Pending", "Running", "Succeeded", "Failed"
ENDED = (SUCCEEDED, FAILED)
START_ERROR = 128  #: exit code of a container that was made and did not start; a pod that never restarts has failed


@dataclasses.dataclass
class Container:
    """A container of a pod's spec. `limits` are by resource, as in YAML."""

    name: str
    limits: dict[str, int] = dataclasses.field(default_factory=dict)
    command: list[str] = dataclasses.field(default_factory=lambda: ["sleep", "86400"])
    env: list[tuple[str, str]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Spec:
    """The pod as the API server sends it to kubelet."""

    containers: list[Container]
    inits: list[Container] = dataclasses.field(default_factory=list)
    annotations: dict[str, str] = dataclasses.field(default_factory=dict)
    restart: str = "Always"
    name: str = ""
    namespace: str = "default"
    uid: str = dataclasses.field(default_factory=lambda: str(uuid.uuid4()))

    def __post_init__(self) -> None:
        self.name = self.name or f"pod-{self.uid[:8]}"


class Status:
    """A container's status: the `id` of its last start, and the `reason` why it does not run."""

    def __init__(self) -> None:
        self.id = ""
        self.started = 0  # lives so far
        self.running = False
        self.exit_code: int | None = None
        self.output = ""
        self.reason = ""


class Pod:
    """A pod of this node with its status. `events` are those that `kubectl describe pod` shows."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.uid = spec.uid
        self.phase = PENDING
        self.reason = ""
        self.message = ""
        self.events: list[str] = []
        self.statuses = {container.name: Status() for container in [*spec.inits, *spec.containers]}
        self.sandbox: Any = None
        self.worker: Worker | None = None
        self.admitted = False
        self.deleted = False

    def fail(self, reason: str, text: str) -> None:
        self.phase, self.reason, self.message = FAILED, reason, text
        self.events.append(f"{reason}: {text}")

    @property
    def active(self) -> bool:
        """Whether kubelet counts its devices as used: not in its last phase, nor deleted with all containers ended."""
        over = self.deleted and not any(status.running for status in self.statuses.values())
        return self.admitted and self.phase not in ENDED and not over

    def output(self, container: str = "") -> str:
        return self.statuses[container or self.spec.containers[0].name].output

    @property
    def running(self) -> bool:
        return all(self.statuses[container.name].running for container in self.spec.containers)


class Kubelet:
    """The node's kubelet, with its sockets below `directory`: {device-plugins,pod-resources}. `start`, then `run`.

    `backoff`: seconds before a container is started again, doubled each time up to `backoff_limit`; kubelet's are 10
    and 300. `order`: the order in which a container's resources are allocated and their answers merged.
    """

    def __init__(
        self,
        directory: Path,
        runtime: Runtime,
        order: Callable[[list[str]], list[str]] = sorted,
        backoff: float = 0.1,
        backoff_limit: float = 1.0,
        poll: float = 0.02,
    ) -> None:
        self.directory = directory
        self.runtime = runtime
        self.order = order
        self.backoff = backoff
        self.backoff_limit = backoff_limit
        self.poll = poll
        self.pods: dict[str, Pod] = {}
        self.devices = self._manager()
        self._admission = threading.Lock()
        self._alive = False
        self._workers: dict[str, Worker] = {}
        self._resources: kubelet_api.Server | None = None

    def _manager(self) -> DeviceManager:
        return DeviceManager(self.device_plugins, self._active, self.order)

    @property
    def device_plugins(self) -> Path:
        return self.directory / "device-plugins"

    @property
    def pod_resources(self) -> Path:
        return self.directory / "pod-resources" / "kubelet.sock"

    def _active(self) -> set[str]:
        return {uid for uid, pod in list(self.pods.items()) if pod.active}

    # Start and stop

    def start(self) -> Kubelet:
        """Serve registration and pod-resources. Pods from before wait for `resume`."""
        self.devices = self._manager().start()
        methods = {"List": ("v1.ListPodResourcesRequest", self._list)}
        self._resources = kubelet_api.Server(self.pod_resources, "v1.PodResourcesLister", methods)
        self._alive = True
        return self

    def resume(self) -> None:
        """The API server has sent the pods: those that do not run are admitted again, with the devices they hold."""
        for pod in list(self.pods.values()):
            with self._admission:
                if pod.active and not pod.deleted and pod.uid not in self._workers:
                    self._resume(pod)

    def stop(self) -> None:
        """Stop as if killed, even during an admission. Containers run on unsupervised."""
        self._alive = False
        self.devices.stop()
        with self._admission:
            workers, self._workers = list(self._workers.values()), {}
        for worker in workers:
            worker.stop()
        assert self._resources is not None
        self._resources.stop()

    def restart(self) -> None:
        self.stop()
        self.start().resume()

    def power_off(self) -> None:
        """The node loses its power: kubelet and all containers end without a notice."""
        self.stop()
        for pod in self.pods.values():
            self.runtime.lose(pod.sandbox)
            pod.sandbox = None
            for status in pod.statuses.values():
                status.running = False
            if pod.active:  # in the new sandbox its init containers run again, those that had ended well too
                for container in pod.spec.inits:
                    pod.statuses[container.name].exit_code = None

    def end(self) -> None:
        """Remove everything at the end of a test."""
        for pod in list(self.pods.values()):
            self.delete(pod)
        self.stop()

    def ready(self, *resources: str) -> Kubelet:
        """Wait until each of `resources` has a healthy device."""
        what = f"no healthy device of {resources}"
        wait_for(lambda: all(self.devices.allocatable().get(name) for name in resources), what=what)
        return self

    # Pods

    def run(self, spec: Spec) -> Pod:
        """Admit a pod and start it. A pod that kubelet refuses is returned as Failed."""
        pod = Pod(spec)
        with self._admission:  # kubelet admits one pod after the other
            self.pods[pod.uid] = pod
            self._admit(pod)
            if pod.active and self._alive:
                self._work(pod)
        return pod

    def _admit(self, pod: Pod) -> None:
        """Set `admitted` first: a pod under admission counts as active, or its own devices would be freed.

        While kubelet is dead the pod waits. The next kubelet gets it from the API server and admits it.
        """
        pod.admitted = True
        if not self._alive:
            return
        try:
            for container in pod.spec.inits:
                self.devices.allocate(pod.uid, container.name, container.limits, init=True)
            for container in pod.spec.containers:
                self.devices.allocate(pod.uid, container.name, container.limits, init=False)
        except AdmissionError as error:
            if not self._alive:
                return
            pod.fail("UnexpectedAdmissionError", f"Allocate failed due to {error}, which is unexpected")

    def _resume(self, pod: Pod) -> None:
        """After a restart, leave a pod alone whose containers run, and admit any other pod again."""
        if not any(status.running for status in pod.statuses.values()):
            self._admit(pod)
        if pod.active and self._alive:
            self._work(pod)

    def _work(self, pod: Pod) -> None:
        pod.worker = self._workers[pod.uid] = Worker(self, pod)
        pod.worker.start()

    def delete(self, pod: Pod) -> None:
        """kubectl delete pod, in kubelet's order: containers, then the devices are free, sandbox and cgroup, object."""
        with self._admission:
            pod.deleted = True
            self._workers.pop(pod.uid, None)
        if pod.worker is not None:  # of a kubelet that is just dying, too
            pod.worker.stop()
        if pod.sandbox is not None:
            self.runtime.stop(pod.sandbox)
        for status in pod.statuses.values():
            status.running = False
        if pod.sandbox is not None:
            self.runtime.remove(pod.sandbox)
            pod.sandbox = None
        with self._admission:
            self.pods.pop(pod.uid, None)
        if pod.phase not in ENDED:
            pod.phase = SUCCEEDED

    def _list(self, request: Any, context: Any) -> Any:
        """List of pod-resources: all pods with their containers, without init containers. It frees ended pods' ids."""
        self.devices.free()
        listed = [self._resources_of(pod) for pod in list(self.pods.values())]
        return message("v1.ListPodResourcesResponse")(pod_resources=listed)

    def _resources_of(self, pod: Pod) -> Any:
        held = self.devices.pods.get(pod.uid, {})
        containers = [
            message("v1.ContainerResources")(
                name=container.name,
                devices=[
                    message("v1.ContainerDevices")(resource_name=resource, device_ids=sorted(item.devices))
                    for resource, item in list(held.get(container.name, {}).items())
                ],
            )
            for container in pod.spec.containers
        ]
        return message("v1.PodResources")(name=pod.spec.name, namespace=pod.spec.namespace, containers=containers)


class Worker(threading.Thread):
    """Makes one pod run as its spec says, and keeps it so."""

    def __init__(self, kubelet: Kubelet, pod: Pod) -> None:
        super().__init__(daemon=True)
        self.kubelet = kubelet
        self.runtime = kubelet.runtime
        self.pod = pod
        self._end = threading.Event()
        self._waits: dict[str, tuple[float, float]] = {}  # container -> when to try again, and the next wait

    def stop(self) -> None:
        self._end.set()
        if self.is_alive():
            self.join(60)

    def run(self) -> None:
        while not self._end.is_set() and self.pod.phase not in ENDED:
            self._sync()
            self._end.wait(self.kubelet.poll)

    def _sync(self) -> None:
        pod = self.pod
        if pod.sandbox is None:
            try:
                pod.sandbox = self.runtime.sandbox(pod.spec)
            except StartError as error:
                pod.events.append(f"FailedCreatePodSandBox: {error}")
                return
        for container in pod.spec.inits:
            if not self._done(container):
                return
        for container in pod.spec.containers:
            self._keep(container, pod.spec.restart)
        self._judge()

    def _done(self, container: Container) -> bool:
        """Whether an init container has ended well; starts it otherwise."""
        if self._keep(container, "OnFailure").exit_code == 0:
            return True
        if self.pod.spec.restart == "Never" and self.pod.statuses[container.name].exit_code:
            self.pod.fail("Error", f"init container {container.name} failed")
        return False

    def _keep(self, container: Container, restart: str) -> Status:
        """Start a container that should run and does not."""
        status = self.pod.statuses[container.name]
        if status.running:
            self._look(container, status)
        elif status.exit_code is None or restart == "Always" or (restart == "OnFailure" and status.exit_code != 0):
            at, wait = self._waits.get(container.name, (0.0, self.kubelet.backoff))
            if time.monotonic() >= at:
                self._waits[container.name] = (time.monotonic() + wait, min(2 * wait, self.kubelet.backoff_limit))
                self._start(container, status)
        return status

    def _look(self, container: Container, status: Status) -> None:
        code = self.runtime.exit_code(self.pod.sandbox, status.id)
        if code is not None:
            status.output = self.runtime.output(self.pod.sandbox, status.id)
            status.exit_code, status.running = code, False

    def _start(self, container: Container, status: Status) -> None:
        try:
            options = self.kubelet.devices.options(self.pod.uid, container.name, container.limits)
            status.id = self.runtime.start(self.pod.sandbox, container, options)
        except (StartError, AdmissionError) as error:
            status.reason = str(error)
            self.pod.events.append(f"Failed: Error: {error}")
            if isinstance(error, StartError):
                status.exit_code = START_ERROR
            return
        status.reason, status.started, status.running, status.exit_code = "", status.started + 1, True, None

    def _judge(self) -> None:
        """The pod's phase, by its containers."""
        statuses = [self.pod.statuses[container.name] for container in self.pod.spec.containers]
        if all(not status.running and status.exit_code is not None for status in statuses):
            codes = {status.exit_code for status in statuses}
            if self.pod.spec.restart == "Never" or (self.pod.spec.restart == "OnFailure" and codes == {0}):
                self._finish(codes == {0})
        elif any(status.running for status in statuses):
            self.pod.phase = RUNNING

    def _finish(self, well: bool) -> None:
        """kubelet reports the phase first, with which the devices are free, and removes sandbox and cgroup then."""
        self.pod.phase = SUCCEEDED if well else FAILED
        self.runtime.stop(self.pod.sandbox)
        self.runtime.remove(self.pod.sandbox)
        self.pod.sandbox = None
