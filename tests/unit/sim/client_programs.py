"""Programs that nobody here wrote, called as their documentation says. One function each: client_programs.py NAME.

Their results' shapes are checked, not their values: a kernel computes nothing on the simulated driver.
"""

from __future__ import annotations

import sys


def cuda_bindings() -> None:
    from cuda.bindings import driver

    def ok(answer):  # type: ignore[no-untyped-def]
        assert answer[0] == driver.CUresult.CUDA_SUCCESS, answer
        return answer[1] if len(answer) == 2 else answer[1:]

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


def tinygrad() -> None:
    from tinygrad import Device, Tensor

    assert Device.DEFAULT == "CUDA"
    product = Tensor.ones(64, 64).contiguous() @ Tensor.ones(64, 64).contiguous()
    assert product.numpy().shape == (64, 64)
    assert Tensor([1.0, 2.0, 3.0]).realize().numpy().tolist() == [1, 2, 3]


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
    assert cuda.current_context().get_memory_info().free > 0


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


if __name__ == "__main__":
    globals()[sys.argv[1]]()
