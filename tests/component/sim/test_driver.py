"""The simulated libraries as files: what they export and need."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import recorded_drivers


@pytest.mark.parametrize("name", ["libcuda.so.1", "libnvidia-ml.so.1"])
def test_libraries_need_only_libc(libraries: Path, name: str) -> None:
    output = subprocess.run(["readelf", "-d", libraries / name], check=True, capture_output=True, text=True).stdout
    needed = {line.split("[")[1].rstrip("]") for line in output.splitlines() if "(NEEDED)" in line}
    assert {library for library in needed if not library.startswith("ld-linux")} <= {"libc.so.6", "libpthread.so.0"}
    assert "SYMBOLIC" in output and "NODELETE" in output


def test_every_function_that_is_known_is_exported_once(repository: Path, libraries: Path) -> None:
    """Clients look up names up to the newest. Functions that the simulator lacks return an error."""
    rows = (repository / "libvcuda/sim/cuda/entry/entries.def").read_text()
    implemented = re.findall(r"^(?!ALIAS)[A-Z_]+\(\w+, \d+, (\w+)", rows, re.MULTILINE)
    command = ["nm", "-D", "--defined-only", "--format=posix", str(libraries / "libcuda.so.1")]
    symbols = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    addresses = {line.split()[0]: line.split()[2] for line in symbols.splitlines()}
    del addresses["vgpuSimClock"]
    assert len(implemented) == len(set(implemented)) and set(implemented) <= set(addresses)
    assert set(addresses) == recorded_drivers.functions("libcuda")
    assert len(set(addresses.values())) == len(addresses)
