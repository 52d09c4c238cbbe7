"""The kubelet stand-in itself, with a scripted plugin and a runtime in memory. It behaves like the real kubelet."""

from __future__ import annotations

import itertools
import json
import queue
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import daemons
import grpc
import kubelet as kubelets
import kubelet_api
import pytest
from kubelet import Container, Kubelet, Spec
from kubelet_api import message
from kubelet_devices import CHECKPOINT, Options
from kubelet_runtimes import StartError

CORES, MEMORY = "x.io/cores", "x.io/memory"


class ScriptedPlugin:
    """Serves `resource` with devices d0, d1, .... `answer` returns Allocate's answer, `lists` feeds the stream."""

    def __init__(self, directory: Path, resource: str, count: int = 10) -> None:
        self.directory, self.resource = directory, resource
        self.endpoint = f"{resource.replace('/', '-')}.sock"
        self.allocated: list[list[str]] = []
        self.preferred: list[tuple[set[str], set[str], int]] = []
        self.answer: Callable[[list[str]], dict[str, Any]] = lambda ids: {"envs": {resource: ",".join(sorted(ids))}}
        self.lists: queue.Queue[dict[str, str] | None] = queue.Queue()
        self.lists.put({f"d{number}": "Healthy" for number in range(count)})
        self.server = kubelet_api.Server(
            directory / self.endpoint,
            "v1beta1.DevicePlugin",
            {
                "ListAndWatch": ("v1beta1.Empty", self._list),
                "Allocate": ("v1beta1.AllocateRequest", self._allocate),
                "GetPreferredAllocation": ("v1beta1.PreferredAllocationRequest", self._prefer),
            },
            streams=("ListAndWatch",),
        )

    def _list(self, request: Any, context: Any) -> Iterator[Any]:
        for devices in iter(self.lists.get, None):
            known = [message("v1beta1.Device")(ID=id, health=health) for id, health in devices.items()]
            yield message("v1beta1.ListAndWatchResponse")(devices=known)

    def _allocate(self, request: Any, context: grpc.ServicerContext) -> Any:
        (one,) = request.container_requests
        ids = list(one.devices_ids)
        self.allocated.append(ids)
        answer = self.answer(ids)
        if "error" in answer:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, answer["error"])
        answered = message("v1beta1.ContainerAllocateResponse")(**answer)
        return message("v1beta1.AllocateResponse")(container_responses=[answered])

    def _prefer(self, request: Any, context: Any) -> Any:
        (one,) = request.container_requests
        self.preferred.append((set(one.available_deviceIDs), set(one.must_include_deviceIDs), one.allocation_size))
        last = sorted(one.available_deviceIDs)[-one.allocation_size :]
        answer = message("v1beta1.ContainerPreferredAllocationResponse")(deviceIDs=last)
        return message("v1beta1.PreferredAllocationResponse")(container_responses=[answer])

    def register(self, version: str = "v1beta1", preferred: bool = False) -> ScriptedPlugin:
        options = message("v1beta1.DevicePluginOptions")(get_preferred_allocation_available=preferred)
        request = message("v1beta1.RegisterRequest")(
            version=version, endpoint=self.endpoint, resource_name=self.resource, options=options
        )
        with kubelet_api.dial(self.directory / "kubelet.sock") as channel:
            kubelet_api.call(channel, "/v1beta1.Registration/Register", request, "v1beta1.Empty")
        return self

    def stop(self) -> None:
        self.lists.put(None)
        self.server.stop()


