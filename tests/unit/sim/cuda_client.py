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
