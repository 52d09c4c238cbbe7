"""sim_layout.py mirrors state/state.h: every structure, every field."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path
from types import ModuleType


def test_structures_match(simctl: ModuleType, repository: Path, tmp_path: Path) -> None:
    layout = simctl.layout
    mirrored = {
        "header": layout.Header, "card": layout.Card, "slot": layout.Slot, "turn_holder": layout.TurnHolder,
        "sample": layout.Sample, "incident": layout.Incident, "board": layout.Board,
        "timeline_process": layout.TimelineProcess, "timeline_thread": layout.TimelineThread,
        "timeline": layout.Timeline, "meeting": layout.Meeting, "shared_memory": layout.Share, "file": layout.File,
    }  # fmt: skip
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
    subprocess.run(["gcc", "-std=gnu11", "-I", repository / "libvcuda" / "sim", source, "-o", program], check=True)
    printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    assert printed.splitlines() == expected


def test_constants_match(simctl: ModuleType, repository: Path) -> None:
    header = (repository / "libvcuda" / "sim" / "state" / "state.h").read_text()
    constants = dict(re.findall(r"#define SIM_(\w+) (?:(\w+)u|\"\w+\")(?= |$)", header, re.MULTILINE))
    mirrored = {name: value for name, value in vars(simctl.layout).items() if name in constants and name != "MAGIC"}
    assert len(mirrored) == 18
    assert mirrored == {name: int(constants[name], 0) for name in mirrored}
    assert f'#define SIM_MAGIC "{simctl.layout.MAGIC.decode()}"' in header
