"""A copy of an ELF library in which some of its exports cannot be found. Pure: bytes to bytes.

Belongs here: the changes in the dynamic symbol table, and those that a check of such a copy needs. Does not belong
here: which names, and the files (vgpu.node.driver.library_copies). Never runs in the hook's process.

A hidden name is an undefined weak symbol without value and size: loaders skip it and go on to the next library, linkers
take it for a reference. Were it global, GNU ld would report it as undefined; with a value, loaders would still find it.
Hash table, bloom filter, versions and order stay as they are, and so do the code, the build id and the table of symbols
that debuggers read.
"""

from __future__ import annotations

import hashlib
import struct

from vgpu.config.errors import VgpuError

SHT_RELA, SHT_DYNAMIC, SHT_NOTE, SHT_DYNSYM = 4, 6, 7, 11
SHN_UNDEF = 0
STB_LOCAL, STB_WEAK = 0, 2
DT_NEEDED = 1
NT_GNU_BUILD_ID = 3
_HEADER = struct.Struct("<16xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_DYNAMIC = struct.Struct("<qQ")
_NOTE = struct.Struct("<III")


class Section:
    """A section: its type, the place of its content in the file, and the number of the section that it names."""

    __slots__ = ("kind", "link", "offset", "size")

    def __init__(self, kind: int, offset: int, size: int, link: int) -> None:
        self.kind = kind
        self.offset = offset
        self.size = size
        self.link = link


class Image:
    """A 64-bit little-endian library in memory. `source` names it in errors; VgpuError for another file."""

    __slots__ = ("data", "sections", "source")

    def __init__(self, data: bytes, source: str) -> None:
        self.data = data
        self.source = source
        try:
            self.sections = self._sections()
        except struct.error as error:
            raise self._wrong(str(error)) from None

    def _sections(self) -> list[Section]:
        if self.data[:6] != b"\x7fELF\x02\x01":
            raise self._wrong("another file")
        fields = _HEADER.unpack_from(self.data)
        found = []
        for index in range(fields[11]):
            row = _SECTION.unpack_from(self.data, fields[5] + index * fields[10])
            found.append(Section(row[1], row[4], row[5], row[6]))
            if row[1] in (SHT_RELA, SHT_DYNAMIC, SHT_NOTE, SHT_DYNSYM) and row[4] + row[5] > len(self.data):
                raise self._wrong("a section beyond the file's end")
        return found

    def _wrong(self, found: str) -> VgpuError:
        return VgpuError(self.source, expected="a 64-bit little-endian shared library", found=found)

    def exports(self) -> dict[str, int]:
        """Name -> place in the dynamic symbol table, of each symbol that a program can find."""
        table, strings = self._tables()
        found = {}
        for index, row in enumerate(_SYMBOL.iter_unpack(self._content(table))):
            if row[3] != SHN_UNDEF and row[1] >> 4 != STB_LOCAL:
                found[self._string(strings, row[0])] = index
        return found

    def hide(self, names: set[str]) -> bytes:
        """The file with these exports hidden. VgpuError if the library itself refers to one of them by its symbol."""
        table, _ = self._tables()
        places = self.exports()
        indexes = {places[name] for name in names}
        used = indexes & self._relocated()
        if used:
            name = next(name for name, place in places.items() if place in used)
            raise VgpuError(self.source, expected="no relocation by a name that is to be hidden", found=name)
        data = bytearray(self.data)
        for index in indexes:
            at = table.offset + index * _SYMBOL.size
            name_at, info, other, _, _, _ = _SYMBOL.unpack_from(data, at)
            _SYMBOL.pack_into(data, at, name_at, STB_WEAK << 4 | info & 0xF, other, SHN_UNDEF, 0, 0)
        return bytes(data)

    def without_dependency(self, path: str) -> bytes:
        """The file without its dependency on `path`, so that it can be loaded where that library is not.

        The entry names another library that the file depends on: no entry is removed.
        """
        _, strings = self._tables()
        (dynamic,) = [section for section in self.sections if section.kind == SHT_DYNAMIC]
        needed = [
            (dynamic.offset + index * _DYNAMIC.size, value)
            for index, (tag, value) in enumerate(_DYNAMIC.iter_unpack(self._content(dynamic)))
            if tag == DT_NEEDED
        ]
        others = [value for _, value in needed if self._string(strings, value) != path]
        data = bytearray(self.data)
        for at, value in needed:
            if self._string(strings, value) == path:
                if not others:
                    raise VgpuError(self.source, expected=f"another dependency than {path}", found="none")
                _DYNAMIC.pack_into(data, at, DT_NEEDED, others[0])
        return bytes(data)

    def build_id(self) -> str:
        """The build id that the linker gave the library; of a library without one, its digest."""
        for section in self.sections:
            if section.kind == SHT_NOTE and section.size >= _NOTE.size:
                name, size, kind = _NOTE.unpack_from(self.data, section.offset)
                start = section.offset + _NOTE.size
                if kind == NT_GNU_BUILD_ID and self.data[start : start + name] == b"GNU\0":
                    return self.data[start + name : start + name + size].hex()
        return hashlib.sha256(self.data).hexdigest()[:40]

    def _tables(self) -> tuple[Section, Section]:
        """The dynamic symbol table and its strings."""
        for section in self.sections:
            if section.kind == SHT_DYNSYM and section.link < len(self.sections):
                return section, self.sections[section.link]
        raise self._wrong("no dynamic symbol table")

    def _relocated(self) -> set[int]:
        """The places in the symbol table that relocations name."""
        return {
            row[1] >> 32
            for section in self.sections
            if section.kind == SHT_RELA
            for row in _RELOCATION.iter_unpack(self._content(section))
        }

    def _content(self, section: Section) -> bytes:
        return self.data[section.offset : section.offset + section.size]

    def _string(self, strings: Section, at: int) -> str:
        start = strings.offset + at
        return self.data[start : self.data.index(b"\0", start)].decode("ascii", "replace")
