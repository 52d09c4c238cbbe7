"""kubelet's device manager as a device plugin sees it: registration, devices, admission, checkpoint, answers.

Belongs here: which container has which device, and the options that it gets, over real sockets. Pods and their
containers are in kubelet. It behaves like kubelet 1.2x to 1.3x: at its start it deletes everything in its directory but
the checkpoint, and a resource counts as unhealthy from a restart until its plugin registers again.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import threading
import time
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import grpc
import kubelet_api
from daemons import wait_for
from kubelet_api import message

CHECKPOINT = "kubelet_internal_checkpoint"
HEALTHY = "Healthy"

#: pod uid -> container -> resource
PodDevices = dict[str, dict[str, dict[str, "Held"]]]


class AdmissionError(Exception):
    """Its text is the message of a pod that failed with UnexpectedAdmissionError."""


class Held:
    """A container's devices of one resource, and the plugin's answer."""

    def __init__(self, devices: set[str], answer: Any) -> None:
        self.devices = devices
        self.answer = answer


class Endpoint:
    """A plugin's service for one resource, and the device list that it streams."""

    def __init__(self, path: Path, resource: str, preferred: bool, manager: DeviceManager) -> None:
        self.resource = resource
        self.preferred = preferred
        self.manager = manager
        self.channel = kubelet_api.dial(path)
        self._ready = grpc.channel_ready_future(self.channel)
        self.error = ""
        self.list_bytes = 0
        self.list_seconds = 0.0
        self._stream: Any = None
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def run(self) -> None:
        self._thread.start()

    def _watch(self) -> None:
        started = time.monotonic()
        try:
            self._ready.result(10)
            self._stream = kubelet_api.stream(
                self.channel, "/v1beta1.DevicePlugin/ListAndWatch", message("v1beta1.Empty")(),
                "v1beta1.ListAndWatchResponse",
            )  # fmt: skip
            for response in self._stream:
                self.list_seconds = self.list_seconds or time.monotonic() - started
                self.list_bytes = response.ByteSize()
                self.manager.listed(self, response.devices)
            self.error = "the plugin ended ListAndWatch"
        except grpc.FutureTimeoutError:
            self.error = "context deadline exceeded while dialing"
        except grpc.FutureCancelledError:
            self.error = "closed before it was ready"
        except (grpc.RpcError, ValueError) as error:  # ValueError: closed by ourselves
            self.error = _told(error)
        self.manager.lost(self)

    def call(self, method: str, request: Any, response: str) -> Any:
        return kubelet_api.call(
            self.channel, f"/v1beta1.DevicePlugin/{method}", request, f"v1beta1.{response}", timeout=120
        )

    def close(self) -> None:
        if self._stream is not None:
            self._stream.cancel()
        # A plugin that ended at once never answers. grpc's thread asks as long as somebody waits for the channel, and
        # fails if the channel is closed under it.
        self._ready.cancel()
        wait_for(lambda: not self.channel._connectivity_state.polling)
        self.channel.close()
        self._thread.join(10)


