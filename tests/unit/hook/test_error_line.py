"""The line for an exception that no step expected: one line, with what, expected, found and what to do."""

from __future__ import annotations

import errno
import os

import pytest

from vgpu.config.errors import VgpuError
from vgpu.hook import error_line

BY_CALL = OSError(errno.ELOOP, f'openat2(5, "etc/x"): {os.strerror(errno.ELOOP)}')


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (VgpuError("x", expected="y", found="z"), "s: x: expected y, found z"),
        (
            OSError(errno.ELOOP, os.strerror(errno.ELOOP), "/run/vgpu/ledger.lock"),
            "s: /run/vgpu/ledger.lock: expected no error, found a symbolic link, which vgpu follows nowhere in its own "
            "directories (ELOOP); find out who made it, and remove it",
        ),
        (
            BY_CALL,
            's: openat2(5, "etc/x"): expected no error, found a symbolic link, which vgpu follows nowhere in its own '
            "directories (ELOOP); find out who made it, and remove it",
        ),
        (
            OSError(errno.EFBIG, os.strerror(errno.EFBIG)),
            "s: a system call: expected no error, found the limit of this process on the size of files (RLIMIT_FSIZE) "
            "(EFBIG); raise it in the service that runs the container runtime (LimitFSIZE=)",
        ),
        (
            OSError(errno.EXDEV, os.strerror(errno.EXDEV), "a\nb", None, "c"),
            f"s: a\\x0ab -> c: expected no error, found {os.strerror(errno.EXDEV)} (EXDEV); {error_line._MORE}",
        ),
        (KeyboardInterrupt(), "s: vgpu-hook: expected to finish, found the signal SIGINT; start the container again"),
        (
            ModuleNotFoundError("No module named '_ctypes'", name="_ctypes"),
            "s: _ctypes: expected it to be installed, found No module named '_ctypes'; install vgpu again, and python3 "
            "with its whole standard library",
        ),
        (
            ValueError("a\nb"),
            f"s: vgpu-hook: expected the step s to end, found ValueError: a\\x0ab; {error_line._MORE}",
        ),
        (OSError("odd"), f"s: vgpu-hook: expected the step s to end, found OSError: odd; {error_line._MORE}"),
    ],
)
def test_line(error: BaseException, line: str) -> None:
    assert error_line.line("s", error) == line


@pytest.mark.parametrize("number", sorted(errno.errorcode))
def test_each_error_of_the_kernel_is_one_line_with_its_name(number: int) -> None:
    line = error_line.line("step", OSError(number, os.strerror(number), "/x"))
    assert line.startswith("step: /x: expected no error, found ")
    assert f"({errno.errorcode[number]}); " in line
    assert line.isprintable()


def test_a_bug_names_the_function() -> None:
    def broken() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError) as raised:
        broken()
    assert "found KeyError: 'x' in broken, line " in error_line.line("step", raised.value)
