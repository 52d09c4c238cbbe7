"""Bindings of the driver's interface for Python, compilers over it, and monitors: a function for each."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from scenarios import MIB, fill, main, say


def ok(answer: Any) -> Any:
    """What a function of cuda-bindings returns besides its result, which has to be success."""
    if answer[0] != 0:
        raise MemoryError(answer[0].name)
    return answer[1] if len(answer) == 2 else answer[1:]


def cuda_bindings() -> None:
    from cuda.bindings import driver

    ok(driver.cuInit(0))
    context = ok(driver.cuDevicePrimaryCtxRetain(ok(driver.cuDeviceGet(0))))
    ok(driver.cuCtxSetCurrent(context))
    pointer = ok(driver.cuMemAlloc(1 << 20))
    free, total = ok(driver.cuMemGetInfo())
    assert 0 < free < total
    out = bytearray(16)
    ok(driver.cuMemcpyHtoD(pointer, b"sixteen bytes...", 16))
    ok(driver.cuMemcpyDtoH(out, pointer, 16))
    assert out == b"sixteen bytes..."
    graph = ok(driver.cuGraphCreate(0))
    ok(driver.cuGraphAddEmptyNode(graph, None, 0))
    stream = ok(driver.cuStreamCreate(0))
    ok(driver.cuGraphLaunch(ok(driver.cuGraphInstantiate(graph, 0)), stream))
    ok(driver.cuStreamSynchronize(stream))
    ok(driver.cuMemFree(pointer))
    say("launched a graph, copied", bytes(out))


def cuda_bindings_filled() -> None:
    from cuda.bindings import driver

    class Memory:
        def __init__(self, size: int) -> None:
            self.pointer = ok(driver.cuMemAlloc(size))

        def __del__(self) -> None:
            if hasattr(self, "pointer"):
                ok(driver.cuMemFree(self.pointer))

    ok(driver.cuInit(0))
    ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(ok(driver.cuDeviceGet(0))))))
    fill(Memory, MemoryError)
    cuda_bindings()


def cuda_bindings_newer() -> None:
    """Nodes by the call for all kinds, stream memory operations, green contexts, pools and events for others."""
    from cuda.bindings import driver

    ok(driver.cuInit(0))
    device = ok(driver.cuDeviceGet(0))
    ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(device))))
    stream, pointer = ok(driver.cuStreamCreate(0)), ok(driver.cuMemAlloc(4096))
    ok(driver.cuStreamWriteValue32(stream, pointer, 7, 0))
    ok(driver.cuStreamWaitValue32(stream, pointer, 7, 0))

    graph = ok(driver.cuGraphCreate(0))
    fill = driver.CUgraphNodeParams()
    fill.type = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEMSET
    fill.memset.dst, fill.memset.value, fill.memset.elementSize = pointer, 9, 1
    fill.memset.width, fill.memset.height = 4096, 1
    node = ok(driver.cuGraphAddNode(graph, None, 0, fill))
    memory = driver.CUgraphNodeParams()
    memory.type = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEM_ALLOC
    memory.alloc.poolProps.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    memory.alloc.poolProps.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    memory.alloc.bytesize = 4096
    ok(driver.cuGraphAddNode(graph, [node], 1, memory))
    assert int(memory.alloc.dptr)
    ok(driver.cuGraphLaunch(ok(driver.cuGraphInstantiate(graph, 0)), stream))
    ok(driver.cuStreamSynchronize(stream))
    out = bytearray(4096)
    ok(driver.cuMemcpyDtoH(out, pointer, 4096))
    assert out == bytes([9]) * 4096

    kind = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
    groups, count, rest = ok(
        driver.cuDevSmResourceSplitByCount(2, ok(driver.cuDeviceGetDevResource(device, kind)), 0, 10)
    )
    assert (count, groups[0].sm.smCount, rest.sm.smCount) == (2, 10, 20)
    resources = ok(driver.cuDevResourceGenerateDesc([groups[0]], 1))
    flags = driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
    green = ok(driver.cuGreenCtxCreate(resources, device, flags))
    assert ok(driver.cuCtxGetDevResource(ok(driver.cuCtxFromGreenCtx(green)), kind)).sm.smCount == 10
    ok(driver.cuGreenCtxDestroy(green))

    properties = driver.CUmemPoolProps()
    descriptor = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    properties.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.handleTypes = descriptor
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    pool = ok(driver.cuMemPoolCreate(properties))
    ok(driver.cuMemPoolExportPointer(ok(driver.cuMemAllocFromPoolAsync(100, pool, stream))))
    assert ok(driver.cuMemPoolExportToShareableHandle(pool, descriptor, 0)) > 0
    ok(driver.cuIpcGetEventHandle(ok(driver.cuEventCreate(2 | 4))))
    linear = driver.CUDA_RESOURCE_DESC()
    linear.resType = driver.CUresourcetype.CU_RESOURCE_TYPE_LINEAR
    linear.res.linear.devPtr, linear.res.linear.sizeInBytes, linear.res.linear.numChannels = pointer, 4096, 1
    linear.res.linear.format = driver.CUarray_format.CU_AD_FORMAT_FLOAT
    texture = ok(driver.cuTexObjectCreate(linear, driver.CUDA_TEXTURE_DESC(), None))
    say("texture of", ok(driver.cuTexObjectGetResourceDesc(texture)).res.linear.sizeInBytes)


def tinygrad() -> None:
    from tinygrad import Device, Tensor

    assert Device.DEFAULT == "CUDA"
    product = Tensor.ones(64, 64).contiguous() @ Tensor.ones(64, 64).contiguous()
    assert product.numpy().shape == (64, 64)
    say("copied", Tensor([1.0, 2.0, 3.0]).realize().numpy().tolist())


def numba_arrays() -> None:
    """Arrays and events, which need no compiler: Numba chooses the driver's functions for them by presence."""
    import numpy
    from numba import cuda

    host = numpy.arange(1000, dtype=numpy.float32)
    begin, end = cuda.event(), cuda.event()
    begin.record()
    device = cuda.to_device(host)
    end.record()
    end.synchronize()
    assert (device.copy_to_host() == host).all()
    say("elapsed", cuda.event_elapsed_time(begin, end) >= 0, cuda.current_context().get_memory_info().free > 0)