class DeviceManager:
    """kubelet's device manager over `directory`, from one start to its end. `active` returns the pods that still run.

    `order` is the order in which a container's resources are allocated: kubelet iterates over a Go map.
    """

    def __init__(
        self, directory: Path, active: Callable[[], set[str]], order: Callable[[list[str]], list[str]] = sorted
    ) -> None:
        self.directory = directory
        self.active = active
        self.order = order
        self.healthy: dict[str, set[str]] = {}
        self.unhealthy: dict[str, set[str]] = {}
        self.endpoints: dict[str, Endpoint] = {}
        self.pods: PodDevices = {}
        self.registrations: list[tuple[float, str]] = []
        self.allocations = 0
        self.lock = threading.RLock()
        self._reusable: tuple[str, dict[str, set[str]]] = ("", {})
        self._server: kubelet_api.Server | None = None
        self._is_stopped = False

    # Start and stop

    def start(self) -> DeviceManager:
        self.directory.mkdir(parents=True, exist_ok=True)
        for path in self.directory.iterdir():
            if path.name != CHECKPOINT and not path.is_dir():
                path.unlink()
        self._read_checkpoint()
        methods = {"Register": ("v1beta1.RegisterRequest", self._register)}
        self._server = kubelet_api.Server(self.directory / "kubelet.sock", "v1beta1.Registration", methods)
        return self

    def stop(self) -> None:
        """Stop as if killed: write nothing, and end the plugins' streams."""
        assert self._server is not None
        self._server.stop()
        with self.lock:
            self._is_stopped = True
            endpoints, self.endpoints = list(self.endpoints.values()), {}
        for endpoint in endpoints:
            endpoint.close()

    def _register(self, request: Any, context: grpc.ServicerContext) -> Any:
        if request.version != kubelet_api.VERSION:
            text = (
                f"requested API version {request.version!r} is not supported by kubelet. Supported version is v1beta1"
            )
            context.abort(grpc.StatusCode.UNKNOWN, text)
        if "/" not in request.resource_name or request.resource_name.partition("/")[0].endswith("kubernetes.io"):
            text = f"the ResourceName {request.resource_name!r} is invalid"
            context.abort(grpc.StatusCode.UNKNOWN, text)
        self.registrations.append((time.monotonic(), request.resource_name))
        threading.Thread(target=self._add, args=(request,), daemon=True).start()  # kubelet connects on its own time
        return message("v1beta1.Empty")()

    def _add(self, request: Any) -> None:
        with self.lock:
            if self._is_stopped:  # the next kubelet has the directory
                return
            endpoint = Endpoint(
                self.directory / request.endpoint, request.resource_name,
                request.options.get_preferred_allocation_available, self,
            )  # fmt: skip
            old, self.endpoints[request.resource_name] = self.endpoints.get(request.resource_name), endpoint
            endpoint.run()
        if old is not None:
            old.close()

    def listed(self, endpoint: Endpoint, devices: Iterable[Any]) -> None:
        """Replace a plugin's list by a new one."""
        with self.lock:
            if self.endpoints.get(endpoint.resource) is not endpoint:
                return
            healthy = {device.ID for device in devices if device.health == HEALTHY}
            self.healthy[endpoint.resource] = healthy
            self.unhealthy[endpoint.resource] = {device.ID for device in devices} - healthy
            self._write_checkpoint()

    def lost(self, endpoint: Endpoint) -> None:
        """The stream ended, so all its devices are unhealthy until a plugin registers again."""
        with self.lock:
            if self.endpoints.get(endpoint.resource) is endpoint:
                every = self.healthy.get(endpoint.resource, set()) | self.unhealthy.get(endpoint.resource, set())
                self.healthy[endpoint.resource], self.unhealthy[endpoint.resource] = set(), every

    def allocatable(self) -> dict[str, int]:
        """The allocatable amounts of the node's status, by resource."""
        with self.lock:
            return {resource: len(devices) for resource, devices in self.healthy.items()}

    # Admission

    def allocate(self, uid: str, container: str, limits: dict[str, int], init: bool) -> None:
        """Allocate devices for all resources of a container. AdmissionError when the pod must fail."""
        reusable = self._reusable_of(uid)
        try:
            self._allocate(uid, container, limits, reusable)
        finally:
            with self.lock:
                self._write_checkpoint()
        for resource, held in self.pods.get(uid, {}).get(container, {}).items():
            if init:
                reusable.setdefault(resource, set()).update(held.devices)
            else:
                reusable.get(resource, set()).difference_update(held.devices)

    def _reusable_of(self, uid: str) -> dict[str, set[str]]:
        """The devices that the pod's init containers hold and its other containers do not hold yet."""
        if self._reusable[0] != uid:
            self._reusable = (uid, {})
        return self._reusable[1]

    def _allocate(self, uid: str, container: str, limits: dict[str, int], reusable: dict[str, set[str]]) -> None:
        self.free()
        for resource in self.order(list(limits)):
            if resource not in self.healthy and resource not in self._allocated():
                continue  # no plugin's, as far as kubelet knows: it starts the container without
            chosen = self._choose(uid, container, resource, limits[resource], reusable.get(resource, set()))
            if chosen:
                answer = self._ask(resource, chosen)
                with self.lock:
                    self.pods.setdefault(uid, {}).setdefault(container, {})[resource] = Held(chosen, answer)

    def free(self) -> None:
        """Free the devices of ended pods. kubelet does so only when it admits the next pod or lists resources."""
        active = self.active()
        with self.lock:
            self.pods = {uid: held for uid, held in self.pods.items() if uid in active}

    def _allocated(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        with self.lock:
            for containers in self.pods.values():
                for resources in containers.values():
                    for resource, held in resources.items():
                        found.setdefault(resource, set()).update(held.devices)
        return found

    def _choose(self, uid: str, container: str, resource: str, count: int, reusable: set[str]) -> set[str]:
        """The devices to allocate; empty when the container has them already."""
        held = self.pods.get(uid, {}).get(container, {}).get(resource)
        with self.lock:
            healthy = set(self.healthy.get(resource, ()))
        if held is not None and len(held.devices) != count:
            raise AdmissionError(f"pod {uid!r} container {container!r} changed request for resource {resource!r}")
        if resource not in self.healthy:
            raise AdmissionError(f"cannot allocate unregistered device {resource}")
        if not healthy:
            raise AdmissionError(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        if held is not None and not healthy >= held.devices:
            text = "previously allocated devices are no longer healthy; cannot allocate unhealthy devices"
            raise AdmissionError(f"{text} {resource}")
        if held is not None:
            return set()
        return self._pick(resource, count, healthy, reusable)

    def _pick(self, resource: str, count: int, healthy: set[str], reusable: set[str]) -> set[str]:
        """Reusable devices first, then those that the plugin prefers, then any."""
        chosen = set(list(reusable)[:count])
        needed = count - len(chosen)
        if not needed:
            return chosen
        available = healthy - self._allocated().get(resource, set())
        if len(available) < needed:
            text = f"requested number of devices unavailable for {resource}"
            raise AdmissionError(f"{text}. Requested: {needed}, Available: {len(available)}")
        preferred = self._preferred(resource, available | chosen, chosen, count)
        for device in [*(device for device in preferred if device in available), *available]:
            if len(chosen) < count:
                chosen.add(device)
        return chosen

    def _preferred(self, resource: str, available: set[str], chosen: set[str], count: int) -> list[str]:
        endpoint = self._endpoint(resource)
        if not endpoint.preferred:
            return []
        one = message("v1beta1.ContainerPreferredAllocationRequest")(
            available_deviceIDs=available, must_include_deviceIDs=chosen, allocation_size=count
        )
        request = message("v1beta1.PreferredAllocationRequest")(container_requests=[one])
        try:
            answer = endpoint.call("GetPreferredAllocation", request, "PreferredAllocationResponse")
        except (grpc.RpcError, ValueError) as error:
            raise AdmissionError(_told(error)) from error
        return list(answer.container_responses[0].deviceIDs) if answer.container_responses else []

    def _ask(self, resource: str, chosen: set[str]) -> Any:
        one = message("v1beta1.ContainerAllocateRequest")(devices_ids=chosen)
        request = message("v1beta1.AllocateRequest")(container_requests=[one])
        try:
            answer = self._endpoint(resource).call("Allocate", request, "AllocateResponse")
        except (grpc.RpcError, ValueError) as error:
            raise AdmissionError(_told(error)) from error
        if not answer.container_responses:
            raise AdmissionError("no containers return in allocation response")
        self.allocations += 1
        return answer.container_responses[0]

    def _endpoint(self, resource: str) -> Endpoint:
        with self.lock:
            if resource not in self.endpoints:
                raise AdmissionError(f"unknown Device Plugin {resource}")
            return self.endpoints[resource]

    # A container's options

    def options(self, uid: str, container: str, limits: dict[str, int]) -> Options:
        """The merged answers for all its resources. A resource without an answer is allocated again."""
        held = self.pods.get(uid, {}).get(container, {})
        if any(resource in self.healthy and resource not in held for resource in limits):
            self._allocate(uid, container, limits, {})
        held = self.pods.get(uid, {}).get(container, {})
        merged = Options()
        for resource in self.order(list(held)):
            merged.add(held[resource].answer)
        return merged

    # Its checkpoint

    def _write_checkpoint(self) -> None:
        entries = [
            {"PodUID": uid, "ContainerName": container, "ResourceName": resource,
             "DeviceIDs": {"-1": sorted(held.devices)},
             "AllocResp": base64.b64encode(held.answer.SerializeToString()).decode()}
            for uid, containers in self.pods.items()
            for container, resources in containers.items()
            for resource, held in resources.items()
        ]  # fmt: skip
        data = {
            "PodDeviceEntries": entries,
            "RegisteredDevices": {resource: sorted(devices) for resource, devices in self.healthy.items()},
        }
        temporary = self.directory / f".{CHECKPOINT}"
        temporary.write_text(json.dumps({"Data": data, "Checksum": _checksum(data)}))
        os.replace(temporary, self.directory / CHECKPOINT)

    def _read_checkpoint(self) -> None:
        try:
            read = json.loads((self.directory / CHECKPOINT).read_text())
        except FileNotFoundError:
            return
        assert read["Checksum"] == _checksum(read["Data"]), "corrupt checkpoint"
        for entry in read["Data"]["PodDeviceEntries"]:
            answer = message("v1beta1.ContainerAllocateResponse").FromString(base64.b64decode(entry["AllocResp"]))
            held = Held({device for devices in entry["DeviceIDs"].values() for device in devices}, answer)
            pod = self.pods.setdefault(entry["PodUID"], {})
            pod.setdefault(entry["ContainerName"], {})[entry["ResourceName"]] = held
        self.healthy = {resource: set() for resource in read["Data"]["RegisteredDevices"]}

    def forget(self) -> None:
        """Remove the checkpoint and the whole directory, as an administrator may."""
        shutil.rmtree(self.directory)


class Options:
    """The answers' additions to a container. Of a repeated key the first value stays."""

    def __init__(self) -> None:
        self.envs: dict[str, str] = {}
        self.annotations: dict[str, str] = {}
        self.cdi: list[str] = []

    def add(self, answer: Any) -> None:
        for key, value in answer.envs.items():
            self.envs.setdefault(key, value)
        for key, value in answer.annotations.items():
            self.annotations.setdefault(key, value)
        assert not answer.mounts and not answer.devices, "vgpu's plugin hands on none"
        self.cdi += [device.name for device in answer.cdi_devices if device.name not in self.cdi]


def _checksum(data: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(data, sort_keys=True).encode())


def _told(error: Exception) -> str:
    """A gRPC error as Go prints it."""
    if isinstance(error, grpc.Call):
        code = "".join(word.capitalize() for word in error.code().name.split("_"))
        return f"rpc error: code = {code} desc = {error.details()}"
    return str(error)
