"""Programs from the package index, unchanged, on the simulated driver.

They are in a virtual environment of their own, build/clients (`make clients`; VGPU_CLIENTS names another one). Only
`make test-long` runs those that take long to install.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from checkout import DATA

PROGRAMS = DATA / "sim/client_programs.py"
LONG = ("numba_cuda", "pycuda")  #: in an environment of their own, `make clients-long`


@pytest.fixture(scope="session")
def clients(build: Path) -> Path:
    """The virtual environment's programs."""
    programs = Path(os.environ.get("VGPU_CLIENTS", build / "clients")) / "bin"
    if not (programs / "nvitop").exists():
        pytest.skip(f"{programs} is missing: make clients")
    return programs


def run(node: Any, *command: Any, **environment: str) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        check=False,
        env=node.environment(**environment),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def library_path(libraries: Path, clients: Path) -> str:
    """PyCUDA is linked with libcurand, which comes from a wheel."""
    return os.pathsep.join([str(libraries), *map(str, clients.parent.glob("lib/python3*/site-packages/nvidia/*/lib"))])


@pytest.mark.parametrize(
    ("name", "environment"),
    [
        ("cuda_bindings", {}),
        ("cuda_bindings_newer", {}),
        ("tinygrad", {"DEV": "CUDA"}),
        *(pytest.param(name, {}, marks=pytest.mark.long) for name in LONG),
    ],
)
def test_programs(node: Any, clients: Path, libraries: Path, tmp_path: Path, name: str, environment: Any) -> None:
    if name in LONG:
        clients = clients.parent / "long/bin"
        if not (clients.parents[1] / ".completelong").exists():
            pytest.skip(f"{clients} is not complete: make clients-long")
    places = {"LD_LIBRARY_PATH": library_path(libraries, clients), "HOME": str(tmp_path), "CACHELEVEL": "0"}
    run(node, clients / "python", PROGRAMS, name, **places, **environment)
    assert node.card()["used"] == 0


def test_gpustat(node: Any, clients: Path) -> None:
    client = node.client().start()
    assert client("alloc", 1000 << 20)[0] == 0
    assert "Tesla T4" in run(node, clients / "gpustat", "--no-color")
    answer = run(node, clients / "gpustat", "--json")
    assert str(client.process.pid) in answer


def test_nvitop(node: Any, clients: Path) -> None:
    client = node.client().start()
    assert client("alloc", 1000 << 20)[0] == 0
    table = run(node, clients / "nvitop", "--once", "--ascii", COLUMNS="120")
    assert "Tesla T4" in table and str(client.process.pid) in table
