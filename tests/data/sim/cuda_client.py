"""A CUDA program that tests drive line by line: one JSON list per line in, one JSON value out.

Run as a process of its own, because that is what the simulator is about: who uses a card, and who died.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from typing import Any

cuda = ctypes.CDLL("libcuda.so.1")


def init() -> int:
    return cuda.cuInit(0)


def context(device: int) -> int:
    """Retain the device's primary context and make it current."""
    result, handle = made("cuDevicePrimaryCtxRetain", device)
    return result or cuda.cuCtxSetCurrent(ctypes.c_void_p(handle))


def release(device: int) -> int:
    return cuda.cuDevicePrimaryCtxRelease_v2(device)


def made(function: str, *arguments: Any) -> list[int]:
    """What a function returns, and what it writes to where its first argument points."""
    out = ctypes.c_uint64()
    result = getattr(cuda, function)(ctypes.byref(out), *arguments)
    return [result, out.value]


def alloc(size: int) -> list[int]:
    return made("cuMemAlloc_v2", ctypes.c_size_t(size))


def free(pointer: int) -> int:
    return cuda.cuMemFree_v2(ctypes.c_uint64(pointer))


def info() -> list[int]:
    total = ctypes.c_size_t()
    return [*made("cuMemGetInfo_v2", ctypes.byref(total)), total.value]


def write(pointer: int, text: str) -> int:
    return cuda.cuMemcpyHtoD_v2(ctypes.c_uint64(pointer), text.encode(), ctypes.c_size_t(len(text)))


def read(pointer: int, size: int) -> list[Any]:
    out = ctypes.create_string_buffer(size)
    result = cuda.cuMemcpyDtoH_v2(out, ctypes.c_uint64(pointer), ctypes.c_size_t(size))
    return [result, out.raw.decode(errors="replace")]


class Handle(ctypes.Structure):
    """What one process gives another."""

    _fields_ = (("bytes", ctypes.c_uint8 * 64),)


def given(function: str, what: int) -> list[Any]:
    handle = Handle()
    result = getattr(cuda, function)(ctypes.byref(handle), ctypes.c_uint64(what))
    return [result, bytes(handle.bytes).hex()]


def taken(handle: str) -> Handle:
    return Handle.from_buffer_copy(bytes.fromhex(handle))


def ipc_handle(pointer: int) -> list[Any]:
    return given("cuIpcGetMemHandle", pointer)


def ipc_open(handle: str) -> list[int]:
    return made("cuIpcOpenMemHandle_v2", taken(handle), 1)


def ipc_close(pointer: int) -> int:
    return cuda.cuIpcCloseMemHandle(ctypes.c_uint64(pointer))


def event() -> int:
    """An event that other processes may open."""
    return made("cuEventCreate", 2 | 4)[1]


def event_handle(event: int) -> list[Any]:
    return given("cuIpcGetEventHandle", event)


def event_open(handle: str) -> list[int]:
    return made("cuIpcOpenEventHandle", taken(handle))


def event_destroy(event: int) -> int:
    return cuda.cuEventDestroy_v2(ctypes.c_void_p(event))


def record(event: int) -> int:
    return cuda.cuEventRecord(ctypes.c_void_p(event), None)


def wait(event: int) -> int:
    """The default stream waits."""
    return cuda.cuStreamWaitEvent(None, ctypes.c_void_p(event), 0)


def query(event: int = 0) -> int:
    """Of an event, or of the default stream."""
    return cuda.cuEventQuery(ctypes.c_void_p(event)) if event else cuda.cuStreamQuery(None)


def synchronize(event: int = 0) -> int:
    return cuda.cuEventSynchronize(ctypes.c_void_p(event)) if event else cuda.cuStreamSynchronize(None)


gates: list[int] = []


def gate() -> int:
    """The default stream waits until gate_open is called."""
    word = made("cuMemHostAlloc", ctypes.c_size_t(4), 0)[1]
    ctypes.memset(word, 0, 4)
    gates.append(word)
    return cuda.cuStreamWaitValue32_v2(None, ctypes.c_uint64(word), 1, 0)


def gate_open() -> None:
    ctypes.memset(gates.pop(0), 1, 1)


def pool(handle_types: int = 1) -> list[int]:
    properties = (ctypes.c_int * 22)(1, handle_types, 1, 0)
    return made("cuMemPoolCreate", properties)


def pool_alloc(pool: int, size: int) -> list[int]:
    return made("cuMemAllocFromPoolAsync", ctypes.c_size_t(size), ctypes.c_void_p(pool), None)


def pool_free(pointer: int) -> int:
    return cuda.cuMemFreeAsync(ctypes.c_uint64(pointer), None) or cuda.cuStreamSynchronize(None)


def pool_export(pool: int) -> list[int]:
    return made("cuMemPoolExportToShareableHandle", ctypes.c_void_p(pool), 1, ctypes.c_uint64(0))


def pool_import(path: str) -> list[int]:
    """By the exporter's descriptor, which a program would have been sent."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    imported = made("cuMemPoolImportFromShareableHandle", ctypes.c_void_p(fd), 1, ctypes.c_uint64(0))
    os.close(fd)
    return imported


def pointer_export(pointer: int) -> list[Any]:
    return given("cuMemPoolExportPointer", pointer)


def pointer_import(pool: int, data: str) -> list[int]:
    return made("cuMemPoolImportPointer", ctypes.c_void_p(pool), ctypes.byref(taken(data)))


def fill(size: int) -> int:
    """Allocate chunks of `size` until there is no more; how many there were."""
    count = 0
    while alloc(size)[0] == 0:
        count += 1
    return count


def of_each(function: str, size: int, *more: int) -> list[bytes]:
    """What a function writes about each device."""
    found = []
    for device in range(made("cuDeviceGetCount")[1]):
        out = ctypes.create_string_buffer(size)
        assert getattr(cuda, function)(out, *more, device) == 0
        found.append(out.raw)
    return found


def names() -> list[str]:
    return [name.partition(b"\0")[0].decode() for name in of_each("cuDeviceGetName", 96, 96)]


def uuids() -> list[str]:
    return [uuid.hex() for uuid in of_each("cuDeviceGetUuid_v2", 16)]


def fork_and_init() -> list[int]:
    """What cuInit and cuMemGetInfo say in a child that was forked after cuInit."""
    child = os.fork()
    if child == 0:
        os._exit(cuda.cuInit(0) * 16 + info()[0])
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return [status // 16, status % 16]


def fork_and_sleep() -> int:
    """The pid of a child that inherited every descriptor and does not end by itself."""
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    return child


def churn() -> None:
    """Allocate and free until killed."""
    while True:
        pointer = alloc(1 << 20)[1]
        free(pointer)


def main() -> None:
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        answer: Any = globals()[name](*arguments)
        print(json.dumps(answer), flush=True)


main()
