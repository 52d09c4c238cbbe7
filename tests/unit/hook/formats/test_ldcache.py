"""vgpu.hook.formats.ldcache: formats, order, merge, damage. The real loader: tests/system/test_loader_cache.py."""

from __future__ import annotations

import random
import struct

import pytest
from loader_caches import HWCAP_V2, HWCAP_V3, X86_64, sample

from vgpu.config.errors import VgpuError
from vgpu.hook.formats import ldcache
from vgpu.hook.formats.elf import EM_386, EM_AARCH64
from vgpu.hook.formats.ldcache import Addition, Cache


def rows(cache: Cache) -> list[tuple[int, bytes, bytes, int, int]]:
    return [(entry.flags, entry.name, entry.path, entry.osversion, entry.hwcap) for entry in cache.entries]


def as_old(cache: Cache, new: bytes = b"") -> bytes:
    """The old format; with `new` the compat format, whose old half contains no names."""
    count = len(cache.entries)
    strings, entries = b"", b""
    for entry in cache.entries:
        name, path = len(strings), len(strings) + len(entry.name) + 1
        strings += entry.name + b"\0" + entry.path + b"\0"
        entries += struct.pack("<iII", entry.flags, name, path)
    head = b"ld.so-1.7.0\0" + struct.pack("<I", count) + entries
    return head + (b"\0" * (-len(head) % 8) + new if new else strings)


def libcmp(p: bytes, q: bytes) -> int:
    """The order that dl-cache.c documents: by characters, runs of digits as numbers, a digit after any other."""
    i, j = 0, 0
    while i < len(p):
        digit, other = p[i : i + 1].isdigit(), q[j : j + 1].isdigit()
        if digit and other:
            ends = []
            for text, at in ((p, i), (q, j)):
                end = at
                while text[end : end + 1].isdigit():
                    end += 1
                ends.append(end)
            left, right = int(p[i : ends[0]]), int(q[j : ends[1]])
            if left != right:
                return left - right
            i, j = ends
        elif digit or other:
            return 1 if digit else -1
        elif p[i : i + 1] != q[j : j + 1]:
            return p[i] - (q[j] if j < len(q) else 0)
        else:
            i, j = i + 1, j + 1
    return -1 if j < len(q) else 0


def test_the_key_orders_as_the_loader_compares() -> None:
    generator = random.Random(7)
    names = ["".join(generator.choices("ab.-+_019", k=generator.randrange(12))).encode() for _ in range(300)]
    for left in names:
        for right in generator.sample(names, 40):
            key, other = ldcache.order_key(left), ldcache.order_key(right)
            assert (key > other) - (key < other) == (libcmp(left, right) > 0) - (libcmp(left, right) < 0), (left, right)


def test_numbers_beyond_an_int_compare_as_the_overflown_int() -> None:
    key = ldcache.order_key
    assert key(b"lib.so.4294967297") == key(b"lib.so.1")
    assert key(b"lib.so.2147483648") < key(b"lib.so.0")


def test_serialized_and_parsed_again_nothing_changes() -> None:
    cache = sample()
    again = ldcache.parse(ldcache.serialize(cache))
    assert rows(again) == rows(cache)
    assert (again.hwcaps, again.sections) == (cache.hwcaps, cache.sections)


def test_an_empty_merge_keeps_order_and_extension() -> None:
    data = ldcache.serialize(sample())
    assert ldcache.merge(data, []) == data


def test_additions_stand_where_glibc_looks_for_them() -> None:
    additions = [
        Addition("libcuda.so.1", "/usr/lib/libcuda.so.1"),
        Addition("libfoo.so.9", "/usr/lib32/libfoo.so.9", 32, EM_386),
    ]
    merged = ldcache.parse(ldcache.merge(ldcache.serialize(sample()), additions))
    assert [(entry.name, entry.flags) for entry in merged.entries] == [
        (b"libz.so.1", X86_64), (b"libz.so.1", X86_64), (b"libz.so.1", X86_64), (b"libz.so.1", 3),
        (b"libfoo.so.10", X86_64), (b"libfoo.so.9", X86_64), (b"libfoo.so.9", 3),
        (b"libcuda.so.1", X86_64), (b"libc.so.6", X86_64),
    ]  # fmt: skip
    assert merged.hwcaps == [b"x86-64-v2", b"x86-64-v3"]
    assert [entry.hwcap for entry in merged.entries[:3]] == [HWCAP_V2, HWCAP_V3, 0]


def test_an_addition_replaces_its_name_and_abi_only() -> None:
    merged = ldcache.merge(ldcache.serialize(sample()), [Addition("libz.so.1", "/driver/libz.so.1")])
    found = [entry for entry in ldcache.parse(merged).entries if entry.name == b"libz.so.1"]
    assert [(entry.flags, entry.path) for entry in found] == [
        (X86_64, b"/driver/libz.so.1"), (3, b"/usr/lib32/libz.so.1"),
    ]  # fmt: skip


