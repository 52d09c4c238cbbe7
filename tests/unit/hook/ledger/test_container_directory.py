"""The directory of a container's records appears, and goes, as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from vgpu.config import paths
from vgpu.config.errors import VgpuError
from vgpu.hook.ledger import container_directory


def names(run: Path) -> list[str]:
    return sorted(str(path.relative_to(run)) for path in run.rglob("*"))


def test_it_has_its_name_when_everything_is_in_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    directory = Path(container_directory.prepare(str(run)))
    (directory / "claim.json").write_text("{}")
    assert not paths.is_container_id(directory.name)
    container_directory.publish(str(run), "c1")
    assert names(run) == ["containers", "containers/c1", "containers/c1/claim.json"]
    assert container_directory.remove(str(run), "c1")
    assert not container_directory.remove(str(run), "c1")
    assert names(run) == ["containers"]


def test_what_a_killed_process_left_is_not_taken_for_the_next_container(tmp_path: Path) -> None:
    run, state = tmp_path / "run", tmp_path / "state"
    left = Path(container_directory.prepare(str(run)))
    (left / "limits").write_text("of another container")
    assert list(Path(container_directory.prepare(str(run))).iterdir()) == []
    (state / "grants").mkdir(parents=True)
    for directory in (run, state / "grants"):
        Path(paths.ledger_temporary(str(directory))).write_text("half")
    container_directory.clear(str(run), str(state))
    assert names(run) == ["containers"]
    assert names(state) == ["grants"]


def test_a_directory_that_cannot_be_removed_is_named(tmp_path: Path) -> None:
    (tmp_path / "containers/c1/below").mkdir(parents=True)
    with pytest.raises(VgpuError, match="a claim to remove"):
        container_directory.remove(str(tmp_path), "c1")
