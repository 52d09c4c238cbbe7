"""The simulated driver as the releases in libvcuda/src/driver/names: names, CUDA version, cuGetProcAddress."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import recorded_drivers
from checkout import BUILD, CHECKOUT

CUDA = {"470.256.02": 11040, "535.261.03": 12020, "550.163.01": 12040, "580.142": 13000, "615.71.09": 13040}
LIBRARIES = ("libcuda", "libnvidia-ml")


def library(version: str, name: str = "libcuda") -> Path:
    return BUILD / f"lib/drivers/{version}/{name}.so.{version}"


@pytest.mark.parametrize("version", CUDA)
@pytest.mark.parametrize("name", LIBRARIES)
def test_a_version_exports_what_the_real_one_exports(version: str, name: str) -> None:
    release = version.partition(".")[0]
    functions, data = recorded_drivers.symbols(library(version, name))
    assert functions == recorded_drivers.exports(name, release)
    assert data - {"vgpuSimClock"} == recorded_drivers.exports(name, release, "object")


@pytest.mark.parametrize("name", LIBRARIES)
def test_every_release_of_a_list_is_built(name: str) -> None:
    words = {word for row in recorded_drivers.rows(name) for word in row[1:] if word.isdigit()}
    assert words == set(recorded_drivers.RELEASES) and set(recorded_drivers.RELEASES.values()) == set(CUDA)


class Refresher:
    """refresh.py with copies of the lists."""

    def __init__(self, path: Path) -> None:
        self.path = Path(shutil.copytree(recorded_drivers.NAMES, path / "names"))

    def refresh(self, *libraries: Path) -> tuple[str, str]:
        """What it prints, and on stderr."""
        command = [sys.executable, self.path / "refresh.py", *libraries]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        return done.stdout, done.stderr

    def changes(self) -> set[str]:
        """The rows that differ from those in the tree."""
        found: set[str] = set()
        for name in LIBRARIES:
            new, old = (Path(path, f"{name}.txt").read_text() for path in (self.path, recorded_drivers.NAMES))
            found |= set(new.splitlines()) ^ set(old.splitlines())
        return found


@pytest.fixture
def refresher(tmp_path: Path) -> Refresher:
    return Refresher(tmp_path)


def test_a_refresh_from_the_same_releases_changes_nothing(refresher: Refresher) -> None:
    refresher.refresh(*(library(version, name) for version in CUDA for name in LIBRARIES))
    assert refresher.changes() == {"vgpuSimClock 470 object"}


def test_a_refresh_from_a_new_release_says_since_when_and_until_when(refresher: Refresher, tmp_path: Path) -> None:
    """The release 999 has the names of 615 but cuInit, and a new one."""
    names = recorded_drivers.exports("libcuda", "615") - {"cuInit"} | {"cuNewest"}
    source = tmp_path / "new.c"
    lines = [*(f"void {name}(void) {{}}" for name in sorted(names))]
    lines += [f"int {name};" for name in recorded_drivers.exports("libcuda", "615", "object")]
    source.write_text("\n".join(lines))
    new = tmp_path / "libcuda.so.999.1"
    subprocess.run(["gcc", "-w", "-shared", "-fPIC", "-fno-builtin", "-o", new, source], check=True)
    assert refresher.refresh(new)[0].splitlines()[0] == "libcuda.txt: 766 names, 1 new"
    assert refresher.changes() == {"cuNewest 999", "cuInit 470", "cuInit 470 until 999"}
    refresher.refresh(library("615.71.09"))
    assert "cuInit 470 until 999" in refresher.changes()


def test_a_refresh_refuses_a_name_that_goes_and_comes_back(refresher: Refresher, tmp_path: Path) -> None:
    old = tmp_path / "libcuda.so.550.9"
    shutil.copy(library("470.256.02"), old)
    assert "expected in one row of releases, found in [535, 580, 615]" in refresher.refresh(old)[1]
    assert refresher.changes() == set()


@pytest.mark.parametrize("version", CUDA)
def test_a_version_reports_its_cuda_and_offers_no_name_that_it_lacks(version: str) -> None:
    """A fresh process for each version: the libraries are never unloaded."""
    program = f"""
import ctypes, re
driver = ctypes.CDLL({str(library(version))!r})
number = ctypes.c_int()
assert driver.cuDriverGetVersion(ctypes.byref(number)) == 0
names = {recorded_drivers.exports("libcuda", version.partition(".")[0])}
exported = {{ctypes.cast(getattr(driver, name), ctypes.c_void_p).value for name in names}}
text = open({str(CHECKOUT / "libvcuda/sim/cuda/entry/entries.def")!r}).read()
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