def test_dropped_names_vanish_for_every_abi() -> None:
    merged = ldcache.parse(ldcache.merge(ldcache.serialize(sample()), [], ("libz.so.1",)))
    assert [entry.name for entry in merged.entries] == [b"libfoo.so.10", b"libfoo.so.9", b"libc.so.6"]


def test_the_first_of_two_additions_alike_is_taken() -> None:
    data = ldcache.merge(None, [Addition("libcuda.so.1", "/a/libcuda.so.1"), Addition("libcuda.so.1", "/b")])
    assert [entry.path for entry in ldcache.parse(data).entries] == [b"/a/libcuda.so.1"]


def test_without_a_cache_one_is_made() -> None:
    data = ldcache.merge(None, [Addition("libcuda.so.1", "/usr/lib/libcuda.so.1", 64, EM_AARCH64)])
    entry = ldcache.parse(data).entries[0]
    assert (entry.flags, entry.name, entry.path) == (0x0A03, b"libcuda.so.1", b"/usr/lib/libcuda.so.1")


def test_old_and_compat_caches_become_new_ones() -> None:
    cache = sample()
    cache.entries = cache.entries[2:]
    new = ldcache.serialize(cache)
    assert rows(ldcache.parse(as_old(cache))) == rows(cache)
    # the extension's place counts from the file's beginning, the names' from the new half's
    shift = len(as_old(cache, b"x")) - 1
    body = bytearray(new)
    struct.pack_into("<I", body, 32, struct.unpack_from("<I", new, 32)[0] + shift)
    extension = struct.unpack_from("<I", new, 32)[0]
    for section in range(struct.unpack_from("<I", new, extension + 4)[0]):
        at = extension + 8 + 16 * section + 8
        struct.pack_into("<I", body, at, struct.unpack_from("<I", new, at)[0] + shift)
    assert ldcache.merge(as_old(cache, bytes(body)), []) == new


def test_an_unknown_machine_is_refused() -> None:
    with pytest.raises(VgpuError, match="machine that ldconfig knows, found 64 bit, ELF machine 243"):
        ldcache.merge(None, [Addition("libcuda.so.1", "/libcuda.so.1", 64, 243)])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"garbage",
        b"ld.so-1.7.0",
        b"ld.so-1.7.0\0\xff\xff\xff\xff",
        b"glibc-ld.so.cache1.1",
        b"glibc-ld.so.cache1.1" + b"\xff" * 28,
        b"glibc-ld.so.cache1.1" + struct.pack("<IIB3xI12x", 0, 0, 3, 0),
        b"glibc-ld.so.cache1.1" + bytes(28) + bytes(ldcache.MAX_CACHE),
    ],
    ids=["empty", "garbage", "old cut", "old count", "new cut", "new count", "big endian", "oversized"],
)
def test_what_is_no_cache_is_refused(data: bytes) -> None:
    with pytest.raises(VgpuError, match=r"^/x: expected a loader cache, found .*ldconfig"):
        ldcache.merge(data, [], source="/x")


def test_names_that_overlap_do_not_multiply_the_work() -> None:
    """100000 entries share one long name and differ by one byte each: 4 KiB each, 400 MiB in all."""
    count, text = 100_000, b"x" * 4000 + b"\0"
    base = 48 + 24 * count
    entries = b"".join(struct.pack("<iIIIQ", X86_64, base + number % 100, base, 0, 0) for number in range(count))
    data = b"glibc-ld.so.cache1.1" + struct.pack("<IIB3xI12x", count, len(text), 2, 0) + entries + text
    with pytest.raises(VgpuError, match="names of more than"):
        ldcache.parse(data)


def test_damage_never_raises_anything_else() -> None:
    generator = random.Random(20240602)
    whole = ldcache.serialize(sample())
    additions = [Addition("libcuda.so.1", "/usr/lib/libcuda.so.1")]
    refused = 0
    for number in range(2000):
        data = bytearray(whole if number % 2 else as_old(sample(), whole))
        for _ in range(generator.randrange(1, 6)):
            data[generator.randrange(len(data))] = generator.choice((0, 1, 0x7F, 0xFF, generator.randrange(256)))
        del data[generator.randrange(len(data)) if generator.random() < 0.3 else len(data) :]
        try:
            merged = ldcache.merge(bytes(data), additions)
        except VgpuError as error:
            refused += 1
            assert "\n" not in str(error)
        else:
            assert b"libcuda.so.1" in [entry.name for entry in ldcache.parse(merged).entries]
    assert 0 < refused < 2000
