"""The presence file: made once, complete and readable by all. It is never replaced, whatever is at its path."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from pathlib import Path

import pytest

from vgpu.config import core_schedule, paths
from vgpu.config.errors import VgpuError
from vgpu.hook.ledger import presence

SOUND = bytes(core_schedule.PRESENCE_SIZE)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return Path(paths.presence(str(tmp_path), "0a" * 16))


def test_it_is_made_once(path: Path) -> None:
    assert presence.ensure(str(path.parent), str(path))
    assert path.read_bytes() == SOUND
    before = path.stat()  # behind the read, which changes when the file was last read
    assert before.st_mode & 0o7777 == 0o444
    assert not presence.ensure(str(path.parent), str(path))
    assert path.stat() == before
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("content", [b"", SOUND[1:], SOUND + b"\0", b"x" * 10_000])
def test_one_of_another_size_gets_its_size_and_stays_the_same_file(path: Path, content: bytes) -> None:
    """The containers that run have it mounted, and would not see the others' locks on a new one."""
    path.write_bytes(content)
    inode = path.stat().st_ino
    assert presence.ensure(str(path.parent), str(path)) == presence.RESIZED
    assert (path.stat().st_ino, path.stat().st_size) == (inode, len(SOUND))
    assert path.stat().st_mode & 0o7777 == 0o444
    assert not presence.ensure(str(path.parent), str(path))


def test_a_lease_on_one_of_another_size_delays_nothing_and_refuses_no_start(path: Path) -> None:
    path.write_bytes(b"")
    holder = os.open(path, os.O_RDONLY)
    fcntl.fcntl(holder, fcntl.F_SETSIG, signal.SIGURG)  # which is ignored; the kernel's own signal would end the test
    fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    before = time.monotonic()
    assert presence.ensure(str(path.parent), str(path)) == presence.LEASED
    assert time.monotonic() - before < 30, "the kernel would wait for a lease for 45 s"
    os.close(holder)
    assert presence.ensure(str(path.parent), str(path)) == presence.RESIZED


@pytest.mark.parametrize("mode", [0o444, 0o600, 0o666])
def test_it_is_never_opened(path: Path, mode: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant may hold a lease on it: opening it for reading or writing would wait or fail."""
    path.write_bytes(b"\1" + SOUND[1:])
    path.chmod(mode)
    inode, changed = path.stat().st_ino, path.stat().st_mtime_ns
    seen: list[int] = []
    really_open = os.open

    def spy(name: str, flags: int, *rest: int) -> int:
        seen.append(flags)
        return really_open(name, flags, *rest)

    monkeypatch.setattr(os, "open", spy)
    assert not presence.ensure(str(path.parent), str(path))
    assert all(flags & os.O_PATH for flags in seen), seen
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (inode, changed), "its content does not matter"
    assert path.stat().st_mode & 0o7777 == 0o444


def test_what_is_no_file_is_refused_and_left_alone(path: Path) -> None:
    target = path.parent / "target"
    target.write_bytes(b"x")
    path.symlink_to(target)
    with pytest.raises(VgpuError, match="expected a regular file, found l"):
        presence.ensure(str(path.parent), str(path))
    assert (path.is_symlink(), target.read_bytes()) == (True, b"x")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(VgpuError, match="remove it while no container"):
        presence.ensure(str(path.parent), str(path))
