"""`vgpuctl inventory` through click, on a small driver root."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from driver_roots import DriverRoot

from vgpu.config import records
from vgpu.config.errors import VgpuError
from vgpu.node.ctl.inventory import inventory


@pytest.fixture
def compiled(driver_root: DriverRoot, tmp_path: Path) -> str:
    path = str(tmp_path / "config.json")
    records.write(path, driver_root.settings().record())
    return path


def call(compiled: str, *arguments: str) -> Result:
    return CliRunner().invoke(inventory, arguments, obj=compiled)


def test_show_without_an_inventory_says_what_to_do(compiled: str) -> None:
    done = call(compiled, "show")
    assert isinstance(done.exception, VgpuError)
    assert "run: vgpuctl inventory refresh" in str(done.exception)


def test_a_refresh_that_fails_keeps_the_last_inventory(driver_root: DriverRoot, compiled: str) -> None:
    kept = driver_root.write("run/inventory.json", "{}")
    driver_root.write("proc/devices", "Character devices:\n")
    done = call(compiled, "refresh")
    assert isinstance(done.exception, VgpuError)
    assert "NVIDIA kernel module" in str(done.exception)
    assert kept.read_text() == "{}"
