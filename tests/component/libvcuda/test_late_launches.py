"""The account of launches stays exact when they return from the driver late or fail there.

tests/data/cuda/late_launches.c chooses the order of the threads' steps.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from vcuda_boxes import SOURCES, Box, Compiled, compile_c, need_root

from vgpu.config import limits

UUID = limits.uuid_text(b"stepped-card-000")
CASES = re.findall(r'\{"([^"]+)", \w+\}', (SOURCES / "late_launches.c").read_text())


@pytest.fixture
def stepped(programs: Path, tmp_path: Path) -> Iterator[Box]:
    """A box on the stepped driver, with half a card's time."""
    need_root()
    (tmp_path / "stepped").mkdir()
    soname = "-Wl,-soname,libcuda.so.1"
    compile_c(tmp_path / "stepped/libcuda.so.1", SOURCES / "stepped_driver.c", "-shared", "-fPIC", soname)
    box = Box(tmp_path / "box", tmp_path / "stepped", programs / "driver_client", {}, UUID)
    (box.path / "limits").write_bytes(limits.encode("box", [limits.CardLimit(UUID, limits.UNLIMITED, 50, 50)]))
    yield box
    box.close()


@pytest.mark.parametrize("case", CASES)
def test_the_account_is_exact(stepped: Box, compiled: Compiled, case: str) -> None:
    program = compiled("late_launches.c", "-ldl", "-lpthread")
    command = stepped.command(str(program), case)
    done = subprocess.run(command, env=stepped.environment, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