class MemoryRuntime:
    """Containers that run until `codes` contains their exit code. `started` has the options of each."""

    def __init__(self) -> None:
        self.started: list[tuple[str, Options]] = []
        self.codes: dict[str, int] = {}
        self.while_stopping: Callable[[], object] = lambda: None
        self.while_removing: Callable[[], object] = lambda: None
        self._numbers = itertools.count()

    def sandbox(self, spec: Spec) -> str:
        return spec.uid

    def start(self, sandbox: str, container: Container, options: Options) -> str:
        if container.command[0] == "refuse":
            raise StartError("no room")
        self.started.append((container.name, options))
        if container.command[0] == "end":
            self.codes[f"{container.name}-{len(self.started)}"] = 0
        return f"{container.name}-{len(self.started)}"

    def exit_code(self, sandbox: str, container: str) -> int | None:
        return self.codes.get(container)

    def output(self, sandbox: str, container: str) -> str:
        return ""

    def stop(self, sandbox: str) -> None:
        self.while_stopping()

    def remove(self, sandbox: str) -> None:
        self.while_removing()

    def lose(self, sandbox: str) -> None:
        pass


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

    def make(resource: str = CORES, count: int = 10) -> ScriptedPlugin:
        made.append(ScriptedPlugin(kubelet.device_plugins, resource, count))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def until(kubelet: Kubelet, resource: str, count: int) -> None:
    daemons.wait_for(lambda: kubelet.devices.allocatable().get(resource) == count, 120)


def runs(pod: kubelets.Pod) -> None:
    daemons.wait_for(lambda: pod.running, 120, f"{pod.phase} {pod.events}")


def test_another_api_version_is_refused(kubelet: Kubelet, plugin: Callable[..., ScriptedPlugin]) -> None:
    with pytest.raises(grpc.RpcError) as error:
        plugin().register(version="v1alpha")
    assert "not supported" in str(error.value)


def test_a_pod_gets_devices_and_the_answers(
    kubelet: Kubelet, plugin: Callable[..., ScriptedPlugin], runtime: MemoryRuntime
) -> None:
    made = plugin().register()
    until(kubelet, CORES, 10)
    pod = kubelet.run(Spec([Container("c", {CORES: 3})]))
    runs(pod)
    (ids,) = made.allocated
    assert len(set(ids)) == 3
    assert runtime.started[0][1].envs == {CORES: ",".join(sorted(ids))}
    kubelet.run(Spec([Container("c", {CORES: 7})]))
    assert set(made.allocated[1]).isdisjoint(ids)
    failed = kubelet.run(Spec([Container("c", {CORES: 1})]))
    assert (failed.phase, failed.reason) == ("Failed", "UnexpectedAdmissionError")
    assert "Requested: 1, Available: 0" in failed.message


def test_the_first_of_a_repeated_key_stays(
    kubelet: Kubelet, plugin: Callable[..., ScriptedPlugin], runtime: MemoryRuntime
) -> None:
    for resource in (CORES, MEMORY):
        made = plugin(resource).register()
        mount = {"container_path": "/same", "host_path": f"/{resource}"}
        answer = {"envs": {"K": resource}, "annotations": {"K": resource, resource: "1"}, "mounts": [mount]}
        made.answer = lambda ids, answer=answer: answer  # type: ignore[misc]
        until(kubelet, resource, 10)
    for order, first in ((sorted, CORES), (lambda names: sorted(names, reverse=True), MEMORY)):
        kubelet.devices.order = order  # type: ignore[assignment]
        runs(kubelet.run(Spec([Container("c", {CORES: 1, MEMORY: 1})])))
        options = runtime.started[-1][1]
        assert options.envs == {"K": first}
        assert options.annotations == {"K": first, CORES: "1", MEMORY: "1"}
        assert options.mounts["/same"]["host_path"] == f"/{first}"


def test_an_error_from_allocate_fails_the_pod_for_good(
    kubelet: Kubelet, plugin: Callable[..., ScriptedPlugin], runtime: MemoryRuntime
) -> None:
    made = plugin().register()
    until(kubelet, CORES, 10)
    made.answer = lambda ids: {"error": "150 cores: no"}
    pod = kubelet.run(Spec([Container("c", {CORES: 10})]))
    assert (pod.phase, pod.reason) == ("Failed", "UnexpectedAdmissionError")
    assert "code = InvalidArgument desc = 150 cores: no" in pod.message
    made.answer = lambda ids: {}
    runs(kubelet.run(Spec([Container("c", {CORES: 10})])))
    assert len(runtime.started) == 1


