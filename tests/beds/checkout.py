"""The paths of the checkout, the build and the tests' data, independent of the depth of the importing file."""

from __future__ import annotations

import os
from pathlib import Path

CHECKOUT = next(folder for folder in Path(__file__).resolve().parents if (folder / "pyproject.toml").exists())
BUILD = Path(os.environ.get("VGPU_BUILD", CHECKOUT / "build"))
DATA = CHECKOUT / "tests/data"
BENCH = CHECKOUT / "tests/bench"
LOAD_SOURCES = sorted(map(str, (BENCH / "cores_load").glob("*.c")))  #: the load generator of the benchmarks
LIBRARIES = [CHECKOUT / "tests/beds", CHECKOUT / "tests/doubles"]  #: pyproject.toml puts these on the tests' path
#: The compiler of the programs under test, and what runs them where they are another processor's: test_arm64.py.
COMPILER = os.environ.get("VGPU_COMPILER", "gcc")
EMULATOR = os.environ.get("VGPU_EMULATOR", "").split()
