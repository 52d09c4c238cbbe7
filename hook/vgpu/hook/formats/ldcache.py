"""The codec of `/etc/ld.so.cache`, and the merge of the driver's libraries into a container's own cache.

Belongs here: the formats of glibc's ldconfig (sysdeps/generic/dl-cache.h) and its sort order; bytes in, bytes out. Not
here: reading and replacing the file in a root file system. It runs in the hook's process, on input from an image:
garbage, truncated and oversized caches raise VgpuError, and work and memory stay in the order of MAX_CACHE.

    new     glibc-ld.so.cache1.1, entries, strings, extension      written by glibc >= 2.32, read by all since 2.2
    compat  ld.so-1.7.0, old entries, padding, then a whole "new"   the default before 2.32
    old     ld.so-1.7.0, old entries, strings                       `ldconfig -c old`
"""

from __future__ import annotations

import os
import struct

from vgpu.config.errors import VgpuError
from vgpu.hook.formats.elf import EM_386, EM_AARCH64, EM_ARM, EM_PPC64, EM_X86_64

MAX_CACHE = 4 << 20  # a desktop with thousands of libraries has some 400 KiB
_MAX_STRING = 4096

#: FLAG_ELF_LIBC6 (3) and the ABI's own bits, as ldconfig writes them for (machine, bits)
FLAGS = {
    (EM_X86_64, 64): 0x0303,
    (EM_X86_64, 32): 0x0803,
    (EM_386, 32): 0x0003,
    (EM_AARCH64, 64): 0x0A03,
    (EM_ARM, 32): 0x0903,  # hard-float, the only ABI of NVIDIA's 32-bit ARM libraries
    (EM_PPC64, 64): 0x0503,
}

_MAGIC_OLD = b"ld.so-1.7.0\0"  # 11 bytes and the padding before nlibs
_MAGIC_NEW = b"glibc-ld.so.cache1.1"
_OLD_HEADER = struct.Struct("<12sI")
_OLD_ENTRY = struct.Struct("<iII")
_NEW_HEADER = struct.Struct("<20sIIB3xI12x")  # magic and version, nlibs, len_strings, flags, extension_offset
_NEW_ENTRY = struct.Struct("<iIIIQ")  # flags, key, value, osversion, hwcap
_WORD = struct.Struct("<I")
_EXTENSION = struct.Struct("<II")  # magic, count
_SECTION = struct.Struct("<IIII")  # tag, flags, offset in the file, size

_ENDIAN_UNKNOWN, _ENDIAN_LITTLE = 0, 2
_EXTENSION_MAGIC = 0xEAA42174
_TAG_GLIBC_HWCAPS = 1  # offsets of strings; other tags (0: the generator's name) hold no offsets
_MAX_SECTIONS = 64

_NUMBER = 1 << 33  # above every character: a number sorts after all characters, as in _dl_cache_libcmp
_SIGNED_CHAR = os.uname().machine in ("x86_64", "i386", "i486", "i586", "i686")


class Entry:
    """One library. `flags` name the ABI. `hwcap` is a mask; with bit 62 its low word is an index into `hwcaps`."""

    __slots__ = ("flags", "hwcap", "name", "osversion", "path")

    def __init__(self, flags: int, name: bytes, path: bytes, osversion: int = 0, hwcap: int = 0) -> None:
        self.flags = flags
        self.name = name
        self.path = path
        self.osversion = osversion
        self.hwcap = hwcap


class Cache:
    """A whole cache: entries in their order, glibc-hwcaps subdirectories, other sections as (tag, flags, content)."""

    __slots__ = ("endian", "entries", "hwcaps", "sections")

    def __init__(
        self,
        entries: list[Entry],
        hwcaps: list[bytes],
        sections: list[tuple[int, int, bytes]],
        endian: int = _ENDIAN_LITTLE,
    ) -> None:
        self.entries = entries
        self.hwcaps = hwcaps
        self.sections = sections
        self.endian = endian


class Addition:
    """A library to add: its `soname`, its absolute `path` in the container, its word size and ELF machine."""

    __slots__ = ("bits", "machine", "path", "soname")

    def __init__(self, soname: str, path: str, bits: int = 64, machine: int = EM_X86_64) -> None:
        self.soname = soname
        self.path = path
        self.bits = bits
        self.machine = machine

    def entry(self) -> Entry:
        flags = FLAGS.get((self.machine, self.bits))
        if flags is None:
            found = f"{self.bits} bit, ELF machine {self.machine}"
            raise VgpuError(f"{self.path}: loader cache entry", expected="a machine that ldconfig knows", found=found)
        return Entry(flags, self.soname.encode(), self.path.encode())


