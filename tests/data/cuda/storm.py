"""Many random calls of several threads at once, and then the end of all that they made.

`storm(cuda, seed, threads, calls)` is run by calls.py, in a process with a current context. It returns how many calls
succeeded and how many found no memory; any other result is an error.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from random import Random

MIB = 1 << 20
OUT_OF_MEMORY = 2
SIZES = (4096, 3 * MIB // 4, MIB + 61440, 2 * MIB, 7 * MIB + 512, 48 * MIB, 130 * MIB)
PHYSICAL = (ctypes.c_int * 8)(1, 0, 1, 0, 0, 0, 0, 0)
NON_BLOCKING, RELAXED, AUTO_FREE = 1, 2, 1


class Caller:
    """One thread's calls, and what it holds: for each thing the call that ends it. `mapped`: what all threads hold."""

    def __init__(self, cuda: ctypes.CDLL, seed: int, mapped: dict[int, list[ctypes.c_uint64]]) -> None:
        self.mapped = mapped
        self.cuda, self.chance = cuda, Random(seed)
        self.held: list[Callable[[], object]] = []
        self.results = {0: 0, OUT_OF_MEMORY: 0}

    def made(self, name: str, *arguments: object, end: str = "", ends: tuple[object, ...] = ()) -> int | None:
        """The handle that the call gives. `end`: the call that ends it, with `ends` behind the handle."""
        handle = ctypes.c_uint64()
        result = getattr(self.cuda, name)(ctypes.byref(handle), *arguments)
        assert result in self.results, (name, result)
        self.results[result] += 1
        if result:
            return None
        if end:
            self.held.append(lambda: getattr(self.cuda, end)(handle, *ends))
        return handle.value

    def size(self) -> ctypes.c_uint64:
        return ctypes.c_uint64(self.chance.choice(SIZES))

    def pointer(self) -> None:
        self.made("cuMemAlloc_v2", self.size(), end="cuMemFree_v2")

    def managed(self) -> None:
        self.made("cuMemAllocManaged", self.size(), 1, end="cuMemFree_v2")

    def stream_ordered(self) -> None:
        self.made("cuMemAllocAsync", self.size(), None, end="cuMemFreeAsync", ends=(None,))

    def physical(self) -> None:
        size = ctypes.c_uint64(2 * MIB * self.chance.randrange(1, 60))
        self.made("cuMemCreate", size, PHYSICAL, ctypes.c_uint64(0), end="cuMemRelease")

    def shared(self) -> None:
        """Threads map memory and end that, while others ask for a handle by the address."""
        size, none, mapped = ctypes.c_uint64(2 * MIB), ctypes.c_uint64(0), list(self.mapped)
        if len(mapped) < 4 and (handle := self.made("cuMemCreate", size, PHYSICAL, none)):
            address = self.made("cuMemAddressReserve", size, none, none, none) or 0
            memory = [ctypes.c_uint64(address), size, none, ctypes.c_uint64(handle), none]
            assert self.cuda.cuMemMap(*memory) == 0
            self.mapped[address] = memory
        elif self.chance.random() < 0.2:
            self.unmap(mapped[:1])
        for address in mapped * 9:
            retained = ctypes.c_uint64()
            if not self.cuda.cuMemRetainAllocationHandle(ctypes.byref(retained), ctypes.c_uint64(address)):
                assert self.cuda.cuMemRelease(retained) == 0

    def unmap(self, addresses: list[int]) -> None:
        for memory in filter(None, [self.mapped.pop(address, None) for address in addresses]):
            assert self.cuda.cuMemRelease(memory[3]) == 0
            assert self.cuda.cuMemUnmap(*memory[:2]) == 0

    def graph(self) -> None:
        """A graph with a block of memory, launched twice and destroyed."""
        stream = ctypes.c_uint64(self.made("cuStreamCreate", NON_BLOCKING) or 0)
        graph = ctypes.c_uint64()
        if not stream.value:
            return
        self.cuda.cuStreamBeginCapture_v2(stream, RELAXED)
        pointer = self.made("cuMemAllocAsync", self.size(), stream)
        if pointer is not None and self.chance.random() < 0.7:
            self.cuda.cuMemFreeAsync(ctypes.c_uint64(pointer), stream)
        self.cuda.cuStreamEndCapture(stream, ctypes.byref(graph))
        executable = self.made("cuGraphInstantiateWithFlags", graph, ctypes.c_uint64(AUTO_FREE))
        for _ in range(2 if executable else 0):
            assert self.cuda.cuGraphLaunch(ctypes.c_uint64(executable or 0), stream) in self.results
        self.cuda.cuStreamSynchronize(stream)
        if executable:
            self.cuda.cuGraphExecDestroy(ctypes.c_uint64(executable))
        self.cuda.cuGraphDestroy(graph)
        self.cuda.cuStreamDestroy_v2(stream)

    def trim(self) -> None:
        device = ctypes.c_int()
        self.cuda.cuCtxGetDevice(ctypes.byref(device))
        assert self.cuda.cuDeviceGraphMemTrim(device) == 0

    def end(self, count: int) -> None:
        self.chance.shuffle(self.held)
        for _ in range(min(count, len(self.held))):
            assert self.held.pop()() == 0

    def run(self, context: ctypes.c_uint64, calls: int, kinds: list[str]) -> None:
        self.cuda.cuCtxSetCurrent(context)
        for _ in range(calls):
            getattr(self, self.chance.choice(kinds))()
            if self.chance.random() < 0.4:
                self.end(self.chance.randrange(4))
        self.end(len(self.held))
        self.unmap(list(self.mapped))


def storm(cuda: ctypes.CDLL, seed: int, threads: int, calls: int, *kinds: str) -> list[int]:
    context = ctypes.c_uint64()
    cuda.cuCtxGetCurrent(ctypes.byref(context))
    mapped: dict[int, list[ctypes.c_uint64]] = {}
    callers = [Caller(cuda, seed * 100 + number, mapped) for number in range(threads)]
    failures: list[BaseException] = []

    def run(caller: Caller) -> None:
        try:
            caller.run(context, calls, list(kinds))
        except BaseException as error:
            failures.append(error)

    running = [threading.Thread(target=run, args=(caller,)) for caller in callers]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if failures:
        raise failures[0]
    cuda.cuCtxSynchronize()
    callers[0].trim()
    return [sum(caller.results[result] for caller in callers) for result in (0, OUT_OF_MEMORY)]
