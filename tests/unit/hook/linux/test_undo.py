"""The journal by which another process undoes what a killed one has changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vgpu.hook.linux import undo
from vgpu.hook.linux.rootfs import Rootfs
from vgpu.hook.linux.undo import NOTHING, Old


def journal_of(*steps: tuple[str, str, str, Old]) -> bytes:
    read_end, write_end = os.pipe2(os.O_NONBLOCK)
    for step in steps:
        undo.write(write_end, *step)
    os.close(write_end)
    try:
        return os.read(read_end, 1 << 16)
    finally:
        os.close(read_end)


def test_steps_come_back_without_those_that_failed() -> None:
    link, file = Old(b"to \xff"), Old(b"left out", (1, 2, 0o640, 3, 4))
    found = undo.read(
        journal_of(
            ("rmdir", "", "opt", NOTHING),
            ("unlink", "/opt", "new", NOTHING),
            (undo.FAILED, "", "", NOTHING),
            ("symlink", "/a b\n", "link", link),
            ("restore", "/etc", "file", file),
        )
    )
    assert [step[:3] for step in found] == [
        ("rmdir", "", "opt"), ("symlink", "/a b\n", "link"), ("restore", "/etc", "file"),
    ]  # fmt: skip
    assert [(old.content, old.like) for *_, old in found] == [(b"", ()), (b"to \xff", ()), (b"", (1, 2, 0o640, 3, 4))]


def test_a_record_that_was_cut_off_is_left_out() -> None:
    whole = journal_of(("rmdir", "", "a", NOTHING), ("rmdir", "", "b", NOTHING))
    assert [len(undo.read(whole[:end])) for end in (0, 5, len(whole) - 1, len(whole))] == [0, 0, 1, 2]


def test_a_full_journal_keeps_nobody_waiting() -> None:
    read_end, write_end = os.pipe2(os.O_NONBLOCK)
    for _ in range(2000):
        undo.write(write_end, "symlink", "/directory", "name", Old(b"x" * 100))
    os.close(read_end)
    undo.write(write_end, "rmdir", "", "name", NOTHING)
    os.close(write_end)


@pytest.mark.parametrize("killed_before", ["mkdir", "symlink", "rename", "nothing"])
def test_recovery_undoes_what_was_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_before: str) -> None:
    tree = tmp_path / "tree"
    (tree / "etc").mkdir(parents=True)
    (tree / "etc/cache").write_bytes(b"old")
    (tree / "etc/cache").chmod(0o600)
    (tree / "etc/link").symlink_to("was")

    class Killed(BaseException):
        pass

    def killed(*_: object, **__: object) -> None:
        raise Killed

    read_end, write_end = os.pipe2(os.O_NONBLOCK)
    root = Rootfs(os.open(tree, os.O_PATH | os.O_DIRECTORY))
    root.journal = write_end
    with monkeypatch.context() as patched:
        if killed_before != "nothing":
            patched.setattr(os, killed_before, killed)
        write = undo.write
        patched.setattr(
            undo, "write", lambda *step: step[1] == undo.FAILED or write(*step)
        )  # a dead process writes none
        try:
            os.close(root.directory("/opt/new"))
            root.symlink("/etc/new", "is")
            root.symlink("/etc/link", "is")
            root.replace("/etc/cache", b"new", b"old")
        except Killed:
            pass
    os.close(write_end)
    for _, parent, _, _ in root.undo:
        os.close(parent)
    root.close()
    again = Rootfs(os.open(tree, os.O_PATH | os.O_DIRECTORY))
    assert again.recover(os.read(read_end, 1 << 16), os.getpid(), {"cache": b"old"}) == []
    again.close()
    os.close(read_end)
    assert sorted(str(path.relative_to(tree)) for path in tree.rglob("*")) == ["etc", "etc/cache", "etc/link"]
    assert (tree / "etc/cache").read_bytes() == b"old"
    assert (tree / "etc/cache").stat().st_mode & 0o777 == 0o600
    assert os.readlink(tree / "etc/link") == "was"
