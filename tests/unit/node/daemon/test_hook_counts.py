"""What hooks did, counted from hook.log through its renaming."""

from __future__ import annotations

import json
import os
from pathlib import Path

from vgpu.hook import hooklog
from vgpu.node.daemon.hook_counts import OTHER, STEPS, HookCounts


def test_lines_since_the_start_count_by_step_and_duration(tmp_path: Path) -> None:
    run = str(tmp_path)
    hooklog.write(run, hooklog.record("createRuntime", {}, [], "allocation: no room"))
    counts = HookCounts(run)
    counts.look()
    assert counts.record()["starts"] == 0
    for error in ("", "allocation: no room", "who knows: what", "x\n\u2028"):
        hooklog.write(run, hooklog.record("createRuntime", {}, [], error) | {"seconds": 0.15})
    hooklog.write(run, hooklog.record("poststop", {}, ["released"], ""))
    hooklog.write(run, {"stage": "reaper", "container": "c", "notes": ["released: it has died"], "error": ""})
    counts.look()
    found = counts.record()
    assert (found["starts"], found["stops"]) == (4, 1)
    refusals = dict.fromkeys((*STEPS, OTHER), 0)  # each is there before its first refusal
    assert found["refusals"] == {**refusals, "allocation": 1, "other": 2}
    seconds = found["seconds"]
    assert isinstance(seconds, dict)
    assert round(seconds["sum"], 3) == 0.6
    assert dict(zip(seconds["bounds"], seconds["buckets"]))[0.2] == 4


def test_no_line_is_lost_or_counted_twice_when_the_file_is_renamed(tmp_path: Path) -> None:
    log, line = tmp_path / "hook.log", json.dumps({"stage": "prestart", "error": ""}) + "\n"
    counts = HookCounts(str(tmp_path))
    log.write_text(line * 2)
    counts.look()
    log.write_text(line * 2 + line + line[:5])
    counts.look()
    with log.open("a") as file:
        file.write(line[5:])
    os.rename(log, tmp_path / "hook.log.1")
    log.write_text(line)
    counts.look()
    counts.look()
    assert counts.record()["starts"] == 5


def test_garbage_counts_as_nothing(tmp_path: Path) -> None:
    log = tmp_path / "hook.log"
    counts = HookCounts(str(tmp_path))
    log.write_bytes(b"\xff\xfe\n[]\n{\n" + b"[" * 100_000 + b'\n{"stage": "prestart", "seconds": "x", "error": 1}\n')
    counts.look()
    assert counts.record()["starts"] == 1
    os.unlink(log)
    counts.look()
    assert counts.record()["starts"] == 1
