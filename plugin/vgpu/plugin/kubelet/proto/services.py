"""gRPC services from the descriptors of the generated messages: handlers for a server, callables for a client.

Belongs here: names, types and streams of methods, read from the descriptor of the .proto. This module replaces the
generated service code, which requires a grpcio at least as new as its generator. What a method does belongs elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import grpc
from google.protobuf.descriptor_pb2 import ServiceDescriptorProto


def handler(module: ModuleType, service: str, servicer: object) -> grpc.GenericRpcHandler[Any, Any]:
    """A handler of the methods of `servicer`: (request, context) -> response, or an iterator of responses.

    A response is a message, or the bytes of one.
    """
    handlers = {}
    for method, request, _ in _methods(module, service):
        kind = grpc.unary_stream_rpc_method_handler if method.server_streaming else grpc.unary_unary_rpc_method_handler
        handlers[method.name] = kind(
            getattr(servicer, method.name),
            request_deserializer=request.FromString,
            response_serializer=_encoded,
        )
    return grpc.method_handlers_generic_handler(_full_name(module, service), handlers)


class Client:
    """The methods of a service as attributes: client.Allocate(request, timeout=5)."""

    def __init__(self, channel: grpc.Channel, module: ModuleType, service: str) -> None:
        for method, request, response in _methods(module, service):
            kind = channel.unary_stream if method.server_streaming else channel.unary_unary
            call = kind(
                f"/{_full_name(module, service)}/{method.name}",
                request_serializer=request.SerializeToString,
                response_deserializer=response.FromString,
            )
            setattr(self, method.name, call)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        raise AttributeError(f"no method {name}")


def _encoded(response: Any) -> bytes:
    return response if isinstance(response, bytes) else bytes(response.SerializeToString())


def _full_name(module: ModuleType, service: str) -> str:
    return str(module.DESCRIPTOR.services_by_name[service].full_name)


def _methods(module: ModuleType, service: str) -> list[tuple[Any, Any, Any]]:
    """(method, class of its request, class of its response) for each method."""
    described = ServiceDescriptorProto()
    module.DESCRIPTOR.services_by_name[service].CopyToProto(described)

    def message(name: str) -> Any:
        return getattr(module, name.rpartition(".")[2])

    return [(method, message(method.input_type), message(method.output_type)) for method in described.method]
