"""Fixtures for tests on a real card: a box of vcuda_boxes, on the machine's own driver and first card.

All tests in this folder have the marker `gpu`, and skip if the machine has no card. The box itself is the unit tests'.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import vcuda_boxes

LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")

FIND = """
import ctypes, sys
ctypes.CDLL(sys.argv[1])
print(next(line.split()[-1] for line in open("/proc/self/maps") if sys.argv[1].split(".")[0] + ".so" in line))
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(str(item.fspath)).parent == Path(__file__).parent:
            item.add_marker(pytest.mark.gpu)


def find(library: str) -> Path | None:
    """The file that the loader finds for the name. A child process loads it, so that it does not stay loaded here."""
    done = subprocess.run([sys.executable, "-c", FIND, library], capture_output=True, text=True, check=False)
    return Path(done.stdout.strip()) if done.returncode == 0 else None


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with copies of the real libraries, under their names in a container's /usr/local/vgpu."""
    if os.geteuid() != 0:
        pytest.skip("needs root: a private mount namespace")
    path = tmp_path_factory.mktemp("driver")
    for library in LIBRARIES:
        found = find(library)
        if found is None:
            pytest.skip(f"needs a GPU: no {library} on this machine")
        shutil.copy(found, path / library)
    return path


@pytest.fixture(scope="session")
def card(driver: Path) -> dict[str, Any]:
    """The first card: uuid, total bytes, name, driver version."""
    import pynvml  # type: ignore[import-untyped]

    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    except pynvml.NVMLError as error:
        pytest.skip(f"needs a GPU: NVML says {error}")
    return {
        "uuid": pynvml.nvmlDeviceGetUUID(handle),
        "total": pynvml.nvmlDeviceGetMemoryInfo(handle).total,
        "name": pynvml.nvmlDeviceGetName(handle),
        "driver": pynvml.nvmlSystemGetDriverVersion(),
        "handle": handle,
    }


@pytest.fixture
def gpu(driver: Path, card: dict[str, Any], tmp_path: Path) -> Iterator[Any]:
    """A box on the real driver, in which only the first card is visible."""
    if not (vcuda_boxes.BUILD / "lib/vcuda/libcuda.so.1").exists():
        pytest.skip(f"libvcuda is not built in {vcuda_boxes.BUILD}: run `make build`")
    program = vcuda_boxes.compile_c(
        tmp_path / "driver_client", vcuda_boxes.SOURCES / "driver_client.c", "-ldl", "-lpthread"
    )
    box = vcuda_boxes.Box(tmp_path / "box", driver, program, {"CUDA_VISIBLE_DEVICES": card["uuid"]}, card["uuid"])
    yield box
    box.close()
