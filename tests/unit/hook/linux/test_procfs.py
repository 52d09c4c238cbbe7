"""Whether a process lives, by made-up lines of /proc/<pid>/stat."""

from __future__ import annotations

from pathlib import Path

import pytest

from vgpu.hook.linux import procfs


def stat(path: Path, state: str, threads: int) -> str:
    (path / "7").mkdir()
    between = " ".join(["0"] * 15)
    (path / "7/stat").write_text(f"7 (a) Z b) {state} 1 {between} {threads} 0 4321 0\n")
    return str(path)


@pytest.mark.parametrize(
    ("state", "threads", "started"),
    [("S", 1, 4321), ("R", 9, 4321), ("Z", 1, 0), ("X", 0, 0), ("Z", 2, 4321)],
    ids=["sleeps", "runs", "zombie", "dead", "first thread has ended"],
)
def test_start_time(tmp_path: Path, state: str, threads: int, started: int) -> None:
    proc = stat(tmp_path, state, threads)
    assert procfs.start_time(7, proc) == started
    assert procfs.lives(7, 4321, proc) == bool(started)
    assert procfs.start_time(8, proc) == 0
