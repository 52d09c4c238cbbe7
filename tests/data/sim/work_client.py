"""A CUDA program that keeps a card busy for a while.

work_client.py KERNEL LAUNCHES STREAMS SYNC SECONDS: rounds of LAUNCHES on each of STREAMS streams; SYNC 1 waits after
each round, 0 only at the end; until SECONDS are over (0: one round). Starts when a line comes in.
"""

from __future__ import annotations

import ctypes
import sys
import time

cuda = ctypes.CDLL("libcuda.so.1")
PTX = b".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry %s(.param .u64 a) { ret; }\n"


def check(code: int) -> None:
    assert code == 0, code


def make(create: str) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    check(getattr(cuda, create)(ctypes.byref(handle), 1 if create == "cuStreamCreate" else 0))
    return handle


def main() -> None:
    kernel, launches, streams, sync, seconds = sys.argv[1], *map(float, sys.argv[2:])
    check(cuda.cuInit(0))
    context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    check(cuda.cuCtxSetCurrent(context))
    check(cuda.cuModuleLoadData(ctypes.byref(module), PTX % kernel.encode()))
    check(cuda.cuModuleGetFunction(ctypes.byref(function), module, kernel.encode()))
    queues = [make("cuStreamCreate") for _ in range(int(streams))]
    print("ready", flush=True)
    sys.stdin.readline()
    begin = time.monotonic()
    is_first = True
    while is_first or time.monotonic() - begin < seconds:
        is_first = False
        for queue in queues:
            for _ in range(int(launches)):
                check(cuda.cuLaunchKernel(function, 4096, 1, 1, 1024, 1, 1, 0, queue, None, None))
        if sync:
            check(cuda.cuCtxSynchronize())
    check(cuda.cuCtxSynchronize())


main()
