"""A runtime's program that is missing or hangs: one line."""

from __future__ import annotations

import errno
import os
import subprocess

import pytest
from pytest_subprocess import FakeProcess

from vgpu.config.errors import VgpuError
from vgpu.node.runtimes import base_spec, containerd, programs


def raising(error: BaseException) -> object:
    def callback(_: object) -> None:
        raise error

    return callback


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)), "expected a program, found No such file"),
        (PermissionError(errno.EACCES, os.strerror(errno.EACCES)), "expected a program, found Permission denied"),
        (subprocess.TimeoutExpired(["ctr"], 60), "expected an end within 60 s, found none"),
    ],
)
def test_what_does_not_run_is_one_line(fp: FakeProcess, error: BaseException, line: str) -> None:
    fp.keep_last_process(True)
    fp.register(["ctr", "oci", "spec"], callback=raising(error))
    fp.register(["containerd", "--version"], callback=raising(error))
    with pytest.raises(VgpuError, match=f"^ctr oci spec: {line}"):
        programs.run(["ctr", "oci", "spec"])
    with pytest.raises(VgpuError, match=r"^ctr oci spec: expected "):
        base_spec.default()
    if isinstance(error, FileNotFoundError):
        assert containerd.daemon_major() is None, "a node without containerd"
    else:
        with pytest.raises(VgpuError, match=f"^containerd --version: {line}"):
            containerd.daemon_major()