def test_init_containers_pass_their_devices_on(kubelet: Kubelet, plugin: Callable[..., ScriptedPlugin]) -> None:
    made = plugin().register()
    until(kubelet, CORES, 10)
    inits = [Container("i", {CORES: 4}, ["end"]), Container("j", {CORES: 6}, ["end"])]
    pod = kubelet.run(Spec([Container("a", {CORES: 3}), Container("b", {CORES: 5})], inits))
    runs(pod)
    first, second, third, fourth = map(set, made.allocated)
    assert first < second
    assert third < second
    assert len(third | fourth) == 8, "two containers that run side by side share none"
    assert second - third <= fourth
    listed = kubelet._list(None, None).pod_resources[0]
    assert {one.name: len(one.devices[0].device_ids) for one in listed.containers} == {"a": 3, "b": 5}


def test_the_plugins_preference_is_requested(kubelet: Kubelet, plugin: Callable[..., ScriptedPlugin]) -> None:
    made = plugin().register(preferred=True)
    until(kubelet, CORES, 10)
    kubelet.run(Spec([Container("a", {CORES: 4})], [Container("i", {CORES: 2}, ["end"])]))
    assert made.preferred[0] == ({f"d{number}" for number in range(10)}, set(), 2)
    assert set(made.allocated[0]) == {"d8", "d9"}
    assert made.preferred[1][1:] == ({"d8", "d9"}, 4)
    assert set(made.allocated[1]) == {"d6", "d7", "d8", "d9"}


def test_devices_of_ended_pods_are_free_at_the_next_admission(
    kubelet: Kubelet, plugin: Callable[..., ScriptedPlugin], runtime: MemoryRuntime
) -> None:
    plugin().register()
    until(kubelet, CORES, 10)
    first = kubelet.run(Spec([Container("c", {CORES: 10}, ["end"])], restart="Never"))
    daemons.wait_for(lambda: first.phase == "Succeeded", 120)
    assert first.uid in kubelet.devices.pods
    runs(kubelet.run(Spec([Container("c", {CORES: 10})])))
    assert first.uid not in kubelet.devices.pods


def test_a_deleted_pods_devices_are_free_when_its_containers_have_ended(
    kubelet: Kubelet, plugin: Callable[..., ScriptedPlugin], runtime: MemoryRuntime
) -> None:
    """That is before its sandbox, its cgroup and the pod's object are gone, as with kubelet 1.20."""
    plugin().register()
    until(kubelet, CORES, 10)
    pod = kubelet.run(Spec([Container("c", {CORES: 10})]))
    runs(pod)
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
    daemons.wait_for(lambda: len(pod.events) > (restart != "Never"), 120)
    daemons.wait_for(lambda: pod.phase == phase, 120)


def test_a_restart_keeps_pods_devices_and_uses_no_plugin_until_it_registers(
    kubelet: Kubelet, plugin: Callable[..., ScriptedPlugin], runtime: MemoryRuntime
) -> None:
    made = plugin().register()
    until(kubelet, CORES, 10)
    pod = kubelet.run(Spec([Container("c", {CORES: 3})]))
    runs(pod)
    made.stop()
    kubelet.restart()
    assert not (kubelet.device_plugins / made.endpoint).exists()
    assert kubelet.devices.allocatable() == {CORES: 0}
    early = kubelet.run(Spec([Container("c", {CORES: 1})]))
    assert "no healthy devices present; cannot allocate unhealthy devices x.io/cores" in early.message
    runtime.codes[pod.statuses["c"].id] = 1
    daemons.wait_for(lambda: pod.statuses["c"].started == 2, 120)
    assert runtime.started[0][1].envs == runtime.started[1][1].envs
    again = plugin().register()
    until(kubelet, CORES, 10)
    kubelet.run(Spec([Container("c", {CORES: 7})]))
    assert len(made.allocated) == 1
    assert len(again.allocated) == 1
    assert set(made.allocated[0]).isdisjoint(again.allocated[0])


