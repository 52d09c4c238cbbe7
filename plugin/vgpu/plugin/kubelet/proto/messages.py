"""Message classes from the descriptor of a .proto, with any protobuf from 3.12 on.

Belongs here: the few calls that distributions' versions of protobuf do not share. Debian 11 and Ubuntu 22.04 have 3.12,
which lacks google.protobuf.internal.builder, the module that protoc's own output imports. The `*_pb2.py` call `add`.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, symbol_database


def add(serialized: bytes, module: dict[str, Any]) -> Any:
    """Put a class for each message of the serialized FileDescriptorProto into `module`. Return its FileDescriptor."""
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(serialized)  # returns None before 3.20
    descriptor = pool.FindFileByName(descriptor_pb2.FileDescriptorProto.FromString(serialized).name)
    for name, message in descriptor.message_types_by_name.items():
        module[name] = _message_class(message)
    return descriptor


def _message_class(descriptor: Any) -> Any:
    """The class of a message. protobuf 4.22 added GetMessageClass; later versions lack GetPrototype."""
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(descriptor)
    factory: Any = symbol_database.Default()  # one for all messages, so that fields have the same classes
    return factory.GetPrototype(descriptor)
