"""The presence file: made once, complete and readable by all. It is never replaced, whatever is at its path."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vgpu.config import core_schedule, paths
from vgpu.config.errors import VgpuError
from vgpu.hook.ledger import presence

SOUND = bytes(core_schedule.PRESENCE_SIZE)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return Path(paths.presence(str(tmp_path)))


def test_it_is_made_once(path: Path) -> None:
    assert presence.ensure(str(path.parent))
    before = path.stat()
    assert path.read_bytes() == SOUND
    assert before.st_mode & 0o7777 == 0o444
    assert not presence.ensure(str(path.parent))
    assert path.stat() == before
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("content", [b"", SOUND[1:], SOUND + b"\0", b"\1" + SOUND[1:], b"x" * 10_000])
def test_what_is_wrong_with_it_is_put_right_in_place(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o644)
    inode = path.stat().st_ino
    assert not presence.ensure(str(path.parent))
    assert path.read_bytes() == SOUND
    assert (path.stat().st_ino, path.stat().st_mode & 0o7777) == (inode, 0o444)


def test_its_mode_alone_is_put_right_too(path: Path) -> None:
    path.write_bytes(SOUND)
    path.chmod(0o666)
    assert not presence.ensure(str(path.parent))
    assert path.stat().st_mode & 0o7777 == 0o444


def test_what_is_no_file_is_refused_and_left_alone(path: Path) -> None:
    target = path.parent / "target"
    target.write_bytes(b"x")
    path.symlink_to(target)
    with pytest.raises(VgpuError, match="expected a regular file, found l"):
        presence.ensure(str(path.parent))
    assert (path.is_symlink(), target.read_bytes()) == (True, b"x")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(VgpuError, match="remove it while no container"):
        presence.ensure(str(path.parent))
