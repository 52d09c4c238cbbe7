"""Fixtures of the tests of discovery and of vgpuctl's inventory."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from driver_roots import VERSION, DriverRoot, compile_parts


@pytest.fixture(scope="session")
def driver_parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The libraries that driver roots consist of, compiled once."""
    if not shutil.which("cc"):
        pytest.skip("cc is missing")
    directory = tmp_path_factory.mktemp("driver")
    compile_parts(directory)
    return directory


@pytest.fixture
def driver_root(driver_parts: Path, tmp_path: Path) -> DriverRoot:
    """A driver root with libcuda and NVML."""
    root = DriverRoot(tmp_path / "driver", driver_parts)
    root.add(f"libcuda.so.{VERSION}", "libcuda.so.1")
    (root.libraries / "libcuda.so.1").symlink_to(f"libcuda.so.{VERSION}")
    root.add_nvml()
    return root
