"""vgpu.hook.formats.elf on crafted files of each word size and byte order, on a program, and on garbage."""

from __future__ import annotations

from pathlib import Path

import pytest
from elf_files import craft

from vgpu.config.errors import VgpuError
from vgpu.hook.formats import elf


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("order", ["<", ">"])
def test_reads_both_word_sizes_and_byte_orders(tmp_path: Path, bits: int, order: str) -> None:
    path = tmp_path / "libx.so"
    path.write_bytes(craft(bits, order, 183, b"libx.so.7", [b"libc.so.6", b"libm.so.6"]))
    found = elf.read(str(path))
    assert (found.bits, found.machine, found.soname) == (bits, 183, "libx.so.7")
    assert found.needed == ("libc.so.6", "libm.so.6")


def test_a_program_of_this_machine_has_no_soname() -> None:
    assert elf.read("/bin/sh").soname == ""


@pytest.mark.parametrize(
    "content",
    [b"", b"\x7fELF", b"#!/bin/sh\nexit 0\n", b"\x7fELF\x09\x01" + bytes(60), b"\x7fELF\x02\x01" + b"\xff" * 200],
    ids=["empty", "magic only", "script", "bad class", "all ones"],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "libx.so"
    path.write_bytes(content)
    with pytest.raises(VgpuError, match=r"libx\.so: expected an ELF file"):
        elf.read(str(path))


def test_a_missing_file_and_a_directory_are_named(tmp_path: Path) -> None:
    with pytest.raises(VgpuError, match="No such file"):
        elf.read(str(tmp_path / "none"))
    with pytest.raises(VgpuError, match="Is a directory"):
        elf.read(str(tmp_path))
