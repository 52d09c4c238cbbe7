"""The directory of a run: whose it is, and what becomes of what others left."""

from __future__ import annotations

from pathlib import Path

import pytest

from vgpu.node.selftest import place
from vgpu.node.selftest.program import NotJudged


def test_each_run_has_a_directory_of_its_own_and_leaves_none(tmp_path: Path) -> None:
    paths, ended = [str(tmp_path / name) for name in "abc"], []
    with place.taken(paths, ended.append) as first, place.taken(paths, ended.append) as second:
        assert [first, second] == paths[:2]
        (tmp_path / "a/file").touch()
    assert list(tmp_path.iterdir()) == []
    assert ended == [second, first]


def test_what_a_killed_run_left_is_ended_and_removed_and_nothing_else(tmp_path: Path) -> None:
    """A directory without the lock may be anybody's."""
    for name in ("killed", "others", "began"):
        (tmp_path / name).mkdir()
    for path in ("killed/" + place.LOCK, "killed/state", "others/file"):
        (tmp_path / path).touch()
    paths, ended = [str(tmp_path / name) for name in ("others", "began", "killed", "free")], []
    with place.taken(paths, ended.append) as path:
        assert path == str(tmp_path / "began")
        assert ended == [str(tmp_path / "began"), str(tmp_path / "killed")]
    assert [path.name for path in tmp_path.rglob("*")] == ["others", "file"]


def test_without_a_place_nothing_is_judged(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(NotJudged, match="expected a directory to write in"),
        place.taken([str(tmp_path / "file/a")], lambda _path: None),
    ):
        pass
