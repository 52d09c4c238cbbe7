"""kubelet's gRPC interfaces to a device plugin, from the tests' own descriptions in data/proto/kubelet/.

Belongs here: message classes, calls and servers on Unix sockets. kubelet's behaviour is in kubelet_devices. The classes
are in a descriptor pool of their own, so the plugin's stubs of the same names can be loaded in the same process.
"""

from __future__ import annotations

import functools
import os
import socket
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from checkout import DATA
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc

PROTO = DATA / "proto/kubelet"
VERSION = "v1beta1"


@functools.cache
def _pool() -> descriptor_pool.DescriptorPool:
    files = sorted(path.name for path in PROTO.glob("*.proto"))
    with tempfile.NamedTemporaryFile() as out:
        status = protoc.main(["protoc", f"-I{PROTO}", f"--descriptor_set_out={out.name}", *files])
        assert status == 0, f"protoc: exit status {status}"
        described = descriptor_pb2.FileDescriptorSet.FromString(Path(out.name).read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in described.file:
        pool.Add(file)
    return pool


@functools.cache
def message(name: str) -> Any:
    """The class of `name`, e.g. v1beta1.Device."""
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(name))


def dial(path: Path) -> grpc.Channel:
    """Connect as kubelet does, with gRPC's default limit of 4 MiB for a received message."""
    return grpc.insecure_channel(f"unix://{path}", options=[("grpc.use_local_subchannel_pool", 1)])


def call(channel: grpc.Channel, method: str, request: Any, response: str, timeout: float = 60) -> Any:
    """The answer to a unary call."""
    caller = channel.unary_unary(
        method, request_serializer=_serialize, response_deserializer=message(response).FromString
    )
    return caller(request, timeout=timeout)


def stream(channel: grpc.Channel, method: str, request: Any, response: str) -> Any:
    """The messages of a stream, as the call object, which can be cancelled."""
    caller = channel.unary_stream(
        method, request_serializer=_serialize, response_deserializer=message(response).FromString
    )
    return caller(request)


def _serialize(request: Any) -> bytes:
    return request.SerializeToString()  # type: ignore[no-any-return]


class Server:
    """A service on a socket; `methods`: name -> (request's class, function of the request and the context).

    The functions of the methods in `streams` return iterators.
    """

    def __init__(
        self,
        path: Path,
        service: str,
        methods: dict[str, tuple[str, Callable[..., Any]]],
        streams: tuple[str, ...] = (),
    ) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        self.server = grpc.server(ThreadPoolExecutor(16), options=[("grpc.so_reuseport", 0)])
        handlers = {name: _handler(*method, name in streams) for name, method in methods.items()}
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        assert self.server.add_insecure_port(f"unix://{path}")
        self.server.start()
        self._stopped = False

    def stop(self) -> None:
        """Stop at once, and leave what a killed process leaves: a socket that no process listens on."""
        if self._stopped:
            return
        self._stopped = True
        self.server.stop(None).wait()
        end = time.monotonic() + 60
        while self.path.exists() and time.monotonic() < end:
            time.sleep(0.005)  # gRPC unlinks it behind our back
        with socket.socket(socket.AF_UNIX) as dead:
            self.path.unlink(missing_ok=True)
            dead.bind(os.fspath(self.path))


def _handler(request: str, answer: Callable[..., Any], streams: bool) -> grpc.RpcMethodHandler:
    deserializer = message(request).FromString
    if streams:
        return grpc.unary_stream_rpc_method_handler(answer, deserializer, _serialize)
    return grpc.unary_unary_rpc_method_handler(answer, deserializer, _serialize)
