"""A free waits for the work that may use the memory. Freeing under running work crashes no process."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

MS = 1_000_000
LAUNCH = 4_000  #: ns that a launch costs its thread
SWITCH = 50_000  #: ns until a card begins that had another context, or none
DONE = LAUNCH + SWITCH + MS

MAPPED = """
pinned = (ctypes.c_uint64 * 5)(1 | 1 << 32, 1)
handle, what = ctypes.c_uint64(), ctypes.c_uint64()
check(cuda.cuMemCreate(ctypes.byref(handle), SIZE, pinned, 0))
check(cuda.cuMemAddressReserve(ctypes.byref(what), SIZE, SIZE, 0, 0))
check(cuda.cuMemMap(what, SIZE, 0, handle, 0))
"""
ARRAY = """
shape = (ctypes.c_uint64 * 5)(64, 64, 0, 0x20 | 1 << 32, 0)
what = ctypes.c_void_p()
"""
#: How memory is made, as `what`, and what frees it.
WAYS = {
    "device": ("what = memory(4096)", "cuda.cuMemFree_v2(what)"),
    "managed": (
        "what = ctypes.c_uint64(); check(cuda.cuMemAllocManaged(ctypes.byref(what), SIZE, 1))",
        "cuda.cuMemFree_v2(what)",
    ),
    "host": ("what = host(4096)", "cuda.cuMemFreeHost(what)"),
    "registered": (
        "what = ctypes.create_string_buffer(4096); check(cuda.cuMemHostRegister_v2(what, ctypes.c_size_t(4096), 0))",
        "cuda.cuMemHostUnregister(what)",
    ),
    "array": (f"{ARRAY}; check(cuda.cuArray3DCreate_v2(ctypes.byref(what), shape))", "cuda.cuArrayDestroy(what)"),
    "mipmap": (
        f"{ARRAY}; check(cuda.cuMipmappedArrayCreate(ctypes.byref(what), shape, 2))",
        "cuda.cuMipmappedArrayDestroy(what)",
    ),
    "mapped": (f"{MAPPED}; check(cuda.cuMemRelease(handle))", "cuda.cuMemUnmap(what, SIZE)"),
    "context": ("pass", "cuda.cuDevicePrimaryCtxReset_v2(0)"),
}
SIZE = "SIZE = ctypes.c_size_t(2 << 20)\n"
POOLED = "what = ctypes.c_uint64(); check(cuda.cuMemAllocAsync(ctypes.byref(what), SIZE, None))"


def code(make: str, work: str, free: str) -> str:
    return f"{SIZE}{make.replace('; check', chr(10) + 'check')}\n{work}\nresult = {free}\nsay([result, t()])"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("queue", ["None", "stream()"])
def test_a_free_waits_for_what_was_submitted(line: Any, way: str, queue: str) -> None:
    make, free = WAYS[way]
    node = line(1)
    assert node.run(code(make, f"launch(MS, {queue})", free)) == [[0, DONE]]
    assert node.stolen == 0


@pytest.mark.parametrize("way", WAYS)
def test_a_free_with_nothing_to_wait_for_takes_no_time(line: Any, way: str) -> None:
    make, free = WAYS[way]
    assert line(1).run(code(make, "launch(MS); sync()", free)) == [[0, DONE]]


def test_a_pools_memory_is_not_waited_for(line: Any) -> None:
    """The driver's documentation says so: the program has to know which work uses it."""
    assert line(1).run(code(POOLED, "launch(MS)", "cuda.cuMemFree_v2(what)")) == [[0, LAUNCH]]


@pytest.mark.parametrize(("way", "end"), [("device", LAUNCH), ("host", DONE), ("mapped", DONE)])
def test_what_another_context_does_counts_for_what_it_can_use(line: Any, way: str, end: int) -> None:
    make, free = WAYS[way]
    work = "other = ctypes.c_void_p(); check(cuda.cuCtxCreate_v2(ctypes.byref(other), 0, 0)); on(0); own = contexts[0]"
    launched = """
module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
check(cuda.cuCtxSetCurrent(other))
check(cuda.cuModuleLoadData(ctypes.byref(module), PTX))
check(cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"spin_ns"))
kernels[0]["spin_ns"] = kernel
launch(MS); on(0)
"""
    assert line(1).run(code(make, work + launched, free)) == [[0, end]]


def test_a_process_that_waits_in_a_free_lets_time_pass_for_others(line: Any) -> None:
    waiting = code(WAYS["device"][0], "launch(20 * MS)", WAYS["device"][1])
    node = line(2)
    assert node.run(waiting, "until(5 * MS); first = t(); until(30 * MS); say([first, t()])") == [
        [0, LAUNCH + SWITCH + 20 * MS],
        [5 * MS, 30 * MS],
    ]
    assert node.stolen == 0


