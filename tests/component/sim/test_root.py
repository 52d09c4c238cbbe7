"""simctl.py: the driver root that it makes, which is like that of a host with the driver, and its errors."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

VERSION = "550.54.15"
BY_CAPABILITY = {
    "compute": ["libcuda.so.1", "libcudadebugger.so.1", "libnvidia-ptxjitcompiler.so.1", "libnvidia-nvvm.so.4"],
    "utility": ["libnvidia-ml.so.1", "libnvidia-cfg.so.1"],
    "video": ["libnvidia-encode.so.1", "libnvcuvid.so.1"],
    "graphics": ["libGLX_nvidia.so.0", f"libnvidia-eglcore.so.{VERSION}"],
}


@pytest.mark.parametrize("soname", [name for names in BY_CAPABILITY.values() for name in names])
def test_libraries_have_their_sonames(libraries: Path, soname: str, simctl: ModuleType) -> None:
    file = libraries / f"{soname.partition('.so.')[0]}.so.{VERSION}"
    assert simctl.soname_of(str(file)) == soname
    assert (libraries / soname).resolve() == file


@pytest.mark.parametrize("name", ["libcuda.so.1", "libnvidia-ml.so.1"])
def test_libraries_need_only_libc(libraries: Path, name: str) -> None:
    output = subprocess.run(["readelf", "-d", libraries / name], check=True, capture_output=True, text=True).stdout
    needed = {line.split("[")[1].rstrip("]") for line in output.splitlines() if "(NEEDED)" in line}
    assert {library for library in needed if not library.startswith("ld-linux")} <= {"libc.so.6", "libpthread.so.0"}
    assert "SYMBOLIC" in output and "NODELETE" in output


def test_programs(driver_root: Path) -> None:
    programs = {path.name for path in (driver_root / "usr/bin").iterdir() if os.access(path, os.X_OK)}
    assert programs >= {"nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nvidia-cuda-mps-control"}


def test_proc(simctl: ModuleType, build: Path, tmp_path: Path) -> None:
    proc = Path(simctl.make_root(str(tmp_path), "a100x2", str(build), device_nodes=False)) / "proc"
    devices = (proc / "devices").read_text().split("Block")[0]
    assert "195 nvidia-frontend\n" in devices and "511 nvidia-uvm\n" in devices
    assert VERSION in (proc / "driver/nvidia/version").read_text()
    assert "ModifyDeviceFiles: 1" in (proc / "driver/nvidia/params").read_text()
    information = (proc / "driver/nvidia/gpus/0000:3b:00.0/information").read_text()
    assert "Device Minor:\t 1\n" in information
    assert (tmp_path / "sys/bus/pci/devices/0000:5e:00.0/numa_node").read_text() == "0\n"
    assert not list((tmp_path / "dev").iterdir())


@pytest.mark.root
def test_device_nodes(simctl: ModuleType, build: Path, tmp_path: Path) -> None:
    for _ in range(2):  # laying it out again replaces it
        simctl.make_root(str(tmp_path), "a100x2", str(build))
    nodes = {path.name: path.stat() for path in (tmp_path / "dev").iterdir()}
    assert all(stat.S_ISCHR(status.st_mode) for status in nodes.values())
    assert {name: (os.major(s.st_rdev), os.minor(s.st_rdev)) for name, s in nodes.items()} == {
        "nvidia0": (195, 0),
        "nvidia1": (195, 1),
        "nvidiactl": (195, 255),
        "nvidia-uvm": (511, 0),
        "nvidia-uvm-tools": (511, 1),
    }


def run(*arguments: str, script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, script, *arguments], check=False, capture_output=True, text=True)


def test_command_line(simctl: ModuleType, make_node: Callable[..., Any], tmp_path: Path) -> None:
    state = str(tmp_path / "made")
    made = run("state", state, "--profile", "h100x8", "--device-nodes", "no", script=simctl.__file__)
    assert (made.returncode, made.stderr) == (0, "")
    shown = run("show", state, "--json", script=simctl.__file__)
    assert json.loads(shown.stdout) == simctl.read_state(state)
    assert run("show", state, script=simctl.__file__).stdout.count("\n") == 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("state", "DIR", "--profile", "nonesuch"), "nonesuch"),
        (("root", "DIR", "--profile", "t4x1", "--build", "DIR"), "build first"),
        (("show", "DIR"), "cards"),
    ],
)
def test_errors_are_one_line(simctl: ModuleType, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    done = run(*(word.replace("DIR", str(tmp_path)) for word in arguments), script=simctl.__file__)
    assert done.returncode == 1
    assert done.stderr.startswith("simctl: ") and message in done.stderr and done.stderr.count("\n") == 1
