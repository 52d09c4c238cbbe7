"""One resource's gRPC server on its Unix socket: what kubelet calls, and nothing that this plugin calls.

Belongs here: the protocol's answers, threads and streams. What a device list or an allocation is, other modules say.
A stream waits for a change or for its end, never for a time; kubelet has one, so of many only the newest stay.
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

from vgpu.config.errors import VgpuError, escaped
from vgpu.config.grants import Grant
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
MAX_REQUEST = 16 << 20  #: ids of a whole list, twice
OPTIONS = (("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", MAX_REQUEST))

Reasons = dict[str, str]  #: card uuid -> why it is unhealthy, "" or absent: it is healthy


class Stream:
    """One ListAndWatch call; `over` when its end is known. `cancel` ends one whose reader has stopped reading, too."""

    def __init__(self, cancel: Callable[[], object]) -> None:
        self.cancel = cancel
        self.over = False


def _nobody() -> None:
    return


class Listing:
    """The list of one resource as it is now, and who waits for the next one."""

    def __init__(self, resource: Resource, reasons: Reasons) -> None:
        self.changed = threading.Condition()
        self.streams: list[Stream] = []
        self.ended: Callable[[], None] = _nobody  #: told of the end of each stream
        self._resource, self._reasons = resource, reasons
        self._response = response_of(resource, reasons)
        self._version = 0

    @property
    def resource(self) -> Resource:
        return self._resource

    def update(self, resource: Resource, reasons: Reasons) -> bool:
        """Whether the list is another one now; the streams send it then."""
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
        """The list, and again with every change, until the stream is over."""
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

    Card by card, because there may be 100,000 devices: what is encoded one after another is one message to protobuf.
    """
    return b"".join(_of_card(slot, UNHEALTHY if reasons.get(slot.card.uuid) else HEALTHY) for slot in resource.slots)


def _of_card(slot: Slot, health: str) -> bytes:
    topology = None
    if slot.card.numa >= 0:
        topology = protocol.TopologyInfo(nodes=[protocol.NUMANode(ID=slot.card.numa)])
    devices = [protocol.Device(ID=one, health=health, topology=topology) for one in slot.ids()]
    return protocol.ListAndWatchResponse(devices=devices).SerializeToString()