PROLOGUE = """
import ctypes, json, threading, time
cuda = ctypes.CDLL("libcuda.so.1")
def check(result):
    assert result == 0, result
size = ctypes.c_size_t(16 << 20)
context, queue = ctypes.c_void_p(), ctypes.c_void_p()
def made(function, *arguments):
    out = ctypes.c_void_p()
    check(getattr(cuda, function)(ctypes.byref(out), *arguments))
    return out
check(cuda.cuInit(0))
context = made("cuDevicePrimaryCtxRetain", 0)
check(cuda.cuCtxSetCurrent(context))
queue = made("cuStreamCreate", 1)
def loaded(name):
    module = made("cuModuleLoadData", b".version 8.0\\n.target sm_75\\n.visible .entry %s() { ret; }\\n" % name)
    return made("cuModuleGetFunction", module, name)
def launch(kernel):
    check(cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, queue, None, None))
"""


@pytest.mark.parametrize(
    "free",
    [
        "cuda.cuMemFree_v2(pooled)",
        "cuda.cuMemFreeAsync(pooled, other)",
        "(cuda.cuMemFree_v2(pooled), cuda.cuMemFree_v2(plain))[1]",
    ],
)
def test_memory_that_is_taken_away_under_a_fill_or_copy_is_no_crash(node: Any, free: str) -> None:
    """It is freed at moments all over the few milliseconds in which the simulator itself accesses the bytes."""
    program = f"""
other = made("cuStreamCreate", 1)
for moment in range(12):
    plain, pooled = made("cuMemAlloc_v2", size), made("cuMemAllocAsync", size, queue)
    check(cuda.cuMemsetD8Async(pooled, 7, size, queue))
    check(cuda.cuMemcpyDtoDAsync_v2(plain, pooled, size, queue))
    time.sleep(moment * 0.0015)
    check({free})
    check(cuda.cuCtxSynchronize())
    cuda.cuMemFree_v2(plain)
print(json.dumps("alive"))
"""
    assert node.python(PROLOGUE + program) == "alive"


def test_of_two_frees_of_the_same_memory_one_succeeds(node: Any) -> None:
    program = """
kernel = loaded(b"spin_20ms")
answers = []
for _ in range(5):
    plain, results = made("cuMemAlloc_v2", size), []
    launch(kernel)
    threads = [threading.Thread(target=lambda: results.append(cuda.cuMemFree_v2(plain))) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    answers.append(sorted(results))
print(json.dumps(answers))
"""
    assert node.python(PROLOGUE + program) == [[0, 1, 1, 1]] * 5


@pytest.mark.parametrize(
    ("memory", "free"), [("cuMemAlloc_v2", "cuMemFree_v2"), ("cuMemAllocHost_v2", "cuMemFreeHost")]
)
def test_nobody_waits_for_a_value_in_memory_that_is_being_freed(node: Any, memory: str, free: str) -> None:
    """Otherwise the free would wait for the stream, and the stream for the value."""
    program = f"""
word = made("{memory}", ctypes.c_size_t(4096))
check(cuda.cuMemsetD8_v2(word, 0, ctypes.c_size_t(4096)))
check(cuda.cuStreamWaitValue32_v2(queue, word, 1, 0))
time.sleep(0.05)
assert cuda.cuStreamQuery(queue) == 600
check(cuda.{free}(word))
print(json.dumps(cuda.cuStreamQuery(queue)))
"""
    assert node.python(PROLOGUE + program) == 0


def test_a_context_that_still_ends_is_not_retained_before_it_has(node: Any) -> None:
    """Its process is charged for it once, and objects made in the retained context stay."""
    program = """
launch(loaded(b"spin_200ms"))
thread = threading.Thread(target=lambda: check(cuda.cuDevicePrimaryCtxReset_v2(0)))
thread.start()
time.sleep(0.05)
again = made("cuDevicePrimaryCtxRetain", 0)
thread.join()
check(cuda.cuCtxSetCurrent(again))
plain = made("cuMemAlloc_v2", size)
check(cuda.cuMemFree_v2(plain))
check(cuda.cuDevicePrimaryCtxRelease_v2(0))
print(json.dumps(again.value == context.value), flush=True)
time.sleep(60)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", PROLOGUE + program], env=node.environment(), stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout and json.loads(process.stdout.readline())
        assert node.card()["used"] == 0
    finally:
        process.kill()
        process.communicate()
