"""Minimal ELF files of either word size and byte order, made without a compiler."""

from __future__ import annotations

import struct


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
