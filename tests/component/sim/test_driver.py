"""The driver API in one process: a C program that is linked with -lcuda, and cuGetProcAddress by ctypes."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import recorded_drivers
from checkout import DATA

PROLOGUE = """
import ctypes, json
cuda = ctypes.CDLL("libcuda.so.1")
address = lambda name: ctypes.cast(getattr(cuda, name), ctypes.c_void_p).value
def get(name, version, flags=0):
    pointer, status = ctypes.c_void_p(), ctypes.c_int(-1)
    code = cuda.cuGetProcAddress_v2(name.encode(), ctypes.byref(pointer), version, ctypes.c_uint64(flags),
                                    ctypes.byref(status))
    return code, pointer.value, status.value
"""


@pytest.mark.parametrize(
    ("name", "profile"), [("memory_check", "t4x1"), ("work_check", "t4x1"), ("objects_check", "h200x8")]
)
def test_a_linked_program(
    make_node: Callable[..., Any], libraries: Path, tmp_path: Path, name: str, profile: str
) -> None:
    node = make_node(profile)
    program = tmp_path / name
    source = DATA / f"sim/{name}.c"
    subprocess.run(
        ["gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", source, "-o", program, f"-L{libraries}", "-lcuda"],
        check=True,
    )
    done = subprocess.run([program], check=False, env=node.environment(), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    assert node.card()["used"] == 0


@pytest.mark.parametrize(
    ("name", "version", "flags", "symbol"),
    [
        ("cuMemAlloc", 12000, 0, "cuMemAlloc_v2"),
        ("cuMemAlloc", 3010, 0, "cuMemAlloc"),
        ("cuCtxCreate", 12000, 0, "cuCtxCreate_v3"),
        ("cuCtxCreate", 11030, 1, "cuCtxCreate_v2"),
        ("cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2"),
        ("cuGetProcAddress", 11030, 0, "cuGetProcAddress"),
        ("cuMemcpyHtoD", 12000, 2, "cuMemcpyHtoD_v2_ptds"),
        ("cuMemcpyHtoD", 6000, 2, "cuMemcpyHtoD_v2"),
        ("cuMemcpyHtoD", 12000, 1, "cuMemcpyHtoD_v2"),
        ("cuLaunchKernel", 12000, 2, "cuLaunchKernel_ptsz"),
        ("cuDeviceGet", 12000, 2, "cuDeviceGet"),
    ],
)
def test_get_proc_address(node: Any, name: str, version: int, flags: int, symbol: str) -> None:
    code = f"{PROLOGUE}\nprint(json.dumps([get({name!r}, {version}, {flags}), address({symbol!r})]))"
    answer, expected = node.python(code)
    assert answer == [0, expected, 0]


@pytest.mark.parametrize(
    ("name", "version", "flags", "code", "status"),
    [
        ("cuNoSuchThing", 12000, 0, 500, 1),
        ("cuMemAlloc_v2", 12000, 0, 500, 1),
        ("cuMemAllocAsync", 11000, 0, 500, 2),
        ("cuMemAlloc", 12000, 3, 1, -1),
        ("cuMemAlloc", 13000, 0, 1, -1),
    ],
)
def test_get_proc_address_refuses(node: Any, name: str, version: int, flags: int, code: int, status: int) -> None:
    answer = node.python(f"{PROLOGUE}\nprint(json.dumps(get({name!r}, {version}, {flags})))")
    assert answer == [code, None, status]


def test_every_function_that_is_known_is_exported_once(repository: Path, libraries: Path) -> None:
    """Clients look up names up to the newest. Functions that the simulator lacks return an error."""
    rows = (repository / "libvcuda/sim/cuda/entry/entries.def").read_text()
    implemented = re.findall(r"^(?!ALIAS)[A-Z_]+\(\w+, \d+, (\w+)", rows, re.MULTILINE)
    command = ["nm", "-D", "--defined-only", "--format=posix", str(libraries / "libcuda.so.1")]
    symbols = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    addresses = {line.split()[0]: line.split()[2] for line in symbols.splitlines()}
    del addresses["vgpuSimClock"]
    assert len(implemented) == len(set(implemented)) and set(implemented) <= set(addresses)
    assert set(addresses) == recorded_drivers.functions("libcuda")
    assert len(set(addresses.values())) == len(addresses)
