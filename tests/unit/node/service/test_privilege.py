"""The line of an error that only root does not meet."""

from __future__ import annotations

import os

import pytest

from vgpu.config.errors import VgpuError
from vgpu.node.service import privilege


def caused() -> VgpuError:
    try:
        try:
            raise PermissionError(13, "Permission denied", "/x")
        except OSError as error:
            raise VgpuError("/x: cannot be written", found=error.strerror, do="repair it") from None
    except VgpuError as error:
        return error


@pytest.mark.parametrize(
    ("error", "as_root", "else_"),
    [
        (PermissionError(13, "Permission denied", "/x"), "/x: Permission denied", "/x: Permission denied; run as root"),
        (PermissionError(1, "Operation not permitted"), "p: Operation not permitted",
         "p: Operation not permitted; run as root"),
        (FileNotFoundError(2, "No such file", "/x"), "/x: No such file", "/x: No such file"),
        (VgpuError("a", do="run as root"), "a; run as root", "a; run as root"),
        (VgpuError("a", expected="b"), "a: expected b", "a: expected b"),
        (caused(), "/x: cannot be written: found Permission denied; repair it",
         "/x: cannot be written: found Permission denied; run as root"),
    ],
)  # fmt: skip
def test_line(monkeypatch: pytest.MonkeyPatch, error: BaseException, as_root: str, else_: str) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert privilege.line(error, "p") == as_root
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert privilege.line(error, "p") == else_
