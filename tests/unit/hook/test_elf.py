"""vgpu.hook.formats.elf on files that the compiler makes, on crafted ones of the other word size and byte order, on garbage."""

from __future__ import annotations

import random
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from vgpu.config.errors import VgpuError
from vgpu.hook.formats import elf


def craft(bits: int, order: str, machine: int, soname: bytes, needed: list[bytes]) -> bytes:
    """A minimal shared object: header, PT_LOAD that starts at address 0x10000, PT_DYNAMIC, dynamic section, strings."""
    word, phsize, ehsize, dyn = ("I", 32, 52, "iI") if bits == 32 else ("Q", 56, 64, "qQ")
    strings = b"\0" + soname + b"\0" + b"".join(name + b"\0" for name in needed)
    place, offsets = 1 + len(soname) + 1, []
    for name in needed:
        offsets.append(place)
        place += len(name) + 1
    dynamic_at = ehsize + 2 * phsize
    tags = [(1, offset) for offset in offsets] + [(14, 1)]
    size = (len(tags) + 2) * struct.calcsize(order + dyn)
    tags += [(5, 0x10000 + dynamic_at + size), (0, 0)]
    dynamic = b"".join(struct.pack(order + dyn, *tag) for tag in tags)
    total = dynamic_at + size + len(strings)
    ident = b"\x7fELF" + bytes((1 if bits == 32 else 2, 1 if order == "<" else 2, 1)) + bytes(9)
    header = struct.pack(
        order + "HHI" + word * 3 + "IHHHHHH", 3, machine, 1, 0, ehsize, 0, 0, ehsize, phsize, 2, 0, 0, 0
    )
    segments = b""
    for kind, offset, length in ((1, 0, total), (2, dynamic_at, size)):
        address = 0x10000 + offset
        if bits == 32:
            segments += struct.pack(order + "8I", kind, offset, address, address, length, length, 5, 4)
        else:
            segments += struct.pack(order + "IIQQQQQQ", kind, 5, offset, address, address, length, length, 8)
    return ident + header + segments + dynamic + strings


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("order", ["<", ">"])
def test_reads_both_word_sizes_and_byte_orders(tmp_path: Path, bits: int, order: str) -> None:
    path = tmp_path / "libx.so"
    path.write_bytes(craft(bits, order, 183, b"libx.so.7", [b"libc.so.6", b"libm.so.6"]))
    found = elf.read(str(path))
    assert (found.bits, found.machine, found.soname) == (bits, 183, "libx.so.7")
    assert found.needed == ("libc.so.6", "libm.so.6")


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
