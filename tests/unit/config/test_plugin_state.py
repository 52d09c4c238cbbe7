"""The device plugin's state: as it was written, too old, of another boot, and when it cannot be looked at."""

from __future__ import annotations

from pathlib import Path

import pytest

from vgpu.config import paths, plugin_state, records
from vgpu.config.errors import NotKnown

STATE = {"alive": True, "ready": False, "health_known": True, "warnings": ["no room"]}


def test_a_state_counts_for_a_minute_in_its_boot(tmp_path: Path) -> None:
    assert plugin_state.read(str(tmp_path), "boot", 5.0) == {}
    plugin_state.write(str(tmp_path), STATE, "boot", 5.0)
    assert plugin_state.read(str(tmp_path), "boot", 65.0) == STATE
    assert plugin_state.read(str(tmp_path), "boot", 65.1) == {"alive": False, "ready": False}
    assert plugin_state.read(str(tmp_path), "another", 5.0) == {}


def test_a_damaged_state_is_none_and_one_that_cannot_be_read_is_not_known(tmp_path: Path, monkeypatch) -> None:
    Path(paths.plugin_state(str(tmp_path))).write_text("{")
    assert plugin_state.read(str(tmp_path), "boot", 5.0) == {}

    def denied(*_: object) -> bytes:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(records, "read_bounded", denied)
    with pytest.raises(NotKnown, match="Too many open files"):
        plugin_state.read(str(tmp_path), "boot", 5.0)
