"""Real programs: their output, also where it is no text, a missing one, and one that does not end."""

from __future__ import annotations

import pytest

from vgpu.config.errors import VgpuError
from vgpu.node.runtimes import programs


def test_its_output() -> None:
    done = programs.run(["sh", "-c", r"printf 'a\377b\n'; cat; echo no >&2; exit 3"])
    assert (done.returncode, done.stdout, done.stderr) == (3, "a\ufffdb\n", "no\n")


def test_what_does_not_run_is_one_line() -> None:
    with pytest.raises(VgpuError, match=r"^no-such-program: expected a program, found No such file or directory$"):
        programs.run(["no-such-program"])
    with pytest.raises(VgpuError, match=r"^sleep 60: expected an end within 0 s, found none$"):
        programs.run(["sleep", "60"], timeout=0.1)
