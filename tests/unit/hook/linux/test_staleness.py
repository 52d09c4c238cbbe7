"""vgpu.hook.linux.staleness over trees like /proc."""

from __future__ import annotations

from pathlib import Path

import pytest

from vgpu.config.errors import VgpuError
from vgpu.config.inventory import Inventory
from vgpu.hook.linux import staleness

CLOSED = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n"
    "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n"
)
OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  535.161.08  Release Build  (dvs-builder@U16-I2-C04-12-3)"
    "  Fri Feb 23 01:37:00 UTC 2024\nGCC version:  gcc version 11.4.0\n"
)


def proc(root: Path, version: str | None = CLOSED, boot: str | None = "boot-1\n") -> str:
    for name, text in (("driver/nvidia/version", version), ("sys/kernel/random/boot_id", boot)):
        if text is not None:
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return str(root)


def inventory(version: str = "550.54.15", boot: str = "boot-1") -> Inventory:
    return Inventory(version, boot, 0.0, [], [], [], [])


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (CLOSED, "550.54.15"),
        (OPEN, "535.161.08"),
        ("NVRM version: NVIDIA UNIX aarch64 Kernel Module  390.157  x\n", "390.157"),
        ("GCC version:  gcc version 12.2.0\n", ""),
        ("NVRM version: something else\n", ""),
        ("", ""),
        ("\x00\xff\xfe", ""),
    ],
)
def test_the_version_is_read_from_every_wording(tmp_path: Path, text: str, version: str) -> None:
    assert staleness.driver_version(proc(tmp_path, text)) == version


def test_an_inventory_of_this_boot_and_driver_is_fresh(tmp_path: Path) -> None:
    staleness.check(inventory(), proc(tmp_path))


def test_another_driver_makes_it_stale(tmp_path: Path) -> None:
    with pytest.raises(VgpuError, match=r"535\.161\.08, found 550\.54\.15; run: vgpuctl inventory refresh"):
        staleness.check(inventory(), proc(tmp_path, OPEN))


def test_another_boot_makes_it_stale(tmp_path: Path) -> None:
    with pytest.raises(VgpuError, match=r"boot-2.*found boot-1; run: vgpuctl inventory refresh"):
        staleness.check(inventory(), proc(tmp_path, boot="boot-2\n"))


def test_without_a_version_only_the_boot_counts(tmp_path: Path) -> None:
    staleness.check(inventory("1.2"), proc(tmp_path, version=None))
    with pytest.raises(VgpuError, match="boot-1"):
        staleness.check(inventory(boot="boot-0"), str(tmp_path))


def test_a_driver_root_without_a_boot_id_takes_the_kernels(tmp_path: Path) -> None:
    own, kernel = tmp_path / "own", tmp_path / "kernel"
    assert staleness.boot_id(proc(own, boot=None), proc(kernel, boot="boot-9\n")) == "boot-9"
    assert staleness.boot_id(str(own), str(tmp_path / "none")) == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [("550.54.15", True), ("390.157", True), ("550", False), ("1", False), ("5.x", False), ("", False), ("5.", False)],
)
def test_what_a_version_looks_like(text: str, expected: bool) -> None:
    assert staleness.is_version(text) is expected