class _Malformed(Exception):
    pass


def merge(
    data: bytes | None, additions: list[Addition], dropped: tuple[str, ...] = (), source: str = "/etc/ld.so.cache"
) -> bytes:
    """The cache `data` (None: there is none) in the new format, with `additions` in glibc's order.

    An addition replaces every entry of its name and ABI, including those of glibc-hwcaps directories, which the loader
    would prefer. Names in `dropped` are removed for all ABIs. Of two equal additions the first counts.
    """
    cache = Cache([], [], []) if data is None else parse(data, source)
    gone = {order_key(name.encode()) for name in dropped}
    ours: dict[tuple[tuple[int, ...], int], Entry] = {}
    for addition in additions:
        entry = addition.entry()
        ours.setdefault((order_key(entry.name), entry.flags), entry)
    keyed = [((order_key(entry.name), entry.flags), entry) for entry in cache.entries]
    keyed = [(key, entry) for key, entry in keyed if key[0] not in gone and key not in ours]
    keyed += ours.items()
    keyed.sort(key=_first, reverse=True)  # stable in reverse too: equal keys keep glibc's order
    cache.entries = [entry for _, entry in keyed]
    return serialize(cache)


def _first(item: tuple[tuple[tuple[int, ...], int], Entry]) -> tuple[tuple[int, ...], int]:
    return item[0]


def order_key(name: bytes) -> tuple[int, ...]:
    """A key that sorts like glibc's _dl_cache_libcmp. Names with equal keys are equal to the loader.

    Numbers compare as C ints, even when they overflow. A number is greater than any character.
    """
    key = []
    number = -1
    for c in name:
        if 48 <= c <= 57:
            number = c - 48 if number < 0 else number * 10 + c - 48
            continue
        if number >= 0:
            key.append(_NUMBER + _as_int(number))
            number = -1
        key.append(c - 256 if c > 127 and _SIGNED_CHAR else c)
    if number >= 0:
        key.append(_NUMBER + _as_int(number))
    key.append(0)
    return tuple(key)


