"""Loader caches for tests."""

from __future__ import annotations

from vgpu.hook.formats.ldcache import Cache, Entry

HWCAP_V2, HWCAP_V3 = 1 << 62, 1 << 62 | 1
X86_64 = 0x0303


def sample() -> Cache:
    """A cache like ldconfig's for libz in two glibc-hwcaps directories, a 32-bit libz, and other libraries."""
    v3, v2 = b"/usr/lib/glibc-hwcaps/x86-64-v3/libz.so.1", b"/usr/lib/glibc-hwcaps/x86-64-v2/libz.so.1"
    entries = [
        Entry(X86_64, b"libz.so.1", v2, hwcap=HWCAP_V2),
        Entry(X86_64, b"libz.so.1", v3, hwcap=HWCAP_V3),
        Entry(X86_64, b"libz.so.1", b"/usr/lib/libz.so.1"),
        Entry(0x0003, b"libz.so.1", b"/usr/lib32/libz.so.1"),
        Entry(X86_64, b"libfoo.so.10", b"/usr/lib/libfoo.so.10"),
        Entry(X86_64, b"libfoo.so.9", b"/usr/lib/libfoo.so.9"),
        Entry(X86_64, b"libc.so.6", b"/usr/lib/libc.so.6"),
    ]
    return Cache(entries, [b"x86-64-v2", b"x86-64-v3"], [(0, 0, b"ldconfig 2.36")])
