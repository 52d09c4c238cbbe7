"""The dynamic symbols of libraries, compared with nm's, and errors for other files."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from vgpu.config.errors import VgpuError
from vgpu.node.driver.elf_symbols import exported_functions


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("library")
    source = directory / "a.c"
    source.write_text("int data = 1; int cuOne(void) { return 1; } static int own(void) { return 2; }\n"
                      "extern int puts(const char *); int cuTwo(void) { puts(\"x\"); return own(); }\n")  # fmt: skip
    path = directory / "liba.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", path, source], check=True)
    return path


def test_functions_it_defines_and_nothing_else(library: Path) -> None:
    listed = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    functions = sorted(line.split()[2] for line in listed.splitlines() if line.split()[1] == "T")
    assert exported_functions(str(library)) == functions
    assert {"cuOne", "cuTwo"} <= set(functions)


def test_garbage_is_reported(library: Path, tmp_path: Path) -> None:
    data = library.read_bytes()
    broken = tmp_path / "broken.so"
    chance = random.Random(7)
    refused = 0
    for _ in range(300):
        damaged = bytearray(data[: chance.randrange(len(data))])
        for _ in range(chance.randrange(1, 30)):
            if damaged:
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        broken.write_bytes(damaged)
        try:
            exported_functions(str(broken))
        except VgpuError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > 200
