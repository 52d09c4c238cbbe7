"""Calls into the C library: types, structures and functions, as ctypes has them.

Belongs here: the few names of ctypes that the hook needs, made of `_ctypes`, which is the C half of ctypes and all that
its Python half uses. The Python half also imports `struct` and `types`, makes classes for every C type and looks up
functions of Python's own; that is one of the two most expensive imports of the hook's process. A Python whose C half
lacks one of the names gets ctypes itself. Not here: which functions are called (syscalls, bpf).
"""

from __future__ import annotations

try:
    from _ctypes import (
        FUNCFLAG_CDECL,
        FUNCFLAG_USE_ERRNO,
        Array,
        CFuncPtr,
        Structure,
        Union,
        _SimpleCData,
        addressof,
        byref,
        dlopen,
        dlsym,
        get_errno,
        sizeof,
    )
except ImportError:
    from ctypes import CDLL, Array, Structure, Union, _SimpleCData, addressof, byref, get_errno, sizeof

    HAS_C_HALF = False
else:
    HAS_C_HALF = True

__all__ = ["Structure", "Union", "addressof", "byref", "get_errno", "sizeof"]

RTLD_NOW = 2


class c_char(_SimpleCData):  # type: ignore[type-arg]
    _type_ = "c"


class c_char_p(_SimpleCData):  # type: ignore[type-arg]
    _type_ = "z"


class c_int(_SimpleCData):  # type: ignore[type-arg]
    _type_ = "i"


class c_long(_SimpleCData):  # type: ignore[type-arg]
    _type_ = "l"


class c_ulong(_SimpleCData):  # type: ignore[type-arg]
    _type_ = "L"


class c_uint8(_SimpleCData):  # type: ignore[type-arg]
    _type_ = "B"


class c_uint32(_SimpleCData):  # type: ignore[type-arg]
    _type_ = "I"


class c_uint64(_SimpleCData):  # type: ignore[type-arg]
    _type_ = "Q"


if HAS_C_HALF:

    class Function(CFuncPtr):
        """A function of C that keeps its errno for `get_errno`; it returns an int unless `restype` says otherwise."""

        _flags_ = FUNCFLAG_CDECL | FUNCFLAG_USE_ERRNO
        _restype_ = c_int

    _libc = dlopen(None, RTLD_NOW)  # type: ignore[arg-type]
else:
    _library = CDLL(None, use_errno=True)
    Function = type(_library["syscall"])  # type: ignore[misc, assignment]


def function(name: str, *argtypes: type) -> Function:
    """The function `name` of the C library; OSError when it has none."""
    found = Function(dlsym(_libc, name)) if HAS_C_HALF else _of_ctypes(name)
    if argtypes:
        found.argtypes = argtypes
    return found


def _of_ctypes(name: str) -> Function:
    try:
        return _library[name]  # type: ignore[return-value]
    except AttributeError as error:
        raise OSError(str(error)) from None


def buffer(content: bytes) -> Array[c_uint8]:
    """`content` in memory that C functions can read."""
    return (c_uint8 * len(content))(*content)
