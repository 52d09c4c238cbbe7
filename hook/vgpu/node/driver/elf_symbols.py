"""The functions that a shared library exports: its dynamic symbol table, found by the section headers.

Belongs here: reading the symbol table of a file that may have 60 MB, and nothing else of it. Does not belong here:
SONAME and NEEDED, which vgpu.hook.formats.elf reads. A file that is not ELF raises VgpuError. A library without section
headers has an empty list. Never runs in the hook's process.
"""

from __future__ import annotations

import os
import struct

from vgpu.config import leases
from vgpu.config.errors import VgpuError

SHT_DYNSYM = 11
STT_FUNC, STT_GNU_IFUNC = 2, 10
MAX_TABLE = 32 << 20
_HEADER = struct.Struct("<16xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")


def exported_functions(path: str) -> list[str]:
    """The sorted names of the functions that the 64-bit library at `path` exports."""
    try:
        fd = leases.opened(path, os.O_RDONLY, leases.PATIENCE)
        try:
            return sorted(_functions(fd))
        finally:
            os.close(fd)
    except (OSError, struct.error, ValueError, IndexError) as error:
        raise VgpuError(f"{path}: its symbols", expected="a 64-bit shared library", found=str(error)) from error


def _functions(fd: int) -> set[str]:
    header = os.pread(fd, _HEADER.size, 0)
    if header[:5] != b"\x7fELF\x02":
        raise ValueError("no 64-bit ELF file")
    fields = _HEADER.unpack(header)
    start, size, count = fields[5], fields[10], fields[11]
    sections = [_SECTION.unpack(_read(fd, start + index * size, _SECTION.size)) for index in range(count)]
    names: set[str] = set()
    for section in sections:
        if section[1] == SHT_DYNSYM:
            table = sections[section[6]]
            names |= _named(_read(fd, section[4], section[5]), _read(fd, table[4], table[5]))
    return names


def _named(symbols: bytes, strings: bytes) -> set[str]:
    whole = len(symbols) - len(symbols) % _SYMBOL.size
    found = set()
    for name, info, _, section, _, _ in _SYMBOL.iter_unpack(symbols[:whole]):
        if section and info & 0xF in (STT_FUNC, STT_GNU_IFUNC):
            found.add(strings[name : strings.index(b"\0", name)].decode("ascii", "replace"))
    return found


def _read(fd: int, offset: int, size: int) -> bytes:
    if size > MAX_TABLE:
        raise ValueError(f"a table of {size} bytes")
    data = os.pread(fd, size, offset)
    if len(data) != size:
        raise ValueError(f"{len(data)} of {size} bytes at {offset}")
    return data
