"""The record of vgpud's last round: its file's modes, and its age."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vgpu.config import rounds
from vgpu.config.errors import VgpuError


def test_only_root_can_read_it(tmp_path: Path) -> None:
    rounds.write(str(tmp_path), {"taken": 5.0})
    assert rounds.read(str(tmp_path)) == {"version": rounds.VERSION, "taken": 5.0}
    assert os.stat(tmp_path / "metrics").st_mode & 0o777 == 0o700
    assert os.stat(tmp_path / "metrics/round.json").st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path / "metrics") == ["round.json"]
    rounds.remove(str(tmp_path))
    rounds.remove(str(tmp_path))
    with pytest.raises(VgpuError, match="start vgpud"):
        rounds.read(str(tmp_path))


@pytest.mark.root
def test_a_group_can_read_it_and_lock_the_exporters_lock(tmp_path: Path) -> None:
    """And no longer when the setting is taken back. Nobody of the group can make or replace a file."""

    def modes() -> dict[str, tuple[int, int]]:
        found = {path.name: path.stat() for path in (tmp_path / "metrics", *(tmp_path / "metrics").iterdir())}
        return {name: (status.st_gid, status.st_mode & 0o7777) for name, status in found.items()}

    rounds.write(str(tmp_path), {"taken": 5.0}, group=65532)
    expected = {"metrics": (65532, 0o750), "exporter.lock": (65532, 0o660), "round.json": (65532, 0o640)}
    assert modes() == expected
    rounds.write(str(tmp_path), {"taken": 6.0}, group=65532)
    assert modes() == expected
    rounds.write(str(tmp_path), {"taken": 7.0})
    assert modes() == {"metrics": (0, 0o700), "exporter.lock": (0, 0o600), "round.json": (0, 0o600)}


def test_another_version_is_refused(tmp_path: Path) -> None:
    rounds.write(str(tmp_path), {"version": 2})
    with pytest.raises(VgpuError, match="version 1, found 2"):
        rounds.read(str(tmp_path))


@pytest.mark.parametrize(
    ("record", "fresh"),
    [
        ({"taken": 90.0, "boot_id": "b"}, True), ({"taken": 84.9, "boot_id": "b"}, False),
        ({"taken": 101.0, "boot_id": "b"}, False), ({"taken": 99.0, "boot_id": "c"}, False),
        ({"taken": True, "boot_id": "b"}, False), ({"boot_id": "b"}, False),
    ],
)  # fmt: skip
def test_a_record_of_another_boot_or_of_long_ago_is_not_fresh(record: dict[str, object], fresh: bool) -> None:
    assert rounds.is_fresh(record, "b", 100.0) is fresh
