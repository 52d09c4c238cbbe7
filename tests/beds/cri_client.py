"""Kubernetes' container runtime interface over a Unix socket, described minimally in data/proto/cri/.

Belongs here: connecting and calling. The fields of a pod are in containerd_bed. The protoc of grpcio-tools generates
the message classes when a test run first needs them.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import daemons
import grpc
from checkout import DATA
from grpc_tools import protoc

PROTO = DATA / "proto/cri/runtime.proto"
GENERATED = "runtime_pb2"
IMAGES = ("ImageStatus",)


def messages() -> ModuleType:
    """The generated message classes."""
    if GENERATED not in sys.modules:
        with tempfile.TemporaryDirectory() as directory:
            status = protoc.main(["protoc", f"-I{PROTO.parent}", f"--python_out={directory}", PROTO.name])
            assert status == 0, f"protoc: exit status {status}"
            sys.path.insert(0, directory)
            try:
                importlib.import_module(GENERATED)
            finally:
                sys.path.remove(directory)
    return sys.modules[GENERATED]


class CriError(Exception):
    """The runtime's error: the text that kubelet shows in the pod's events."""


class Client:
    """`call("RunPodSandbox", ...)`: fields of the request as keywords, the response as the result."""

    def __init__(self, socket: Path) -> None:
        self.messages = messages()
        self.error: CriError | None = None
        self.channel = grpc.insecure_channel(f"unix://{socket}")

    def call(self, name: str, deadline: float = 60, **fields: Any) -> Any:
        service = "ImageService" if name in IMAGES else "RuntimeService"
        response = getattr(self.messages, f"{name}Response")
        method = self.channel.unary_unary(
            f"/runtime.v1.{service}/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=response.FromString,
        )
        try:
            return method(getattr(self.messages, f"{name}Request")(**fields), timeout=deadline)
        except grpc.RpcError as error:
            raise CriError(f"{error.code().name}: {error.details()}") from None

    def wait_for(self, name: str, seconds: float = 120, **fields: Any) -> Any:
        """Like `call`, repeated until the daemon, which has just been started, answers."""

        def answer() -> Any:
            try:
                return self.call(name, deadline=5, **fields)
            except CriError as error:
                self.error = error
                return None

        return daemons.wait_for(answer, seconds, lambda: str(self.error))

    def close(self) -> None:
        self.channel.close()
