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
    handle = ctypes.c_void_p()
    return cuda.cuDevicePrimaryCtxRetain(ctypes.byref(handle), device) or cuda.cuCtxSetCurrent(handle)


def release(device: int) -> int:
    return cuda.cuDevicePrimaryCtxRelease_v2(device)


def alloc(size: int) -> list[int]:
    pointer = ctypes.c_uint64()
    result = cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size))
    return [result, pointer.value]


def free(pointer: int) -> int:
    return cuda.cuMemFree_v2(ctypes.c_uint64(pointer))


def info() -> list[int]:
    available, total = ctypes.c_size_t(), ctypes.c_size_t()
    result = cuda.cuMemGetInfo_v2(ctypes.byref(available), ctypes.byref(total))
    return [result, available.value, total.value]


def write(pointer: int, text: str) -> int:
    return cuda.cuMemcpyHtoD_v2(ctypes.c_uint64(pointer), text.encode(), ctypes.c_size_t(len(text)))


def read(pointer: int, size: int) -> list[Any]:
    out = ctypes.create_string_buffer(size)
    result = cuda.cuMemcpyDtoH_v2(out, ctypes.c_uint64(pointer), ctypes.c_size_t(size))
    return [result, out.raw.decode(errors="replace")]


class IpcHandle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_uint8 * 64),)


def ipc_handle(pointer: int) -> list[Any]:
    handle = IpcHandle()
    result = cuda.cuIpcGetMemHandle(ctypes.byref(handle), ctypes.c_uint64(pointer))
    return [result, bytes(handle.bytes).hex()]


def ipc_open(handle: str) -> list[int]:
    pointer = ctypes.c_uint64()
    result = cuda.cuIpcOpenMemHandle_v2(ctypes.byref(pointer), IpcHandle.from_buffer_copy(bytes.fromhex(handle)), 1)
    return [result, pointer.value]


def ipc_close(pointer: int) -> int:
    return cuda.cuIpcCloseMemHandle(ctypes.c_uint64(pointer))


def event() -> int:
    """An event that other processes may open."""
    handle = ctypes.c_void_p()
    assert cuda.cuEventCreate(ctypes.byref(handle), 2 | 4) == 0
    return handle.value or 0


def event_handle(event: int) -> list[Any]:
    handle = IpcHandle()
    result = cuda.cuIpcGetEventHandle(ctypes.byref(handle), ctypes.c_void_p(event))
    return [result, bytes(handle.bytes).hex()]


def event_open(handle: str) -> list[int]:
    event = ctypes.c_void_p()
    result = cuda.cuIpcOpenEventHandle(ctypes.byref(event), IpcHandle.from_buffer_copy(bytes.fromhex(handle)))
    return [result, event.value or 0]


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


gates: list[ctypes.c_void_p] = []


def gate() -> int:
    """The default stream waits until gate_open is called."""
    word = ctypes.c_void_p()
    assert cuda.cuMemHostAlloc(ctypes.byref(word), ctypes.c_size_t(4), 0) == 0
    ctypes.memset(word.value or 0, 0, 4)
    gates.append(word)
    return cuda.cuStreamWaitValue32_v2(None, ctypes.c_uint64(word.value or 0), 1, 0)


def gate_open() -> None:
    ctypes.memset(gates.pop(0).value or 0, 1, 1)


class PoolProperties(ctypes.Structure):
    _fields_ = (
        ("allocation_type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location_type", ctypes.c_int),
        ("location_id", ctypes.c_int),
        ("rest", ctypes.c_uint8 * 72),
    )


def pool(handle_types: int = 1) -> list[int]:
    handle = ctypes.c_void_p()
    result = cuda.cuMemPoolCreate(ctypes.byref(handle), ctypes.byref(PoolProperties(1, handle_types, 1, 0)))
    return [result, handle.value or 0]


def pool_alloc(pool: int, size: int) -> list[int]:
    pointer = ctypes.c_uint64()
    result = cuda.cuMemAllocFromPoolAsync(ctypes.byref(pointer), ctypes.c_size_t(size), ctypes.c_void_p(pool), None)
    return [result, pointer.value]


def pool_free(pointer: int) -> int:
    return cuda.cuMemFreeAsync(ctypes.c_uint64(pointer), None) or cuda.cuStreamSynchronize(None)


def pool_export(pool: int) -> list[int]:
    fd = ctypes.c_int(-1)
    result = cuda.cuMemPoolExportToShareableHandle(ctypes.byref(fd), ctypes.c_void_p(pool), 1, ctypes.c_uint64(0))
    return [result, fd.value]


def pool_import(path: str) -> list[int]:
    """By the exporter's descriptor, which a program would have been sent."""
    handle = ctypes.c_void_p()
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    result = cuda.cuMemPoolImportFromShareableHandle(ctypes.byref(handle), ctypes.c_void_p(fd), 1, ctypes.c_uint64(0))
    os.close(fd)
    return [result, handle.value or 0]


def pointer_export(pointer: int) -> list[Any]:
    data = IpcHandle()
    result = cuda.cuMemPoolExportPointer(ctypes.byref(data), ctypes.c_uint64(pointer))
    return [result, bytes(data.bytes).hex()]


def pointer_import(pool: int, data: str) -> list[int]:
    pointer = ctypes.c_uint64()
    opaque = IpcHandle.from_buffer_copy(bytes.fromhex(data))
    result = cuda.cuMemPoolImportPointer(ctypes.byref(pointer), ctypes.c_void_p(pool), ctypes.byref(opaque))
    return [result, pointer.value]


def fill(size: int) -> int:
    """Allocate chunks of `size` until there is no more; how many there were."""
    count = 0
    while alloc(size)[0] == 0:
        count += 1
    return count


def names() -> list[str]:
    count = ctypes.c_int()
    assert cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
    found = []
    for device in range(count.value):
        name = ctypes.create_string_buffer(96)
        assert cuda.cuDeviceGetName(name, len(name), device) == 0
        found.append(name.value.decode())
    return found


def uuids() -> list[str]:
    count = ctypes.c_int()
    assert cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
    found = []
    for device in range(count.value):
        uuid = (ctypes.c_uint8 * 16)()
        assert cuda.cuDeviceGetUuid_v2(uuid, device) == 0
        found.append(bytes(uuid).hex())
    return found


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
