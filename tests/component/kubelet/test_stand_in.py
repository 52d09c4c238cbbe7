"""The kubelet stand-in itself, with a scripted plugin and a runtime in memory: what no test of the plugin shows of it.

tests/system/test_plugin_containerd.py shows that containers get devices, hand them on, and keep them over restarts and
reboots. tests/system/test_plugin_cluster.py and the tests beside it ask kubelet itself.
"""

from __future__ import annotations

import itertools
import queue
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import kubelet_api
import pytest
from daemons import wait_for
from kubelet import Container, Kubelet, Spec
from kubelet_api import message
from kubelet_devices import Options
from kubelet_runtimes import StartError

CORES, MEMORY = "x.io/cores", "x.io/memory"
HEALTHY = {f"d{number}": "Healthy" for number in range(10)}


class ScriptedPlugin:
    """Serves `resource`. `answer` is Allocate's answer, `lists` feeds the stream."""

    def __init__(self, kubelet: Kubelet, resource: str = CORES, devices: dict[str, str] = HEALTHY) -> None:
        self.kubelet, self.resource = kubelet, resource
        self.endpoint = f"{resource.replace('/', '-')}.sock"
        self.allocated: list[list[str]] = []
        self.preferred: list[tuple[set[str], set[str], int]] = []
        self.answer: dict[str, Any] = {}
        self.lists: queue.Queue[dict[str, str] | None] = queue.Queue()
        self.lists.put(devices)
        calls = {
            "ListAndWatch": ("v1beta1.Empty", self._list), "Allocate": ("v1beta1.AllocateRequest", self._allocate),
            "GetPreferredAllocation": ("v1beta1.PreferredAllocationRequest", self._prefer),
        }  # fmt: skip
        path = kubelet.device_plugins / self.endpoint
        self.server = kubelet_api.Server(path, "v1beta1.DevicePlugin", calls, streams=("ListAndWatch",))

    def _list(self, request: Any, context: Any) -> Iterator[Any]:
        for devices in iter(self.lists.get, None):
            known = [message("v1beta1.Device")(ID=id, health=health) for id, health in devices.items()]
            yield message("v1beta1.ListAndWatchResponse")(devices=known)

    def _allocate(self, request: Any, context: grpc.ServicerContext) -> Any:
        (one,) = request.container_requests
        self.allocated.append(list(one.devices_ids))
        answered = message("v1beta1.ContainerAllocateResponse")(**self.answer)
        return message("v1beta1.AllocateResponse")(container_responses=[answered])

    def _prefer(self, request: Any, context: Any) -> Any:
        (one,) = request.container_requests
        self.preferred.append((set(one.available_deviceIDs), set(one.must_include_deviceIDs), one.allocation_size))
        last = sorted(one.available_deviceIDs)[-one.allocation_size :]
        answer = message("v1beta1.ContainerPreferredAllocationResponse")(deviceIDs=last)
        return message("v1beta1.PreferredAllocationResponse")(container_responses=[answer])

    def register(self, preferred: bool = False) -> ScriptedPlugin:
        options = message("v1beta1.DevicePluginOptions")(get_preferred_allocation_available=preferred)
        request = message("v1beta1.RegisterRequest")(
            version="v1beta1", endpoint=self.endpoint, resource_name=self.resource, options=options
        )
        with kubelet_api.dial(self.kubelet.device_plugins / "kubelet.sock") as channel:
            kubelet_api.call(channel, "/v1beta1.Registration/Register", request, "v1beta1.Empty")
        return self

    def offers(self, count: int) -> ScriptedPlugin:
        """Wait until kubelet has so many healthy devices of it."""
        wait_for(lambda: self.kubelet.devices.allocatable().get(self.resource) == count, 120)
        return self

    def stop(self) -> None:
        self.lists.put(None)
        self.server.stop()


class MemoryRuntime:
    """Containers that run; those of the command `end` have ended at once. `started` has their options."""

    def __init__(self) -> None:
        self.started: list[Options] = []
        self.codes: dict[str, int] = {}
        self.while_stopping: Callable[[], object] = lambda: None
        self.while_removing: Callable[[], object] = lambda: None
        self._names = map(str, itertools.count())

    def sandbox(self, spec: Spec) -> str:
        return spec.uid

    def start(self, sandbox: str, container: Container, options: Options) -> str:
        if container.command[0] == "refuse":
            raise StartError("no room")
        self.started.append(options)
        name = next(self._names)
        self.codes.update({name: 0} if container.command[0] == "end" else {})
        return name

    def exit_code(self, sandbox: str, container: str) -> int | None:
        return self.codes.get(container)

    def output(self, sandbox: str, container: str) -> str:
        return ""

    def stop(self, sandbox: str) -> None:
        self.while_stopping()

    def remove(self, sandbox: str) -> None:
        self.while_removing()