class Servicer:
    """The DevicePlugin service of one resource. `handed_over` is told of each grant when kubelet has its answer."""

    def __init__(
        self,
        listing: Listing,
        allocator: Allocator,
        policy: Policy,
        journal: Log,
        handed_over: Callable[[str], None],
    ) -> None:
        self.listing = listing
        self.allocator = allocator
        self.policy = policy
        self.journal = journal
        self.handed_over = handed_over

    def GetDevicePluginOptions(self, _request: Any, _context: grpc.ServicerContext) -> Any:
        return options()

    def ListAndWatch(self, _request: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
        stream = self.listing.open(context.cancel)
        try:
            if context.add_callback(lambda: self.listing.end(stream)):  # False: kubelet has hung up already
                yield from self.listing.responses(stream)
        finally:
            self.listing.end(stream)

    def GetPreferredAllocation(self, request: Any, _context: grpc.ServicerContext) -> Any:
        resource = self.listing.resource
        answers = [
            protocol.ContainerPreferredAllocationResponse(
                deviceIDs=preferred.preferred(
                    resource, one.available_deviceIDs, one.must_include_deviceIDs, one.allocation_size, self.policy
                )
            )
            for one in request.container_requests
        ]
        return protocol.PreferredAllocationResponse(container_responses=answers)

    def Allocate(self, request: Any, context: grpc.ServicerContext) -> Any:
        resource = self.listing.resource
        try:
            made = self.allocator.allocate(resource, [list(one.devicesIDs) for one in request.container_requests])
        except allocate.Refused as error:
            self._abort(context, grpc.StatusCode.INVALID_ARGUMENT, resource, str(error))
        except (VgpuError, OSError) as error:
            do = "the grant cannot be written; delete the pod when this is mended"
            self._abort(context, grpc.StatusCode.UNAVAILABLE, resource, f"{resource.name}: {error}; {do}")
        for grant in made:
            self._granted(resource, grant)
        if not context.add_callback(lambda: self._tell_of(made)):  # kubelet has hung up
            self._tell_of(made)
        return protocol.AllocateResponse(container_responses=[_answer(grant) for grant in made])

    def PreStartContainer(self, _request: Any, _context: grpc.ServicerContext) -> Any:
        return protocol.PreStartContainerResponse()

    def _tell_of(self, made: list[Grant]) -> None:
        for grant in made:
            self.handed_over(grant.id)

    def _abort(self, context: grpc.ServicerContext, code: grpc.StatusCode, resource: Resource, text: str) -> NoReturn:
        self.journal.warning(f"refused: {text}", resource=resource.name)
        context.abort(code, f"vgpu: {escaped(text)}")

    def _granted(self, resource: Resource, grant: Grant) -> None:
        self.journal.info("granted", grant=grant.id[:8], resource=resource.name, amount=grant.amount)


def options() -> Any:
    return protocol.DevicePluginOptions(get_preferred_allocation_available=True)


def _answer(grant: Grant) -> Any:
    environment, annotations = allocate.answer(grant)
    return protocol.ContainerAllocateResponse(envs=environment, annotations=annotations)


class ResourceServer:
    """A resource's server at `<socket_dir>/vgpu-<kind>.sock`. Bound anew whenever kubelet has deleted the socket.

    Bound again, it has another name, `vgpu-<kind>-2.sock` and so on: gRPC unlinks the old path some time after the old
    server's end, which would take the new socket along.
    """

    _bindings: ClassVar[dict[str, int]] = {}  #: path of the first socket -> how often it was bound in this process

    def __init__(self, socket_dir: str, servicer: Servicer) -> None:
        self.servicer = servicer
        self.listing = servicer.listing
        self.socket_dir = socket_dir
        self.endpoint = f"{self._stem}.sock"
        self._server: grpc.Server | None = None
        self._bound = 0  #: the socket's inode

    @property
    def _stem(self) -> str:
        return f"vgpu-{self.listing.resource.kind}"

    @property
    def path(self) -> str:
        return f"{self.socket_dir}/{self.endpoint}"

    @property
    def name(self) -> str:
        return self.listing.resource.name

    def bound(self) -> bool:
        """Whether the socket in the directory is ours still."""
        return bool(self._bound) and self._bound == _inode(self.path)

    def bind(self) -> None:
        """Serve at the socket's path, whatever lies there: the instance's lock is ours. VgpuError when that fails."""
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
        except (RuntimeError, OSError) as error:
            raise VgpuError(
                self.path, expected="a place for the plugin's socket", found=_why(self.path, error)
            ) from None
        server.start()
        self._server, self._bound = server, _inode(self.path)

    def _choose_name(self) -> None:
        first = f"{self.socket_dir}/{self._stem}.sock"
        times = self._bindings[first] = self._bindings.get(first, 0) + 1
        self.endpoint = f"{self._stem}.sock" if times == 1 else f"{self._stem}-{times}.sock"

    def _clear(self) -> None:
        """Sockets of this resource that plugins before us left."""
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self.socket_dir):
                if name.startswith((f"{self._stem}.", f"{self._stem}-")) and name.endswith(".sock"):
                    os.unlink(f"{self.socket_dir}/{name}")

    def close(self, grace: float) -> None:
        """No more calls; those under way have `grace` seconds, streams end at once. The socket goes too."""
        if self._server is None:
            return
        self.listing.end_all()
        self._server.stop(grace).wait()
        if self.bound():  # gRPC removes it as a rule
            os.unlink(self.path)
        self._server, self._bound = None, 0


def _inode(path: str) -> int:
    try:
        return os.lstat(path).st_ino
    except OSError:
        return 0


def _why(path: str, error: Exception) -> str:
    """gRPC tells no reason of its own: one more attempt does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
        try:
            probe.bind(path)
        except OSError as reason:
            return reason.strerror or str(reason)
    os.unlink(path)
    return str(error)
