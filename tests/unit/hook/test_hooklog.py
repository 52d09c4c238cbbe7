"""The hook's own log: complete lines, a bounded size, and no failure of the hook by it."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from vgpu.hook import hooklog


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_lines_are_appended(tmp_path: Path) -> None:
    hooklog.write(str(tmp_path), {"n": 1, "notes": ["a\nb", "ü", "\ud800"]})
    hooklog.write(str(tmp_path), {"n": 2})
    assert [line["n"] for line in lines(tmp_path / "hook.log")] == [1, 2]
    assert stat.S_IMODE((tmp_path / "hook.log").stat().st_mode) == 0o600


def test_a_record_has_the_time_that_the_process_has_taken() -> None:
    before, after = (hooklog.record("prestart", {}, [], "")["seconds"] for _ in range(2))
    assert isinstance(before, float)
    assert isinstance(after, float)
    assert 0 < before <= after


def test_past_its_size_it_moves_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooklog, "MAX_SIZE", 200)
    for number in range(40):
        hooklog.write(str(tmp_path), {"n": number, "text": "x" * 20})
    kept = lines(tmp_path / "hook.log.1") + (lines(tmp_path / "hook.log") if (tmp_path / "hook.log").exists() else [])
    numbers = [line["n"] for line in kept]
    assert numbers == list(range(40 - len(numbers), 40))  # the latest, in order
    assert (tmp_path / "hook.log.1").stat().st_size < 200 + 60


def test_a_hook_that_comes_late_to_the_move_does_not_lose_the_old_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening and measuring, another hook has moved the file and a third begun a new one."""
    monkeypatch.setattr(hooklog, "MAX_SIZE", 100)
    log = tmp_path / "hook.log"
    log.write_text("{}\n" * 40)
    write = os.write

    def others_first(fd: int, data: bytes) -> int:
        log.rename(tmp_path / "hook.log.1")
        log.write_text('{"third": 3}\n')
        return write(fd, data)

    monkeypatch.setattr(os, "write", others_first)
    hooklog.write(str(tmp_path), {"late": 1})
    assert lines(log) == [{"third": 3}]
    assert lines(tmp_path / "hook.log.1")[-1] == {"late": 1}


@pytest.mark.parametrize("obstacle", ["missing", "directory", "link"])
def test_it_never_fails(tmp_path: Path, obstacle: str) -> None:
    run_dir = tmp_path / "run"
    if obstacle != "missing":
        run_dir.mkdir()
    if obstacle == "directory":
        (run_dir / "hook.log").mkdir()
    if obstacle == "link":
        (run_dir / "hook.log").symlink_to(tmp_path / "victim")
    hooklog.write(str(run_dir), {"n": 1})
    assert not (tmp_path / "victim").exists()
