"""The driver's gRPC server, on the socket of its registration and on that of its calls.

Belongs here: the protocols' answers, the sockets' names, and their coming back after somebody has deleted them. Not
here: what a call does (driver). kubelet finds the first socket by its directory, asks it for the second one, and takes
the first version of the list that it knows. It opens the stream of health whatever the list says.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from types import ModuleType
from typing import Any

import grpc

from vgpu.config.errors import VgpuError
from vgpu.config.prepared import DRIVER, PreparedClaim
from vgpu.node.service.claim_devices import Device
from vgpu.node.service.log import Conditions
from vgpu.plugin.dra.driver import Driver, Wanted
from vgpu.plugin.dra.prepared_claims import device_id
from vgpu.plugin.kubelet.proto import dra_health_pb2, dra_v1_pb2, dra_v1beta1_pb2, pluginregistration_pb2, services

VERSIONS = ["v1.DRAPlugin", "v1beta1.DRAPlugin"]
WORKERS = 256  #: calls at once: a call may wait for the API server, and kubelet makes one for each pod that starts
MAX_PATH = 107  #: bytes of a Unix socket's path
OPTIONS = (("grpc.so_reuseport", 0),)
HEARTBEAT = 10.0  #: seconds after which the health is sent again without a change
HEALTH_TIMEOUT = 60  #: seconds without a message after which kubelet takes the health as unknown
MAX_STREAMS = 4


class Calls:
    """DRAPlugin of one version."""

    def __init__(self, driver: Driver, protocol: ModuleType) -> None:
        self.driver = driver
        self.protocol: Any = protocol

    def NodePrepareResources(self, request: Any, context: grpc.ServicerContext) -> Any:
        answers = self.driver.prepare(_wanted(request), lambda: not context.is_active())
        response = self.protocol.NodePrepareResourcesResponse()
        for uid, answer in answers.items():
            if isinstance(answer, str):
                response.claims[uid].error = answer
            else:
                response.claims[uid].devices.extend(self._devices(answer))
        return response

    def NodeUnprepareResources(self, request: Any, _context: grpc.ServicerContext) -> Any:
        response = self.protocol.NodeUnprepareResourcesResponse()
        for uid, error in self.driver.unprepare(_wanted(request)).items():
            response.claims[uid].error = error
        return response

    def _devices(self, claim: PreparedClaim) -> Iterator[Any]:
        for result in claim.results:
            share = {"share_id": result.share_id} if self.protocol is dra_v1_pb2 and result.share_id else {}
            yield self.protocol.Device(
                request_names=[result.request], pool_name=result.pool, device_name=result.device,
                cdi_device_ids=[device_id(claim, result.number)], **share,
            )  # fmt: skip


def _wanted(request: Any) -> list[Wanted]:
    return [Wanted(one.namespace, one.name, one.uid) for one in request.claims]


class Health:
    """DRAResourceHealth: the health of all devices now, after every change, and every HEARTBEAT seconds."""

    def __init__(self, pool: str) -> None:
        self.pool = pool
        self._changed = threading.Condition()
        self._devices: list[Device] = []
        self._since = int(time.time())
        self._version = 0
        self._over = False
        self._streams: list[int] = []
        self._opened = 0

    def update(self, devices: list[Device]) -> None:
        with self._changed:
            if devices != self._devices:
                self._devices, self._since = devices, int(time.time())
                self._version += 1
                self._changed.notify_all()

    def end(self) -> None:
        """End all streams."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def NodeWatchResources(self, _request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        with self._changed:
            self._opened += 1
            stream = self._opened
            self._streams = [*self._streams, stream][-MAX_STREAMS:]
        seen = -1
        while context.is_active():
            with self._changed:
                self._changed.wait_for(lambda: self._over or self._version != seen, HEARTBEAT)  # noqa: B023  # as above
                if self._over or stream not in self._streams:
                    return
                seen, response = self._version, self._response()
            yield response

    def _response(self) -> Any:
        return dra_health_pb2.NodeWatchResourcesResponse(devices=[
            dra_health_pb2.DeviceHealth(
                device=dra_health_pb2.DeviceIdentifier(pool_name=self.pool, device_name=device.name),
                health="UNHEALTHY" if device.ill else "HEALTHY", last_updated_time=self._since,
                health_check_timeout_seconds=HEALTH_TIMEOUT, message=device.ill,
            )
            for device in self._devices
        ])  # fmt: skip


