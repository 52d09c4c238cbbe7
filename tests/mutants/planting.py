"""A checkout in which a fault is planted, and its tests.

Belongs here: writing a fault into a source, taking it out, compiling, running tests and reading their verdict. Not
which faults (sample.py) and which tests (killers.py).
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

#: Seconds without a test's end after which a fault has made one hang, and the same without a fault.
SILENT_S, CLEAN_S = 90, 600
PYTEST = ("-v", "--tb=no", "-rfE", "-p", "no:cacheprovider", "-m", "not gpu and not long")
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
AT_ONCE = ("unit/", "pytest:")
STOPS = ((signal.SIGINT, 20), (signal.SIGKILL, None))  #: pytest takes down what its tests started


class Tree:
    """A checkout with its virtual environment and a build."""

    def __init__(self, root: Path, build: Path) -> None:
        self.root, self.build = root, build

    def sources(self, patterns: Sequence[str]) -> dict[str, str]:
        paths = [path for pattern in patterns for path in sorted(self.root.glob(pattern))]
        return {str(path.relative_to(self.root)): path.read_text() for path in paths if not path.stem.endswith("_pb2")}

    @contextlib.contextmanager
    def planted(self, file: str, mutated: str) -> Iterator[None]:
        path = self.root / file
        original, status = path.read_bytes(), path.stat()
        try:
            path.write_text(mutated)
            yield
        finally:
            path.write_bytes(original)
            if path.suffix == ".py":  # its byte code is valid again; a C source has to be compiled again
                os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    def compiles(self) -> bool:
        command = ["cmake", "--build", str(self.build), "--target", "vcuda", "vcuda_nvml"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def test(self, files: Sequence[str], seconds: int, *options: str) -> tuple[str, list[str]]:
        """passed, failed or timeout, and the tests that failed or hung for so many seconds, below tests/."""
        python = str(self.root / ".venv/bin/python")
        command = [python, "-u", "-m", "pytest", *PYTEST, *options, *(f"tests/{file}" for file in files)]
        environment = {
            **os.environ,
            "VGPU_BUILD": str(self.build),
            "PYTHONDONTWRITEBYTECODE": "1",
            "VGPU_SAMPLE": "all",
        }
        with subprocess.Popen(command, cwd=self.root, env=environment, start_new_session=True, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:  # fmt: skip
            try:
                output, ended = _read(process, seconds)
            finally:
                _stop(process)
        return _verdict(process.returncode, output) if ended else ("timeout", [_last_test(output)])


def _read(process: subprocess.Popen[bytes], seconds: int) -> tuple[str, bool]:
    """What it writes, until it ends or writes nothing for so long, and whether it ended."""
    assert process.stdout
    output = b""
    while select.select([process.stdout], [], [], seconds)[0]:
        if not (text := os.read(process.stdout.fileno(), 1 << 16)):
            process.wait(seconds)
            return output.decode(errors="replace"), True
        output += text
    return output.decode(errors="replace"), False


def _last_test(output: str) -> str:
    return output.rpartition("\n")[2].strip().removeprefix("tests/")


def _stop(process: subprocess.Popen[bytes]) -> None:
    for number, seconds in STOPS:
        if process.poll() is None:
            os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds)


def _verdict(status: int, output: str) -> tuple[str, list[str]]:
    """A test that is not there any more has not failed."""
    if status in (0, 5) or (status == 4 and "not found:" in output):
        return "passed", []
    failed = [name.removeprefix("tests/") for name in FAILED.findall(output)]
    return "failed", failed or [f"pytest: {output.strip()[-100:]}"]  # no test can be loaded


class Tests:
    """Runs the tests that may find a fault. What fails without a fault is left out."""

    def __init__(self, tree: Tree) -> None:
        self.tree, self.broken, self.looked = tree, set[str](), set[str]()

    def look_at(self, files: Sequence[str], *options: str) -> None:
        """Runs them without a fault, once."""
        new = [file for file in files if file not in self.looked]
        self.looked.update(new)
        if new:
            outcome, failed = self.tree.test(new, CLEAN_S, *options)
            self.broken.update(failed)
            if outcome != "passed":
                print(outcome, "without a fault, left out:", *failed, sep="\n  ", flush=True)

    def find(self, files: Sequence[str]) -> dict[str, Any]:
        """The first test that fails: twice in a row, if it starts processes."""
        left_out = set(self.broken)
        while files:
            outcome, failed = self.tree.test(files, SILENT_S, "-x", *(f"--deselect=tests/{name}" for name in left_out))
            if outcome == "passed":
                return {"outcome": "survived", "ran": list(files)}
            if outcome == "timeout":
                return {"outcome": "timeout", "by": failed[0]}
            if failed[0].startswith(AT_ONCE) or self.tree.test(failed[:1], SILENT_S)[0] != "passed":
                return {"outcome": "killed", "by": failed[0]}
            left_out.add(failed[0])
        return {"outcome": "survived", "ran": []}
