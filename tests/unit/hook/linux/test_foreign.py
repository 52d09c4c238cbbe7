"""The hook's own C types and functions, against those of ctypes."""

from __future__ import annotations

import ctypes
import errno
import os

import pytest

from vgpu.hook.linux import bpf, foreign, syscalls

TYPES = ["c_char", "c_char_p", "c_int", "c_long", "c_ulong", "c_uint8", "c_uint32", "c_uint64"]


@pytest.mark.parametrize("name", TYPES)
def test_a_type_is_that_of_ctypes(name: str) -> None:
    ours, theirs = getattr(foreign, name), getattr(ctypes, name)
    assert foreign.sizeof(ours) == ctypes.sizeof(theirs)
    if name not in ("c_char", "c_char_p"):
        assert ours(-1).value == theirs(-1).value


@pytest.mark.parametrize(
    ("structure", "size"),
    [
        (syscalls.open_how, 24),
        (syscalls.mount_attr, 32),
        (syscalls.statx_buffer, 256),
        (bpf.bpf_attr, 256),
        (bpf.bpf_prog_info, 80),
    ],
)
def test_a_structure_has_the_size_of_the_kernels(structure: type, size: int) -> None:
    assert foreign.sizeof(structure) == size


def test_a_function_takes_text_and_keeps_errno() -> None:
    access = foreign.function("access", foreign.c_char_p, foreign.c_int)
    assert access(b"/", os.F_OK) == 0
    assert access(b"/nothing/here", os.F_OK) == -1
    assert foreign.get_errno() == errno.ENOENT


def test_a_function_that_the_library_lacks_is_an_error() -> None:
    with pytest.raises(OSError, match="vgpu_no_such_function"):
        foreign.function("vgpu_no_such_function")


def test_a_buffer_holds_its_bytes() -> None:
    content = bytes(range(256))
    assert bytes(foreign.buffer(content)) == content
