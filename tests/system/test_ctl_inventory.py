"""`vgpuctl inventory` on a driver root with device nodes, which need mknod."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from driver_roots import DriverRoot

from vgpu.config import inventory as record
from vgpu.config import records
from vgpu.node.ctl.inventory import inventory


@pytest.fixture
def compiled(driver_root: DriverRoot, tmp_path: Path) -> str:
    path = str(tmp_path / "config.json")
    records.write(path, driver_root.settings().record())
    return path


def call(compiled: str, *arguments: str) -> Result:
    return CliRunner().invoke(inventory, arguments, obj=compiled)


@pytest.mark.root  # mknod
def test_refresh_writes_what_show_prints(driver_root: DriverRoot, compiled: str) -> None:
    done = call(compiled, "refresh")
    assert done.exit_code == 0, done.output
    assert done.stdout == ""
    assert "note: made " in done.stderr
    assert "MIG mode" in done.stderr
    path = driver_root.path / "run/inventory.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(record.read(str(path.parent)).cards) == 2

    shown = call(compiled, "show")
    assert "Driver 550.54.15, taken " in shown.stdout
    assert "40 GiB" in shown.stdout
    assert "1:NV4" in shown.stdout
    assert "libcuda.so.1" in shown.stdout
    assert shown.stderr == ""
    assert json.loads(call(compiled, "show", "--output", "json").stdout) == json.loads(path.read_text())


@pytest.mark.root  # mknod
def test_show_says_when_it_is_stale(driver_root: DriverRoot, compiled: str) -> None:
    call(compiled, "refresh")
    driver_root.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  560.1  x\n")
    done = call(compiled, "show")
    assert done.exit_code == 0
    assert "warning: inventory: expected one of the loaded driver 560.1" in done.stderr
