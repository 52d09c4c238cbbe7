"""A checkout in which a fault is planted, and its tests.

Belongs here: writing a fault into a source, taking it out, compiling, running tests and reading their verdict. Not
which faults (sample.py) and which tests (killers.py).
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

CLEAN_S = 1800  #: a run of tests without a fault
PYTEST = ("-q", "--tb=no", "-rfE", "-p", "no:cacheprovider", "-m", "not gpu and not long")
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
        """passed, failed or timeout, and the tests that failed, below tests/."""
        python = str(self.root / ".venv/bin/python")
        command = [python, "-m", "pytest", *PYTEST, *options, *(f"tests/{file}" for file in files)]
        environment = {**os.environ, "VGPU_BUILD": str(self.build), "PYTHONDONTWRITEBYTECODE": "1"}
        with subprocess.Popen(command, cwd=self.root, env=environment, start_new_session=True, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:  # fmt: skip
            try:
                output, _ = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                return "timeout", []
            finally:
                _stop(process)
        return _verdict(process.returncode, output)


def _stop(process: subprocess.Popen[str]) -> None:
    for number, seconds in STOPS:
        if process.poll() is None:
            os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=seconds)


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

    def find(self, files: Sequence[str], seconds: int) -> dict[str, Any]:
        """The first test that fails: twice in a row, if it starts processes."""
        left_out = set(self.broken)
        while files:
            outcome, failed = self.tree.test(files, seconds, "-x", *(f"--deselect=tests/{name}" for name in left_out))
            if outcome != "failed":
                return {"outcome": "survived" if outcome == "passed" else outcome, "ran": list(files)}
            if failed[0].startswith(AT_ONCE) or self.tree.test(failed[:1], seconds)[0] != "passed":
                return {"outcome": "killed", "by": failed[0]}
            left_out.add(failed[0])
        return {"outcome": "survived", "ran": []}