@pytest.fixture
def runtime() -> MemoryRuntime:
    return MemoryRuntime()


@pytest.fixture
def kubelet(tmp_path: Path, runtime: MemoryRuntime) -> Iterator[Kubelet]:
    made = Kubelet(tmp_path, runtime).start()
    yield made
    made.end()


@pytest.fixture
def plugin(kubelet: Kubelet) -> Iterator[Callable[..., ScriptedPlugin]]:
    """Makes plugins that have not registered yet."""
    made: list[ScriptedPlugin] = []
    yield lambda *arguments: made.append(ScriptedPlugin(kubelet, *arguments)) or made[-1]
    for each in made:
        each.stop()


def runs(kubelet: Kubelet, limits: dict[str, int], *inits: Container) -> Any:
    pod = kubelet.run(Spec([Container("c", limits)], list(inits)))
    wait_for(lambda: pod.running, 120, f"{pod.phase} {pod.events}")
    return pod


def test_the_first_of_a_repeated_key_stays(
    kubelet: Kubelet, plugin: Callable[..., ScriptedPlugin], runtime: MemoryRuntime
) -> None:
    for resource in (CORES, MEMORY):
        answer = {"envs": {"K": resource}, "annotations": {"K": resource, resource: "1"}}
        plugin(resource).register().offers(10).answer = answer
    for order, first in ((sorted, CORES), (lambda names: sorted(names, reverse=True), MEMORY)):
        kubelet.devices.order = order  # type: ignore[assignment]
        runs(kubelet, {CORES: 1, MEMORY: 1})
        options = runtime.started[-1]
        assert options.envs == {"K": first}
        assert options.annotations == {"K": first, CORES: "1", MEMORY: "1"}


def test_the_plugins_preference_is_requested(kubelet: Kubelet, plugin: Callable[..., ScriptedPlugin]) -> None:
    made = plugin().register(preferred=True).offers(10)
    runs(kubelet, {CORES: 4}, Container("i", {CORES: 2}, ["end"]))
    assert made.preferred[0] == (set(HEALTHY), set(), 2)
    assert set(made.allocated[0]) == {"d8", "d9"}
    assert made.preferred[1][1:] == ({"d8", "d9"}, 4)
    assert set(made.allocated[1]) == {"d6", "d7", "d8", "d9"}


def test_a_deleted_pods_devices_are_free_when_its_containers_have_ended(
    kubelet: Kubelet, plugin: Callable[..., ScriptedPlugin], runtime: MemoryRuntime
) -> None:
    """That is before its sandbox, its cgroup and the pod's object are gone, as with kubelet 1.20."""
    plugin().register().offers(10)
    pod = runs(kubelet, {CORES: 10})
    seen: list[tuple[str, int, int]] = []

    def look(when: str) -> None:
        (listed,) = kubelet._list(None, None).pod_resources
        seen.append((when, len(listed.containers[0].devices), len(kubelet.devices.pods)))

    runtime.while_stopping = lambda: look("stopping")
    runtime.while_removing = lambda: look("removing")
    kubelet.delete(pod)
    assert seen == [("stopping", 1, 1), ("removing", 0, 0)]
    assert not kubelet._list(None, None).pod_resources


@pytest.mark.parametrize(("restart", "phase"), [("Never", "Failed"), ("OnFailure", "Pending"), ("Always", "Pending")])
def test_a_failed_start_is_the_end_of_a_pod_that_never_restarts(kubelet: Kubelet, restart: str, phase: str) -> None:
    pod = kubelet.run(Spec([Container("c", command=["refuse"])], restart=restart))
    wait_for(lambda: len(pod.events) > (restart != "Never"), 120)
    wait_for(lambda: pod.phase == phase, 120)


def test_a_list_beyond_four_mebibytes_does_not_arrive(kubelet: Kubelet, plugin: Callable[..., ScriptedPlugin]) -> None:
    plugin(CORES, {f"device-with-a-rather-long-name-{number}": "Healthy" for number in range(100_000)}).register()
    wait_for(lambda: CORES in kubelet.devices.endpoints and kubelet.devices.endpoints[CORES].error, 120)
    assert "ResourceExhausted" in kubelet.devices.endpoints[CORES].error
    assert not kubelet.devices.allocatable()[CORES]
