"""Records read by other processes: by the hook's interpreter, and by a reader during writes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from bad_records import BAD

from vgpu.config import records


def test_decode_refuses_the_same_in_the_hooks_interpreter() -> None:
    """The hook does not load json.decoder. Without it some scanners fail without an exception."""
    program = (
        f"import sys; sys.path.insert(0, {str(Path(records.__file__).parents[2])!r})\n"
        "from vgpu.config import records\n"
        f"for data in {BAD!r}:\n"
        "    try: records.decode(data, 'f')\n"
        "    except records.VgpuError: pass\n"
        "    else: print(data[:20])\n"
    )
    for python in {sys.executable, "/usr/bin/python3"}:
        if os.path.exists(python):
            done = subprocess.run([python, "-I", "-S", "-"], input=program, capture_output=True, text=True, check=False)
            assert (done.stdout, done.stderr) == ("", "")


def test_reader_sees_whole_records_while_they_are_replaced(tmp_path: Path) -> None:
    path = str(tmp_path / "record")
    records.write(path, {"fill": "0" * 9000})
    pid = os.fork()
    if pid == 0:
        number = 0
        while True:
            number += 1
            records.write(path, {"fill": str(number % 10) * 9000})
    seen = set()
    try:
        while len(seen) < 10:
            fill = records.read(path)["fill"]
            assert isinstance(fill, str)
            assert fill == fill[0] * 9000
            seen.add(fill[0])
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
