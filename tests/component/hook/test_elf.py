"""The ELF reader on the compiler's files, and on 1,500 damaged ones."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest
from elf_files import craft

from vgpu.config.errors import VgpuError
from vgpu.hook.formats import elf


@pytest.mark.skipif(not shutil.which("cc"), reason="cc is missing")
def test_reads_what_the_compiler_makes(tmp_path: Path) -> None:
    source, path, other = tmp_path / "x.c", tmp_path / "libx.so", tmp_path / "liby.so"
    source.write_text("int x;\n")
    subprocess.run(["cc", "-shared", "-Wl,--no-as-needed,-soname,libx.so.1", "-o", path, source], check=True)
    subprocess.run(["cc", "-shared", "-nostdlib", "-Wl,--no-as-needed", "-o", other, source, path], check=True)
    found = elf.read(str(path))
    assert (found.bits, found.soname) == (64, "libx.so.1")
    assert "libc.so.6" in found.needed
    assert elf.read(str(other)).soname == ""
    assert elf.read(str(other)).needed == ("libx.so.1",)


def test_damage_never_raises_anything_else(tmp_path: Path) -> None:
    generator = random.Random(20240601)
    path = tmp_path / "libx.so"
    for _ in range(1500):
        bits, order = generator.choice((32, 64)), generator.choice("<>")
        data = bytearray(craft(bits, order, 62, b"libx.so.1", [b"libc.so.6"]))
        for _ in range(generator.randrange(1, 8)):
            data[generator.randrange(len(data))] = generator.choice((0, 1, 0x7F, 0x80, 0xFF, generator.randrange(256)))
        del data[generator.randrange(len(data)) if generator.random() < 0.3 else len(data) :]
        path.write_bytes(bytes(data))
        try:
            elf.read(str(path))
        except VgpuError as error:
            assert "\n" not in str(error)
