"""A file of the operator is replaced as a whole, and what killed writers left beside it goes."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from vgpu.node.service import operator_files

if TYPE_CHECKING:
    from pathlib import Path

GONE = 1 << 30  #: a pid that no process has: Linux gives none above 1 << 22


@pytest.mark.parametrize("exists", [True, False])
def test_what_a_killed_writer_left_goes_at_the_next_write(tmp_path: Path, exists: bool) -> None:
    file = tmp_path / "config.toml"
    if exists:
        file.write_text("one\n")
    (tmp_path / f".config.toml.{GONE}.tmp").write_text("half")
    operator_files.replace(str(file), b"two\n")
    assert os.listdir(tmp_path) == ["config.toml"]
    assert file.read_text() == "two\n"


def test_what_belongs_to_others_stays(tmp_path: Path) -> None:
    """A writer that lives, another file's, a directory, and names that only look alike."""
    stays = [f".a.{os.getpid()}.tmp", f".b.{GONE}.tmp", f"a.{GONE}.tmp", f".a.{GONE}.tmp2", ".a.x.tmp"]
    for name in stays:
        (tmp_path / name).write_text("")
    stays.append(f".a.{GONE}.tmp")
    (tmp_path / stays[-1]).mkdir()
    operator_files.remove_leftovers(str(tmp_path / "a"))
    assert sorted(os.listdir(tmp_path)) == sorted(stays)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644])
def test_mode_and_owner_stay(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "config.toml"
    file.write_text("one\n")
    file.chmod(mode)
    owner = (12, 34) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    os.chown(file, *owner)
    operator_files.replace(str(file), b"two\n")
    status = file.stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid) == (mode, *owner)


def test_a_new_file_gets_the_mode_asked_for(tmp_path: Path) -> None:
    operator_files.replace(str(tmp_path / "a"), b"one\n", 0o600)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600
