"""ELF files as far as driver libraries need them: word size, machine, DT_SONAME, DT_NEEDED, DT_RPATH and DT_RUNPATH.

Belongs here: the bounded walk header -> program headers -> dynamic segment -> strings, for both word sizes and both
byte orders. Not here: the meaning of a name (vgpu.node.driver.files). Section headers are never read: the loader does
not need them, and a stripped library may lack them. Any other file raises VgpuError and nothing else.
"""

from __future__ import annotations

import os
import struct

from vgpu.config import leases
from vgpu.config.errors import VgpuError

EM_386 = 3
EM_PPC64 = 21
EM_ARM = 40
EM_X86_64 = 62
EM_AARCH64 = 183

_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NULL, _DT_NEEDED, _DT_STRTAB, _DT_SONAME, _DT_RPATH, _DT_RUNPATH = 0, 1, 5, 14, 15, 29

_MAX_SEGMENTS = 512
_MAX_DYNAMIC = 1 << 16  # bytes; libcuda's is below one KiB
_MAX_NEEDED = 1024
_MAX_NAME = 1024
_MAX_SEARCHED = 8192  # bytes of a search path
_MAX_OFFSET = 1 << 62  # pread takes a signed 64-bit offset

#: EI_CLASS and EI_DATA -> word size and struct's byte order
_IDENTITY = {b"\1\1": (32, "<"), b"\1\2": (32, ">"), b"\2\1": (64, "<"), b"\2\2": (64, ">")}
#: struct codes behind the byte order, per word size: e_phoff and e_phentsize/e_phnum places, program header, Elf_Dyn
_PHOFF = {32: (28, "I"), 64: (32, "Q")}
_PHNUM = {32: 42, 64: 54}
_PHDR = {32: "IIIIIIII", 64: "IIQQQQQQ"}
_DYN = {32: "iI", 64: "qQ"}


class Elf:
    """`bits` 32 or 64, `machine` as EM_*, `soname` ("" without one), `needed` in the file's order.

    `searched` is its DT_RUNPATH, or where it has none its DT_RPATH, "" without either: folders between colons.
    """

    __slots__ = ("bits", "machine", "needed", "searched", "soname")

    def __init__(self, bits: int, machine: int, soname: str, needed: tuple[str, ...], searched: str = "") -> None:
        self.bits = bits
        self.machine = machine
        self.soname = soname
        self.needed = needed
        self.searched = searched


def read(path: str) -> Elf:
    """The ELF file at `path`; VgpuError when it is none or cannot be read."""
    try:
        fd = leases.opened(path, os.O_RDONLY, leases.PATIENCE)
    except OSError as error:
        raise VgpuError(f"{path}: cannot be read", found=error.strerror) from error
    try:
        return read_fd(fd, path)
    finally:
        os.close(fd)


def read_fd(fd: int, source: str) -> Elf:
    """As `read`, for an open file; errors name it `source`."""
    try:
        return _Reader(fd).elf()
    except (struct.error, UnicodeDecodeError, _NotElf) as error:
        raise VgpuError(source, expected="an ELF file", found=str(error)) from None
    except OSError as error:
        raise VgpuError(f"{source}: cannot be read", found=error.strerror) from error


class _NotElf(Exception):
    pass


class _Reader:
    """One walk over one file. The identification bytes set `_order` and `_bits`."""

    __slots__ = ("_bits", "_fd", "_order")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._bits = 64
        self._order = "<"

    def elf(self) -> Elf:
        header = self._bytes(0, 16)
        if header[:4] != b"\x7fELF" or header[4:6] not in _IDENTITY:
            raise _NotElf(f"{header[:6]!r} at the start")
        self._bits, self._order = _IDENTITY[header[4:6]]
        (machine,) = self._unpack("H", 18)
        loads, dynamic = self._segments()
        soname, needed, searched = self._names(loads, dynamic) if dynamic else ("", (), "")
        return Elf(self._bits, machine, soname, needed, searched)

    def _bytes(self, offset: int, size: int) -> bytes:
        """`size` bytes at `offset`, or fewer where the file ends."""
        if not 0 <= offset < _MAX_OFFSET:
            raise _NotElf(f"an offset of {offset}")
        data = os.pread(self._fd, size, offset)
        if not data and size:
            raise _NotElf(f"the file's end before byte {offset}")
        return data

    def _unpack(self, codes: str, offset: int) -> tuple[int, ...]:
        form = self._order + codes
        return struct.unpack(form, self._bytes(offset, struct.calcsize(form)))

    def _segments(self) -> tuple[list[tuple[int, int, int]], tuple[int, int] | None]:
        """([(address, offset, size) of each PT_LOAD], (offset, size) of PT_DYNAMIC if there is one)."""
        place, code = _PHOFF[self._bits]
        (offset,) = self._unpack(code, place)
        entry_size, count = self._unpack("HH", _PHNUM[self._bits])
        form = self._order + _PHDR[self._bits]
        if (count and entry_size != struct.calcsize(form)) or count > _MAX_SEGMENTS:
            raise _NotElf(f"{count} program headers of {entry_size} bytes")
        data = self._bytes(offset, count * entry_size)
        loads, dynamic = [], None
        for fields in struct.iter_unpack(form, data):
            kind, start, address, size = self._segment(fields)
            if kind == _PT_LOAD:
                loads.append((address, start, size))
            elif kind == _PT_DYNAMIC:
                dynamic = start, min(size, _MAX_DYNAMIC)
        return loads, dynamic

    def _segment(self, fields: tuple[int, ...]) -> tuple[int, int, int, int]:
        """(p_type, p_offset, p_vaddr, p_filesz): p_flags has a different place in 32-bit headers."""
        if self._bits == 32:
            return fields[0], fields[1], fields[2], fields[4]
        return fields[0], fields[2], fields[3], fields[5]

    def _names(self, loads: list[tuple[int, int, int]], dynamic: tuple[int, int]) -> tuple[str, tuple[str, ...], str]:
        form = self._order + _DYN[self._bits]
        data = self._bytes(*dynamic)
        whole = len(data) - len(data) % struct.calcsize(form)
        strings, soname = None, None
        needed: list[int] = []
        searched: dict[int, int] = {}
        for tag, value in struct.iter_unpack(form, data[:whole]):
            if tag == _DT_NULL:
                break
            if tag == _DT_STRTAB:
                strings = _offset_of(value, loads)
            elif tag == _DT_SONAME:
                soname = value
            elif tag == _DT_NEEDED and len(needed) < _MAX_NEEDED:
                needed.append(value)
            elif tag in (_DT_RPATH, _DT_RUNPATH):
                searched[tag] = value
        if strings is None:
            return "", (), ""
        name = "" if soname is None else self._string(strings + soname)
        path = searched.get(_DT_RUNPATH, searched.get(_DT_RPATH))
        folders = "" if path is None else self._string(strings + path, _MAX_SEARCHED)
        return name, tuple(self._string(strings + value) for value in needed), folders

    def _string(self, offset: int, limit: int = _MAX_NAME) -> str:
        text, end, _ = self._bytes(offset, limit).partition(b"\0")
        if not end:
            raise _NotElf(f"a name without an end at byte {offset}")
        return text.decode("utf-8")


def _offset_of(address: int, loads: list[tuple[int, int, int]]) -> int:
    """The file offset of `address`. DT_STRTAB holds an address, and the file is not mapped."""
    for start, offset, size in loads:
        if start <= address < start + size:
            return offset + address - start
    raise _NotElf(f"no segment with the address {address:#x}")