@pytest.mark.parametrize("registered", [True, False])
def test_after_a_reboot_pods_need_their_plugin(
    kubelet: Kubelet, plugin: Callable[..., ScriptedPlugin], runtime: MemoryRuntime, registered: bool
) -> None:
    made = plugin().register()
    until(kubelet, CORES, 10)
    pod = kubelet.run(Spec([Container("c", {CORES: 3})]))
    runs(pod)
    kubelet.power_off()
    made.stop()
    kubelet.start()
    if registered:
        again = plugin().register()
        until(kubelet, CORES, 10)
    kubelet.resume()
    if registered:
        runs(pod)
        assert again.allocated == []
        assert runtime.started[-1][1].envs == {CORES: ",".join(sorted(made.allocated[0]))}
    else:
        assert pod.reason == "UnexpectedAdmissionError"


def test_after_a_reboot_init_containers_run_again(
    kubelet: Kubelet, plugin: Callable[..., ScriptedPlugin], runtime: MemoryRuntime
) -> None:
    """Their sandbox is gone. A container that has ended for good does not run again."""
    plugin().register()
    until(kubelet, CORES, 10)
    pod = kubelet.run(Spec([Container("c", {CORES: 3})], inits=[Container("i", {CORES: 3})]))
    daemons.wait_for(lambda: pod.statuses["i"].running, 120)
    runtime.codes[pod.statuses["i"].id] = 0
    runs(pod)
    ended = kubelet.run(Spec([Container("c")], inits=[Container("i")], restart="Never"))
    for name in ("i", "c"):
        daemons.wait_for(lambda name=name: ended.statuses[name].running, 120)
        runtime.codes[ended.statuses[name].id] = 0
    daemons.wait_for(lambda: not ended.active, 120)
    kubelet.power_off()
    kubelet.start()
    plugin().register()
    until(kubelet, CORES, 10)
    kubelet.resume()
    daemons.wait_for(lambda: pod.statuses["i"].running, 120)
    assert not pod.statuses["c"].running
    runtime.codes[pod.statuses["i"].id] = 0
    runs(pod)
    assert (pod.statuses["i"].started, pod.statuses["c"].started) == (2, 2)
    assert (ended.statuses["i"].started, ended.statuses["c"].started) == (1, 1)


def test_a_lost_stream_makes_devices_unhealthy_and_health_comes_back(
    kubelet: Kubelet, plugin: Callable[..., ScriptedPlugin]
) -> None:
    made = plugin(count=4).register()
    until(kubelet, CORES, 4)
    made.lists.put({"d0": "Unhealthy", "d1": "Healthy"})
    until(kubelet, CORES, 1)
    made.lists.put(None)
    until(kubelet, CORES, 0)


def test_a_list_beyond_four_mebibytes_does_not_arrive(kubelet: Kubelet, plugin: Callable[..., ScriptedPlugin]) -> None:
    made = plugin(count=0)
    made.lists.put({f"device-with-a-rather-long-name-{number}": "Healthy" for number in range(100_000)})
    made.register()
    daemons.wait_for(lambda: kubelet.devices.endpoints[CORES].error, 120)
    assert "ResourceExhausted" in kubelet.devices.endpoints[CORES].error
    assert not kubelet.devices.allocatable()[CORES]


def test_the_checkpoint_is_kubelets_own_form(kubelet: Kubelet, plugin: Callable[..., ScriptedPlugin]) -> None:
    plugin().register()
    until(kubelet, CORES, 10)
    pod = kubelet.run(Spec([Container("c", {CORES: 2})]))
    data = json.loads((kubelet.device_plugins / CHECKPOINT).read_text())["Data"]
    (entry,) = data["PodDeviceEntries"]
    assert (entry["PodUID"], entry["ContainerName"], entry["ResourceName"]) == (pod.uid, "c", CORES)
    assert len(entry["DeviceIDs"]["-1"]) == 2
    assert len(data["RegisteredDevices"][CORES]) == 10
