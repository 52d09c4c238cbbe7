"""The hook's own C types and functions, against those of ctypes."""

from __future__ import annotations

import _ctypes
import ctypes
import errno
import importlib.util
import os
from types import ModuleType

import pytest

from vgpu.hook.linux import bpf, libc, syscalls

TYPES = ["c_char", "c_char_p", "c_int", "c_long", "c_ulong", "c_uint8", "c_uint32", "c_uint64"]


@pytest.mark.parametrize("name", TYPES)
def test_a_type_is_that_of_ctypes(name: str) -> None:
    ours, theirs = getattr(libc, name), getattr(ctypes, name)
    assert libc.sizeof(ours) == ctypes.sizeof(theirs)
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
    assert libc.sizeof(structure) == size


@pytest.fixture(params=["dlsym of _ctypes", "only ctypes"])
def module(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, and as it is on a Python whose C half lacks a name."""
    if request.param != "only ctypes":
        return libc
    monkeypatch.delattr(_ctypes, "dlsym")
    spec = importlib.util.spec_from_file_location("foreign_without_c_half", libc.__file__)
    assert spec and spec.loader
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    assert (made.HAS_C_HALF, libc.HAS_C_HALF) == (False, True)
    return made


def test_a_function_takes_text_and_keeps_errno(module: ModuleType) -> None:
    access = module.function("access", module.c_char_p, module.c_int)
    assert access(b"/", os.F_OK) == 0
    assert access(b"/nothing/here", os.F_OK) == -1
    assert module.get_errno() == errno.ENOENT


def test_a_function_may_return_a_long(module: ModuleType) -> None:
    syscall = module.function("syscall")
    syscall.restype = module.c_long
    assert syscall(module.c_long(-1)) == -1
    assert module.get_errno() == errno.ENOSYS


def test_a_function_that_the_library_lacks_is_an_error(module: ModuleType) -> None:
    with pytest.raises(OSError, match="vgpu_no_such_function"):
        module.function("vgpu_no_such_function")


def test_a_buffer_holds_its_bytes() -> None:
    content = bytes(range(256))
    assert bytes(libc.buffer(content)) == content
