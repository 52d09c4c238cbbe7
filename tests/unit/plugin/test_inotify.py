"""inotify on a real directory."""

from __future__ import annotations

import os
import select
from pathlib import Path

import pytest
from descriptors import opened

from vgpu.plugin import inotify


def readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])


@pytest.fixture
def watch(tmp_path: Path):
    (tmp_path / "there").touch()
    fd = inotify.open_watch(str(tmp_path))
    yield fd
    os.close(fd)


@pytest.mark.parametrize(
    "happen",
    [
        lambda directory: (directory / "new").touch(),
        lambda directory: (directory / "there").unlink(),
        lambda directory: (directory / "there").rename(directory / "other"),
        lambda directory: directory.rename(directory.with_name("moved")),
    ],
)
def test_what_is_made_or_deleted_wakes(watch: int, tmp_path: Path, happen) -> None:
    assert not readable(watch)
    happen(tmp_path)
    assert readable(watch)
    inotify.drain(watch)
    assert not readable(watch)


def test_writing_and_reading_do_not(watch: int, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("x")
    assert (tmp_path / "there").read_text() == "x"
    assert not readable(watch)


def test_the_error_has_the_call_and_its_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name, reason in (("none", "No such file"), ("file", "Not a directory")):
        before = opened()
        with pytest.raises(OSError, match=rf"inotify_add_watch\('.*/{name}'\): {reason}"):
            inotify.open_watch(str(tmp_path / name))
        assert opened() <= before
