"""One resource's gRPC server on its Unix socket, which kubelet calls.

Belongs here: the protocol's answers, threads and streams. Calls to kubelet belong to vgpu.plugin.kubelet.registration,
allocations to vgpu.plugin.kubelet.allocate. A stream waits for a change or for its end, never for a time. kubelet needs
one stream, so of several only the newest MAX_STREAMS stay open.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any, ClassVar, NoReturn

import grpc

from vgpu.config.errors import VgpuError, escaped, is_absent
from vgpu.config.grants import Grant
from vgpu.config.settings import Settings
from vgpu.hook.placement.placement import Policy
from vgpu.node.service.kubelet_resources import UNHEALTHY, Resource, Slot
from vgpu.node.service.log import Log
from vgpu.plugin.kubelet import allocate, preferred
from vgpu.plugin.kubelet.allocate import Allocator
from vgpu.plugin.kubelet.proto import deviceplugin_pb2 as protocol
from vgpu.plugin.kubelet.proto import services

HEALTHY = "Healthy"
WORKERS = 12
MAX_STREAMS = 4
MAX_PATH = 107  #: bytes of a Unix socket's path
MAX_REQUEST = 16 << 20  #: bytes: twice the ids of a whole list
OPTIONS = (("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", MAX_REQUEST))

Reasons = dict[str, str]  #: card uuid -> why the card is unhealthy; "" or absent for a healthy card


class Stream:
    """One ListAndWatch call. `over`: the call ends. `cancel` ends it even if its reader has stopped reading."""

    def __init__(self, cancel: Callable[[], object]) -> None:
        self.cancel = cancel
        self.over = False


def _nobody() -> None:
    return


class DeviceList:
    """The device list of one resource as it is now, and the streams that send it."""

    def __init__(self, resource: Resource, reasons: Reasons) -> None:
        self.changed = threading.Condition()
        self.streams: list[Stream] = []
        self.ended: Callable[[], None] = _nobody  #: called after the end of each stream
        self._resource, self._reasons = resource, reasons
        self._response = response_of(resource, reasons)
        self._version = 0

    @property
    def resource(self) -> Resource:
        return self._resource

    def update(self, resource: Resource, reasons: Reasons) -> bool:
        """Replace the list; returns whether it differs from the last one. The streams then send it."""
        if (resource, reasons) == (self._resource, self._reasons):
            return False
        response = response_of(resource, reasons)
        with self.changed:
            self._resource, self._reasons = resource, reasons
            if response == self._response:
                return False
            self._response = response
            self._version += 1
            self.changed.notify_all()
            return True

    def open(self, cancel: Callable[[], object]) -> Stream:
        stream = Stream(cancel)
        with self.changed:
            self.streams.append(stream)
            old = self.streams[:-MAX_STREAMS]
        for one in old:
            one.cancel()
            self.end(one)
        return stream

    def end(self, stream: Stream) -> None:
        with self.changed:
            stream.over = True
            if stream in self.streams:
                self.streams.remove(stream)
            self.changed.notify_all()
        self.ended()

    def end_all(self) -> None:
        with self.changed:
            for stream in self.streams:
                stream.over = True
            self.changed.notify_all()

    def responses(self, stream: Stream) -> Iterator[bytes]:
        """The list now and after every change, until the stream is over."""
        seen = -1
        while True:
            with self.changed:
                self.changed.wait_for(lambda: stream.over or self._version != seen)  # noqa: B023  # it is called here
                if stream.over:
                    return
                seen, response = self._version, self._response
            yield response


def response_of(resource: Resource, reasons: Reasons) -> bytes:
    """The ListAndWatchResponse of `resource`, encoded.

    Encodes one card at a time, because there may be 100,000 devices. To protobuf, the concatenation is one message.
    """
    return b"".join(_of_card(slot, UNHEALTHY if reasons.get(slot.card.uuid) else HEALTHY) for slot in resource.slots)


def _of_card(slot: Slot, health: str) -> bytes:
    topology = None
    if slot.card.numa >= 0:
        topology = protocol.TopologyInfo(nodes=[protocol.NUMANode(ID=slot.card.numa)])
    devices = [protocol.Device(ID=one, health=health, topology=topology) for one in slot.ids()]
    return protocol.ListAndWatchResponse(devices=devices).SerializeToString()


class Servicer:
    """The DevicePlugin service of one resource. `handed_over` gets each grant's id once kubelet has the answer."""

    def __init__(
        self,
        device_list: DeviceList,
        allocator: Allocator,
        policy: Policy,
        log: Log,
        handed_over: Callable[[str], None],
    ) -> None:
        self.device_list = device_list
        self.allocator = allocator
        self.policy = policy
        self.log = log
        self.handed_over = handed_over

    def GetDevicePluginOptions(self, _request: Any, _context: grpc.ServicerContext) -> Any:
        return options()

    def ListAndWatch(self, _request: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
        stream = self.device_list.open(context.cancel)
        try:
            if context.add_callback(lambda: self.device_list.end(stream)):  # False: kubelet has closed the call already
                yield from self.device_list.responses(stream)
        finally:
            self.device_list.end(stream)

    def GetPreferredAllocation(self, request: Any, _context: grpc.ServicerContext) -> Any:
        resource = self.device_list.resource
        beside = self.allocator.card_of_other_half(resource.kind)
        answers = [
            protocol.ContainerPreferredAllocationResponse(
                deviceIDs=preferred.preferred(
                    resource,
                    one.available_deviceIDs,
                    one.must_include_deviceIDs,
                    one.allocation_size,
                    self.policy,
                    beside,
                )
            )
            for one in request.container_requests
        ]
        return protocol.PreferredAllocationResponse(container_responses=answers)

    def Allocate(self, request: Any, context: grpc.ServicerContext) -> Any:
        resource = self.device_list.resource
        try:
            granted = self.allocator.allocate(resource, [list(one.devicesIDs) for one in request.container_requests])
        except allocate.Refused as error:
            self._abort(context, grpc.StatusCode.INVALID_ARGUMENT, resource, str(error))
        except (VgpuError, OSError) as error:
            do = "the grant cannot be written; delete the pod when this is repaired"
            self._abort(context, grpc.StatusCode.UNAVAILABLE, resource, f"{resource.name}: {error}; {do}")
        for grant in granted:
            self._granted(resource, grant)
        if not context.add_callback(lambda: self._notify_handed_over(granted)):  # kubelet has closed the call
            self._notify_handed_over(granted)
        answers = [_answer(grant, self.allocator.settings) for grant in granted]
        return protocol.AllocateResponse(container_responses=answers)

    def PreStartContainer(self, _request: Any, _context: grpc.ServicerContext) -> Any:
        return protocol.PreStartContainerResponse()

    def _notify_handed_over(self, granted: list[Grant]) -> None:
        for grant in granted:
            self.handed_over(grant.id)

    def _abort(self, context: grpc.ServicerContext, code: grpc.StatusCode, resource: Resource, text: str) -> NoReturn:
        self.log.warning(f"refused: {text}", resource=resource.name)
        context.abort(code, f"vgpu: {escaped(text)}")

    def _granted(self, resource: Resource, grant: Grant) -> None:
        self.log.info("granted", grant=grant.id[:8], resource=resource.name, amount=grant.amount)


def options() -> Any:
    return protocol.DevicePluginOptions(get_preferred_allocation_available=True)


def _answer(grant: Grant, settings: Settings) -> Any:
    environment, annotations, names = allocate.answer(grant, settings)
    devices = [protocol.CDIDevice(name=name) for name in names]
    return protocol.ContainerAllocateResponse(envs=environment, annotations=annotations, cdi_devices=devices)


class ResourceServer:
    """A resource's server at `<socket_dir>/vgpu-<stem>.sock`. Bound again whenever kubelet has deleted it.

    From the second time on its name differs: `vgpu-<stem>-2.sock` and so on. The reason is that gRPC unlinks the old
    path some time after the old server's end, and would unlink the new socket with it.
    """

    _bindings: ClassVar[dict[str, int]] = {}  #: path of the first socket -> the times it was bound in this process

    def __init__(self, socket_dir: str, servicer: Servicer) -> None:
        self.servicer = servicer
        self.device_list = servicer.device_list
        self.socket_dir = socket_dir
        self.endpoint = f"{self._stem}.sock"
        self._server: grpc.Server | None = None
        self._bound = 0  #: the socket's inode

    @property
    def _stem(self) -> str:
        return f"vgpu-{self.device_list.resource.stem}"

    @property
    def path(self) -> str:
        return f"{self.socket_dir}/{self.endpoint}"

    @property
    def name(self) -> str:
        return self.device_list.resource.name

    def bound(self) -> bool:
        """Whether the socket in the directory is still this server's. It is, if that cannot be found out."""
        try:
            return self._bound == os.lstat(self.path).st_ino
        except OSError as error:
            return bool(self._bound) and not is_absent(error)

    def bind(self) -> None:
        """Serve at the socket's path and replace any file there, as this process holds the lock; else VgpuError."""
        self.close(0)
        self._choose_name()
        if len(os.fsencode(self.path)) > MAX_PATH:
            raise VgpuError("plugin.socket_dir", expected=f"a path of which {self.path} has {MAX_PATH} bytes at most",
                            found=f"{len(os.fsencode(self.path))}")  # fmt: skip
        self._clear()
        pool = futures.ThreadPoolExecutor(WORKERS, thread_name_prefix=self.endpoint)
        server = grpc.server(pool, options=OPTIONS)
        server.add_generic_rpc_handlers((services.handler(protocol, "DevicePlugin", self.servicer),))
        try:
            server.add_insecure_port(f"unix:{self.path}")
            os.chmod(self.path, 0o600)
            inode = os.lstat(self.path).st_ino
        except (RuntimeError, OSError) as error:
            raise VgpuError(
                self.path, expected="a place for the plugin's socket", found=_why(self.path, error)
            ) from None
        server.start()
        self._server, self._bound = server, inode

    def _choose_name(self) -> None:
        first = f"{self.socket_dir}/{self._stem}.sock"
        times = self._bindings[first] = self._bindings.get(first, 0) + 1
        self.endpoint = f"{self._stem}.sock" if times == 1 else f"{self._stem}-{times}.sock"

    def _clear(self) -> None:
        """Delete sockets of this resource that earlier plugins left."""
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self.socket_dir):
                if name.startswith((f"{self._stem}.", f"{self._stem}-")) and name.endswith(".sock"):
                    os.unlink(f"{self.socket_dir}/{name}")

    def close(self, grace: float) -> None:
        """Accept no more calls. Calls in progress have `grace` seconds, streams end at once. Deletes the socket."""
        if self._server is None:
            return
        self.device_list.end_all()
        self._server.stop(grace).wait()
        if self.bound():  # usually gRPC has removed it
            os.unlink(self.path)
        self._server, self._bound = None, 0


def _why(path: str, error: Exception) -> str:
    """gRPC reports no reason, so one more attempt to bind finds it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
        try:
            probe.bind(path)
        except OSError as reason:
            return reason.strerror or str(reason)
    os.unlink(path)
    return str(error)