def _as_int(number: int) -> int:
    return number if number < 1 << 31 else ((number + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)


def parse(data: bytes, source: str = "/etc/ld.so.cache") -> Cache:
    """The cache in `data`; a VgpuError that names `source` when the loader would not use it."""
    try:
        if len(data) > MAX_CACHE:
            raise _Malformed(f"more than {MAX_CACHE} bytes")
        return _parse(data)
    except (_Malformed, struct.error) as error:
        raise VgpuError(source, expected="a loader cache", found=str(error), do="run ldconfig in the image") from None


def _parse(data: bytes) -> Cache:
    if data.startswith(_MAGIC_NEW):
        return _parse_new(data, 0)
    if not data.startswith(_MAGIC_OLD[:-1]):
        raise _Malformed(f"{data[:20]!r} at the start")
    _, count = _OLD_HEADER.unpack_from(data)
    end = _OLD_HEADER.size + count * _OLD_ENTRY.size
    if end > len(data):
        raise _Malformed(f"{count} entries in {len(data)} bytes")
    for start in (end + 7 & ~7, end + 3 & ~3):  # a 64-bit hwcap has 4-byte alignment on i386
        if data.startswith(_MAGIC_NEW, start):
            return _parse_new(data, start)
    strings = _Strings(data, end)
    fields = _OLD_ENTRY.iter_unpack(data[_OLD_HEADER.size : end])
    entries = [Entry(flags, strings.at(name), strings.at(path)) for flags, name, path in fields]
    return Cache(entries, [], [])


def _parse_new(data: bytes, start: int) -> Cache:
    """The new format at `start`. Offsets of strings count from there, the extension's from the file's beginning."""
    _, count, string_size, endian, extension = _NEW_HEADER.unpack_from(data, start)
    if endian not in (_ENDIAN_UNKNOWN, _ENDIAN_LITTLE):
        raise _Malformed(f"byte order {endian}")
    first = start + _NEW_HEADER.size
    end = first + count * _NEW_ENTRY.size
    if end + string_size > len(data):
        raise _Malformed(f"{count} entries and {string_size} bytes of names in {len(data)} bytes")
    strings = _Strings(data, start)
    entries = [
        Entry(flags, strings.at(name), strings.at(path), osversion, hwcap)
        for flags, name, path, osversion, hwcap in _NEW_ENTRY.iter_unpack(data[first:end])
    ]
    hwcaps, sections = _parse_extension(data, extension, strings) if extension else ([], [])
    return Cache(entries, hwcaps, sections, endian)


def _parse_extension(data: bytes, offset: int, strings: _Strings) -> tuple[list[bytes], list[tuple[int, int, bytes]]]:
    magic, count = _EXTENSION.unpack_from(data, offset)
    if offset % 4 or magic != _EXTENSION_MAGIC or count > _MAX_SECTIONS:
        raise _Malformed(f"no extension at byte {offset}")
    hwcaps: list[bytes] = []
    sections = []
    for number in range(count):
        tag, flags, start, size = _SECTION.unpack_from(data, offset + _EXTENSION.size + number * _SECTION.size)
        if start + size > len(data):
            raise _Malformed(f"extension section {tag} of {size} bytes at byte {start} of {len(data)}")
        content = data[start : start + size]
        if tag == _TAG_GLIBC_HWCAPS:
            hwcaps = [strings.at(word) for (word,) in _WORD.iter_unpack(content)]
        else:
            strings.count(size)
            sections.append((tag, flags, content))
    return hwcaps, sections


class _Strings:
    """NUL-terminated strings by their offset from `base`. Their total is bounded, even when they overlap."""

    __slots__ = ("_base", "_data", "_left")

    def __init__(self, data: bytes, base: int) -> None:
        self._data = data
        self._base = base
        self._left = MAX_CACHE

    def at(self, offset: int) -> bytes:
        start = self._base + offset
        end = self._data.find(b"\0", start, start + _MAX_STRING)
        if end < 0:
            raise _Malformed(f"no name at byte {start}")
        self.count(end - start)
        return self._data[start:end]

    def count(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise _Malformed(f"names of more than {MAX_CACHE} bytes")


def serialize(cache: Cache) -> bytes:
    """`cache` in the new format and in ldconfig's order: header, entries, strings, extension."""
    table = _Table(_NEW_HEADER.size + len(cache.entries) * _NEW_ENTRY.size)
    entries = b"".join(
        [
            _NEW_ENTRY.pack(entry.flags, table.add(entry.name), table.add(entry.path), entry.osversion, entry.hwcap)
            for entry in cache.entries
        ]
    )
    hwcaps = b"".join([_WORD.pack(table.add(name)) for name in cache.hwcaps])
    strings = b"".join(table.parts)
    end = table.end + 3 & ~3
    extension = _serialize_extension(cache.sections, hwcaps, end)
    header = _NEW_HEADER.pack(_MAGIC_NEW, len(cache.entries), len(strings), cache.endian, end if extension else 0)
    return b"".join((header, entries, strings, b"\0" * (end - table.end), extension))


def _serialize_extension(sections: list[tuple[int, int, bytes]], hwcaps: bytes, offset: int) -> bytes:
    if not sections and not hwcaps:
        return b""
    every = [*sections, (_TAG_GLIBC_HWCAPS, 0, hwcaps)] if hwcaps else sections
    directory = [_EXTENSION.pack(_EXTENSION_MAGIC, len(every))]
    contents = []
    place = offset + _EXTENSION.size + len(every) * _SECTION.size
    for tag, flags, content in sorted(every, key=_by_tag):
        padded = content + b"\0" * (-len(content) % 4)  # the loader reads hwcaps as aligned words
        directory.append(_SECTION.pack(tag, flags, place, len(content)))
        contents.append(padded)
        place += len(padded)
    return b"".join(directory + contents)


def _by_tag(section: tuple[int, int, bytes]) -> int:
    return section[0]


class _Table:
    """The string table during serialization. Offsets count from the cache's beginning."""

    __slots__ = ("_offsets", "end", "parts")

    def __init__(self, start: int) -> None:
        self.end = start
        self.parts: list[bytes] = []
        self._offsets: dict[bytes, int] = {}

    def add(self, text: bytes) -> int:
        offset = self._offsets.get(text)
        if offset is None:
            offset = self._offsets[text] = self.end
            self.parts.append(text + b"\0")
            self.end += len(text) + 1
        return offset
