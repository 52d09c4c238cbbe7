"""Runs a piece of Python in virtual time: `virtual_client.py CODE`. What the code prints is the answer.

The code finds a context on each card, and short names for what it does there; `t()` is ns since virtual time began.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time

from simulated_clock import BEGIN, NEVER, Clock  # noqa: F401 - the code may wait for ever

MS = 1_000_000
PTX = (
    b".version 8.0\n.target sm_75\n.address_size 64\n"
    b".visible .entry spin_ns(.param .u64 ns) { ret; }\n"
    b".visible .entry meet_ns(.param .u64 ns, .param .u64 which, .param .u64 count) { ret; }\n"
)

cuda = ctypes.CDLL("libcuda.so.1")
clock = Clock()
contexts: list[ctypes.c_void_p] = []
kernels: list[dict[str, ctypes.c_void_p]] = []


def check(result: int) -> None:
    assert result == 0, result


def t() -> int:
    return clock.now() - BEGIN


def until(time: int) -> None:
    clock.sleep_until(BEGIN + time)


def on(card: int) -> None:
    check(cuda.cuCtxSetCurrent(contexts[card]))


def use_cards() -> None:
    count = ctypes.c_int()
    check(cuda.cuInit(0))
    check(cuda.cuDeviceGetCount(ctypes.byref(count)))
    for card in range(count.value):
        context, module = ctypes.c_void_p(), ctypes.c_void_p()
        check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), card))
        contexts.append(context)
        on(card)
        check(cuda.cuModuleLoadData(ctypes.byref(module), PTX))
        kernels.append({name: ctypes.c_void_p() for name in ("spin_ns", "meet_ns")})
        for name, kernel in kernels[card].items():
            check(cuda.cuModuleGetFunction(ctypes.byref(kernel), module, name.encode()))
    on(0)


def stream(priority: int = 0) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    check(cuda.cuStreamCreateWithPriority(ctypes.byref(handle), 1, priority))
    return handle


def launch(
    ns: int, queue: ctypes.c_void_p | None = None, card: int = 0, meet: tuple[int, int] = (), grid: int = 4096
) -> None:
    kernel = kernels[card]["meet_ns" if meet else "spin_ns"]
    values = [ctypes.c_uint64(value) for value in (ns, *meet)]
    arguments = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
    check(cuda.cuLaunchKernel(kernel, grid, 1, 1, 1024, 1, 1, 0, queue, arguments, None))


def sync(queue: ctypes.c_void_p | None = None) -> None:
    check(cuda.cuStreamSynchronize(queue))


def event(queue: ctypes.c_void_p | None = None) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    check(cuda.cuEventCreate(ctypes.byref(handle), 0))
    check(cuda.cuEventRecord(handle, queue))
    return handle


def between(first: ctypes.c_void_p, last: ctypes.c_void_p) -> int:
    """ns, to the event's precision."""
    elapsed = ctypes.c_float()
    check(cuda.cuEventSynchronize(last))
    check(cuda.cuEventElapsedTime(ctypes.byref(elapsed), first, last))
    return round(elapsed.value * 1e6)


def memory(size: int) -> ctypes.c_uint64:
    pointer = ctypes.c_uint64()
    check(cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)))
    return pointer


def say(value: object) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    if os.environ.get("CARDS") != "no":
        use_cards()
    exec(sys.argv[1], {**globals(), "threading": threading, "time": time})
    clock.leave()