class Server:
    """The sockets below `kubelet_dir`. `instance` is the pod's uid, "" outside Kubernetes."""

    def __init__(self, kubelet_dir: str, instance: str, driver: Driver, conditions: Conditions) -> None:
        self.registry = f"{kubelet_dir}/plugins_registry"
        self.directory = f"{kubelet_dir}/plugins/{DRIVER}"
        self.instance = instance
        self.driver = driver
        self.conditions = conditions
        self.health = Health(driver.pool)
        self.registered = False
        self.endpoint = self.registration = ""
        self._times = 0
        self._server: grpc.Server | None = None
        self._inodes: list[int] = []

    def look(self) -> None:
        """Bind the sockets if they are not there, and delete those of instances that have died. VgpuError or OSError
        when that fails."""
        if self._server is None or self._inodes != _inodes([self.endpoint, self.registration]):
            self.close(0)
            self._bind()
        remove_unserved(self.registry, self.directory, (self.registration, self.endpoint))

    def close(self, grace: float) -> None:
        """Accept no more calls; those in progress have `grace` seconds. Deletes the sockets, kubelet's first."""
        if self._server is None:
            return
        if _inodes([self.registration]) == self._inodes[1:]:
            _unlink(self.registration)
        self.health.end()
        self._server.stop(grace).wait()
        self._server, self.registered = None, False
        _unlink(self.endpoint)

    def GetInfo(self, _request: Any, _context: grpc.ServicerContext) -> Any:
        return pluginregistration_pb2.PluginInfo(
            type="DRAPlugin", name=DRIVER, endpoint=self.endpoint, supported_versions=VERSIONS
        )

    def NotifyRegistrationStatus(self, request: Any, _context: grpc.ServicerContext) -> Any:
        self.registered = request.plugin_registered
        refused = f"kubelet does not register {DRIVER}: {request.error or 'it gives no reason'}"
        self.conditions.set("dra registration", "" if self.registered else refused)
        if self.registered:
            self.conditions.log.info("registered", driver=DRIVER, socket=self.endpoint)
        return pluginregistration_pb2.RegistrationStatusResponse()

    def _bind(self) -> None:
        self._choose_names()
        for directory in (self.registry, self.directory):
            os.makedirs(directory, mode=0o750, exist_ok=True)
        self.health = Health(self.driver.pool)
        self.health.update(list(self.driver.devices.values()))
        server = grpc.server(futures.ThreadPoolExecutor(WORKERS, thread_name_prefix="dra"), options=OPTIONS)
        server.add_generic_rpc_handlers((
            services.handler(dra_v1_pb2, "DRAPlugin", Calls(self.driver, dra_v1_pb2)),
            services.handler(dra_v1beta1_pb2, "DRAPlugin", Calls(self.driver, dra_v1beta1_pb2)),
            services.handler(dra_health_pb2, "DRAResourceHealth", self.health),
            services.handler(pluginregistration_pb2, "Registration", self),
        ))  # fmt: skip
        for path in (self.endpoint, self.registration):  # kubelet calls as soon as it sees the second one
            if len(os.fsencode(path)) > MAX_PATH:
                expected = f"a path of which {path} has {MAX_PATH} bytes at most"
                raise VgpuError("plugin.socket_dir", expected=expected, found=f"{len(os.fsencode(path))}")
            _unlink(path)
            try:
                server.add_insecure_port(f"unix:{path}")
            except RuntimeError as error:
                raise VgpuError(path, expected="a place for the driver's socket", found=str(error)) from None
            os.chmod(path, 0o600)
        server.start()
        self._server, self._inodes = server, _inodes([self.endpoint, self.registration])

    def _choose_names(self) -> None:
        """Other names each time: gRPC unlinks an old path some time after its server's end."""
        self._times += 1
        again = f"-{self._times}" if self._times > 1 else ""
        instance = (f"-{self.instance}" if self.instance else "") + again
        self.endpoint = f"{self.directory}/dra{instance}.sock"
        self.registration = f"{self.registry}/{DRIVER}{instance}-reg.sock"


def remove_unserved(registry: str, directory: str, own: tuple[str, ...] = ()) -> None:
    """Delete the sockets of instances that have died: kubelet would go on calling them."""
    found = [f"{registry}/{name}" for name in os.listdir(registry) if name.startswith(DRIVER)]
    for path in [*found, *(f"{directory}/{name}" for name in os.listdir(directory))]:
        if path.endswith(".sock") and path not in own and not _is_served(path):
            _unlink(path)


def _is_served(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(path)
        except BlockingIOError:
            return True  # its queue is full
        except OSError:
            return False
    return True


def _inodes(paths: list[str]) -> list[int]:
    found = []
    for path in paths:
        with contextlib.suppress(OSError):
            found.append(os.lstat(path).st_ino)
    return found


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
