"""The simulated driver as the versions in libvcuda/sim/drivers: names, CUDA version, cuGetProcAddress."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from checkout import BUILD, CHECKOUT

DRIVERS = CHECKOUT / "libvcuda/sim/drivers"
CUDA = {"470.256.02": 11040, "535.261.03": 12020, "550.163.01": 12040, "580.142": 13000, "615.71.09": 13040}
LIBRARIES = ("libcuda", "libnvidia-ml")


def library(version: str, name: str = "libcuda") -> Path:
    return BUILD / f"lib/drivers/{version}/{name}.so.{version}"


def exported(path: Path) -> set[str]:
    """As the lists have it: `name`, or `name object`."""
    command = ["nm", "--dynamic", "--defined-only", "--format=posix", path]
    rows = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return {row.split()[0] + ("" if row.split()[1] in "TW" else " object") for row in rows}


@pytest.mark.parametrize("version", CUDA)
@pytest.mark.parametrize("name", LIBRARIES)
def test_a_version_exports_what_the_real_one_exports(version: str, name: str) -> None:
    expected = set((DRIVERS / version / f"{name}.txt").read_text().splitlines())
    found = exported(library(version, name))
    assert found - {"vgpuSimClock object"} == expected


def test_every_list_is_built() -> None:
    assert {path.name for path in DRIVERS.iterdir()} == set(CUDA)


@pytest.mark.parametrize("version", CUDA)
def test_a_version_reports_its_cuda_and_offers_no_name_that_it_lacks(version: str) -> None:
    """A fresh process for each version: the libraries are never unloaded."""
    program = f"""
import ctypes, re
driver = ctypes.CDLL({str(library(version))!r})
number = ctypes.c_int()
assert driver.cuDriverGetVersion(ctypes.byref(number)) == 0
names = [row for row in open({str(DRIVERS / version / "libcuda.txt")!r}).read().split("\\n") if row]
exported = {{ctypes.cast(getattr(driver, name), ctypes.c_void_p).value for name in names if " " not in name}}
text = open({str(CHECKOUT / "libvcuda/sim/cuda/entries.def")!r}).read()
for base in sorted(set(re.findall(r"^[A-Z_]+\\((cu\\w+), \\d", text, re.MULTILINE))):
    for flags in (1, 2):
        found = ctypes.c_void_p()
        driver.cuGetProcAddress(base.encode(), ctypes.byref(found), number.value, ctypes.c_uint64(flags))
        assert found.value is None or found.value in exported, base
print(number.value)
"""
    done = subprocess.run(["python3", "-c", program], check=True, capture_output=True, text=True)
    assert int(done.stdout) == CUDA[version]


def test_a_program_that_chooses_by_presence_finds_the_old_function_only() -> None:
    driver = ctypes.CDLL(str(library("550.163.01")))
    assert driver.cuEventElapsedTime and not hasattr(driver, "cuEventElapsedTime_v2")
    assert not hasattr(ctypes.CDLL(str(library("550.163.01", "libnvidia-ml"))), "nvmlDeviceGetTemperatureV")


def test_a_root_of_a_version(simctl: ModuleType, tmp_path: Path) -> None:
    root = Path(simctl.make_root(str(tmp_path), "t4x1", str(BUILD), device_nodes=False, driver="470.256.02"))
    assert "470.256.02" in (root / "proc/driver/nvidia/version").read_text()
    directory = next((root / "usr/lib").iterdir())
    assert (directory / "libcuda.so.1").resolve().name == "libcuda.so.470.256.02"
