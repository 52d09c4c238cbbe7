"""`vgpuctl inventory` through click, on a small driver root."""

from __future__ import annotations

from driver_roots import DriverRoot

from vgpu.config.errors import VgpuError


def test_show_without_an_inventory_says_what_to_do(driver_root: DriverRoot) -> None:
    done = driver_root.call("show")
    assert isinstance(done.exception, VgpuError)
    assert "run: vgpuctl inventory refresh" in str(done.exception)


def test_a_refresh_that_fails_keeps_the_last_inventory(driver_root: DriverRoot) -> None:
    kept = driver_root.write("run/inventory.json", "{}")
    driver_root.write("proc/devices", "Character devices:\n")
    done = driver_root.call("refresh")
    assert isinstance(done.exception, VgpuError)
    assert "NVIDIA kernel module" in str(done.exception)
    assert kept.read_text() == "{}"
