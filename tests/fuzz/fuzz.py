"""make fuzz: search for inputs that break what vgpu reads: fuzz.py SECONDS DIRECTORY [TARGET ...]

atheris searches in the Python targets (fuzz_inputs), libFuzzer in those in C (libfuzzer). What they find lies below
DIRECTORY, one folder a target: crash-* are findings, new/* are inputs that reach code which no kept input reaches. An
input worth keeping goes to tests/fuzz/corpus/<target>, and every later test run replays it.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "beds")]

import libfuzzer  # noqa: E402 - the path is known only now

ONE = "--one"


def main(seconds: int, directory: Path, targets: list[str]) -> int:
    """Run the targets one after the other. Returns how many have findings."""
    import fuzz_inputs  # here it is not instrumented

    failed = 0
    for name in targets or [*fuzz_inputs.TARGETS, *libfuzzer.TARGETS]:
        folder = directory / name
        folder.mkdir(parents=True, exist_ok=True)
        text = in_c(name, folder, seconds) if name in libfuzzer.TARGETS else in_python(name, folder, seconds)
        failed += text.startswith("FAILED")
        print(f"{name}: {text}", flush=True)
    return failed


def in_c(name: str, folder: Path, seconds: int) -> str:
    if not libfuzzer.clang():
        return "left out: no clang with libFuzzer"
    return verdict(libfuzzer.run(libfuzzer.build(name, folder), seconds), folder)


def in_python(name: str, folder: Path, seconds: int) -> str:
    if importlib.util.find_spec("atheris") is None:
        return "left out: atheris has no wheel for this Python"
    (folder / "new").mkdir(exist_ok=True)
    corpora = [str(folder / "new"), str(HERE / "corpus" / name)]
    options = [f"-max_total_time={seconds}", "-timeout=30", "-max_len=16384", "-rss_limit_mb=4096"]
    command = [sys.executable, __file__, ONE, name, *options, *corpora]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return verdict(done, folder)


def verdict(done: subprocess.CompletedProcess[bytes], folder: Path) -> str:
    (folder / "output").write_bytes(done.stdout)
    if done.returncode == 0:
        return f"{libfuzzer.rounds(done)} inputs, no finding"
    return f"FAILED, see {folder}/output"


def one(name: str, arguments: list[str]) -> None:
    """A Python target in this process, under atheris; it ends the process."""
    import atheris

    with atheris.instrument_imports(include=["vgpu"]):
        import fuzz_inputs
    atheris.Setup([sys.argv[0], *arguments], lambda data: void(fuzz_inputs.accepted(name, data)))
    atheris.Fuzz()


def void(_: bool) -> None:
    """libFuzzer takes no other result."""


if __name__ == "__main__":
    os.environ.setdefault("LC_ALL", "C.UTF-8")
    if sys.argv[1] == ONE:
        one(sys.argv[2], sys.argv[3:])
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2]).resolve(), sys.argv[3:]) > 0)