def numba_filled() -> None:
    import numpy
    from numba import cuda

    fill(lambda size: cuda.device_array(size, numpy.uint8), cuda.cudadrv.driver.CudaAPIError)
    numba_arrays()


def monitors() -> None:
    """What nvitop's library, nvitop and gpustat show of a card: the limit as its memory, and readings."""
    from nvitop import Device

    device = Device.all()[0]
    say("total", device.memory_total() // MIB, type(device.temperature()), type(device.gpu_utilization()))
    for command in (["gpustat", "--no-color"], ["nvitop", "--once", "--ascii"]):
        done = subprocess.run([sys.executable, "-m", *command], check=True, stdout=subprocess.PIPE, text=True)
        say(" ".join(done.stdout.split()))


def numba_cuda() -> None:
    import warnings

    import numpy
    from numba import cuda

    warnings.simplefilter("ignore")

    @cuda.jit
    def add(x, y, out):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        if i < out.size:
            out[i] = x[i] + y[i]

    host = numpy.arange(1000, dtype=numpy.float32)
    device, out = cuda.to_device(host), cuda.device_array_like(host)
    stream, event = cuda.stream(), cuda.event()
    add[10, 128, stream](device, device, out)
    event.record(stream)
    event.synchronize()
    assert (device.copy_to_host() == host).all()
    say("launched", cuda.current_context().get_memory_info().free > 0)


def pycuda() -> None:
    import numpy
    import pycuda.driver as driver

    driver.init()
    context = driver.Device(0).make_context()
    code = b".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry twice(.param .u64 p) { ret; }\n"
    host = numpy.arange(16, dtype=numpy.float32)
    device = driver.mem_alloc(host.nbytes)
    driver.memcpy_htod(device, host)
    driver.module_from_buffer(code).get_function("twice")(device, block=(16, 1, 1), grid=(1, 1))
    back = numpy.empty_like(host)
    driver.memcpy_dtoh(back, device)
    assert (back == host).all()
    context.pop()
    say("launched, copied", back.tolist())


if __name__ == "__main__":
    main(globals())
