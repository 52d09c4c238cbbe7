"""What one library or package of NVIDIA or others sees of the driver: programs.py NAME [ARGUMENT].

Each program prints results and messages, and no address or path, so that two runs can be compared line by line: one on
the driver alone, one with libvcuda in front. Without a card most calls fail, and the way they fail is what is compared.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import warnings
from collections.abc import Iterator

KERNEL = b'extern "C" __global__ void twice(float *x) { x[threadIdx.x] *= 2; }'


def report(what: str, *values: object) -> None:
    print(what, *values, flush=True)


@contextlib.contextmanager
def reported(what: str) -> Iterator[None]:
    """An exception's kind and first line are part of the output."""
    try:
        yield
    except Exception as error:
        report(what, type(error).__name__, str(error).partition("\n")[0])


def nvml() -> None:
    library = ctypes.CDLL("libnvidia-ml.so.1")
    library.nvmlErrorString.restype = ctypes.c_char_p
    for name in ("nvmlInit_v2", "nvmlInitWithFlags", "nvmlShutdown"):
        report(name, library.nvmlErrorString(getattr(library, name)(0)))
    count, text = ctypes.c_uint(7), ctypes.create_string_buffer(80)
    report("nvmlDeviceGetCount_v2", library.nvmlDeviceGetCount_v2(ctypes.byref(count)), count.value)
    report("nvmlSystemGetDriverVersion", library.nvmlSystemGetDriverVersion(text, 80), text.value)


def cudart(path: str) -> None:
    library = ctypes.CDLL(path)
    library.cudaGetErrorName.restype = ctypes.c_char_p
    number, pointer = ctypes.c_int(-1), ctypes.c_void_p()

    def call(name: str, *arguments: object) -> None:
        report(name, library.cudaGetErrorName(getattr(library, name)(*arguments)), number.value)

    call("cudaRuntimeGetVersion", ctypes.byref(number))
    call("cudaDriverGetVersion", ctypes.byref(number))
    call("cudaGetDeviceCount", ctypes.byref(number))
    call("cudaMalloc", ctypes.byref(pointer), ctypes.c_size_t(4096))
    call("cudaFree", None)
    call("cudaGetLastError")
    entry = ctypes.c_void_p()
    for name in (b"cuMemAlloc", b"cuMemAllocAsync", b"cuEventElapsedTime", b"cuNoSuchFunction"):
        if hasattr(library, "cudaGetDriverEntryPoint"):
            result = library.cudaGetDriverEntryPoint(name, ctypes.byref(entry), ctypes.c_ulonglong(0), None)
            report("cudaGetDriverEntryPoint", name, result, bool(entry.value))


def cupti(path: str) -> None:
    library = ctypes.CDLL(path)
    number, subscriber = ctypes.c_uint(), ctypes.c_void_p()
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
    nothing = callback(lambda data, domain, which, info: None)
    report("cuptiGetVersion", library.cuptiGetVersion(ctypes.byref(number)), number.value)
    report("cuptiSubscribe", library.cuptiSubscribe(ctypes.byref(subscriber), nothing, None))
    for domain in (1, 2):
        report("cuptiEnableDomain", domain, library.cuptiEnableDomain(1, subscriber, domain))
    for kind in (1, 2, 3, 4, 5):
        report("cuptiActivityEnable", kind, library.cuptiActivityEnable(kind))
    report("cuInit", ctypes.CDLL("libcuda.so.1").cuInit(0))
    report("cuptiActivityFlushAll", library.cuptiActivityFlushAll(0))
    report("cuptiDeviceGetNumEventDomains", library.cuptiDeviceGetNumEventDomains(0, ctypes.byref(number)))
    report("cuptiFinalize", library.cuptiFinalize())


def nvrtc(path: str) -> None:
    library = ctypes.CDLL(path)
    major, minor, program, size = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p(), ctypes.c_size_t()
    report("nvrtcVersion", library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)), major.value, minor.value)
    report("nvrtcCreateProgram", library.nvrtcCreateProgram(ctypes.byref(program), KERNEL, b"k.cu", 0, None, None))
    report("nvrtcCompileProgram", library.nvrtcCompileProgram(program, 0, None))
    report("nvrtcGetPTXSize", library.nvrtcGetPTXSize(program, ctypes.byref(size)))
    ptx = ctypes.create_string_buffer(size.value)
    report("nvrtcGetPTX", library.nvrtcGetPTX(program, ptx), b".entry twice" in ptx.value)
    module = ctypes.c_void_p()
    report("cuModuleLoadData", ctypes.CDLL("libcuda.so.1").cuModuleLoadData(ctypes.byref(module), ptx))


def torch() -> None:
    import torch

    report("versions", torch.__version__, torch.version.cuda)
    report("is_available", torch.cuda.is_available(), torch.cuda.device_count())
    with reported("zeros"):
        torch.zeros(1, device="cuda")


def numba() -> None:
    """Which variant of each driver function Numba takes: it looks for names one after the other."""
    from numba import __version__, cuda
    from numba.cuda.cudadrv import driver

    report("version", __version__, cuda.is_available())
    for name in sorted(driver.API_PROTOTYPES):
        report(name, getattr(driver.driver._find_api(name), "__name__", "absent"))
    with reported("to_device"):
        cuda.to_device([1.0])


def cupy() -> None:
    import cupy

    report("version", cupy.__version__)
    runtime = cupy.cuda.runtime
    report("versions", runtime.driverGetVersion(), runtime.runtimeGetVersion(), cupy.cuda.driver.get_build_version())
    for name in ("getDeviceCount", "deviceSynchronize"):
        with reported(name):
            report(name, getattr(runtime, name)())
    with reported("zeros"):
        cupy.zeros(1)


def cuda_bindings() -> None:
    from cuda.bindings import __version__, driver

    report("version", __version__, driver.cuDriverGetVersion(), driver.cuInit(0), driver.cuDeviceGetCount())
    for name in (b"cuMemAlloc", b"cuCtxCreate", b"cuEventElapsedTime", b"cuGreenCtxCreate", b"cuNoSuchFunction"):
        result, function, status = driver.cuGetProcAddress(name, 12000, 0)
        report(name.decode(), result, bool(function), status)
    for name in ("cuCtxGetCurrent", "cuCtxGetDevice", "cuCtxGetFlags", "cuCtxSynchronize", "cuProfilerStart"):
        report(name, getattr(driver, name)()[0])


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    globals()[sys.argv[1]](*sys.argv[2:])
