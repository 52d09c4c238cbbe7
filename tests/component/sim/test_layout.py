"""sim_layout.py mirrors state/state.h: every structure, every field."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from types import ModuleType


def test_structures_match(simctl: ModuleType, repository: Path, tmp_path: Path) -> None:
    mirrored = {
        "header": simctl.layout.Header,
        "card": simctl.layout.Card,
        "slot": simctl.layout.Slot,
        "turn_holder": simctl.layout.TurnHolder,
        "sample": simctl.layout.Sample,
        "incident": simctl.layout.Incident,
        "board": simctl.layout.Board,
        "timeline_process": simctl.layout.TimelineProcess,
        "timeline_thread": simctl.layout.TimelineThread,
        "timeline": simctl.layout.Timeline,
        "meeting": simctl.layout.Meeting,
        "shared_memory": simctl.layout.Share,
        "file": simctl.layout.File,
    }
    expected = []
    lines = []
    for name, structure in mirrored.items():
        expected.append(f"{name} {ctypes.sizeof(structure)}")
        lines.append(f'printf("{name} %zu\\n", sizeof(struct sim_{name}));')
        for field, *_ in structure._fields_:
            expected.append(f"{name}.{field} {getattr(structure, field).offset} {getattr(structure, field).size}")
            place = f"offsetof(struct sim_{name}, {field}), sizeof(((struct sim_{name} *)0)->{field})"
            lines.append(f'printf("{name}.{field} %zu %zu\\n", {place});')
    source = tmp_path / "layout.c"
    source.write_text('#include <stdio.h>\n#include "state/state.h"\nint main(void) {\n' + "\n".join(lines) + "\n}\n")
    program = tmp_path / "layout"
    subprocess.run(
        ["gcc", "-std=gnu11", "-I", repository / "libvcuda" / "sim", source, "-o", program],
        check=True,
    )
    printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    assert printed.splitlines() == expected


def test_constants_match(simctl: ModuleType, repository: Path) -> None:
    header = (repository / "libvcuda" / "sim" / "state" / "state.h").read_text()
    for name, value in (
        ("SIM_VERSION", f"{simctl.layout.VERSION}u"),
        ("SIM_MAX_CARDS", f"{simctl.layout.MAX_CARDS}u"),
        ("SIM_MAX_SLOTS", f"{simctl.layout.MAX_SLOTS}u"),
        ("SIM_MAX_LINKS", f"{simctl.layout.MAX_LINKS}u"),
        ("SIM_MAX_WAITING", f"{simctl.layout.MAX_WAITING}u"),
        ("SIM_PERIODS", f"{simctl.layout.PERIODS}u"),
        ("SIM_MAX_SAMPLES", f"{simctl.layout.MAX_SAMPLES}u"),
        ("SIM_MAX_INCIDENTS", f"{simctl.layout.MAX_INCIDENTS}u"),
        ("SIM_MAX_PROCESSES", f"{simctl.layout.MAX_PROCESSES}u"),
        ("SIM_MAX_THREADS", f"{simctl.layout.MAX_THREADS}u"),
        ("SIM_MAX_MEETINGS", f"{simctl.layout.MAX_MEETINGS}u"),
        ("SIM_MEETING_ROUNDS", f"{simctl.layout.MEETING_ROUNDS}u"),
        ("SIM_MAX_SHARES", f"{simctl.layout.MAX_SHARES}u"),
        ("SIM_SHARE_BYTE", f"{simctl.layout.SHARE_BYTE}u"),
        ("SIM_LINK_SWITCH", f"{simctl.layout.LINK_SWITCH:#x}u"),
        ("SIM_LINK_NONE", f"{simctl.layout.LINK_NONE:#x}u"),
        ("SIM_MAGIC", f'"{simctl.layout.MAGIC.decode()}"'),
    ):
        assert f"#define {name} {value}" in header
