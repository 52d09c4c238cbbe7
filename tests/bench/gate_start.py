"""`gate_start.py [ROUNDS]`: how long the gate takes for a container that asks for nothing, with musl and with glibc.

In no group. Debian has no musl for another processor, so the packages for arm64 have a gate that is static by glibc.
What that costs shows on this processor, where both can be built. The gate for arm64 runs in qemu's user mode, which
takes far longer than an arm64 host would. Beside it stands an empty program for arm64, linked in the same way. Needs
cmake, gcc, musl-tools, gcc-aarch64-linux-gnu and qemu-user-static. Figures: docs/packages.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "beds")]

from checkout import CHECKOUT  # noqa: E402 - found by the line above

CROSS = "aarch64-linux-gnu-gcc"
EMULATOR = "qemu-aarch64-static"
#: name -> cmake's options, and what the program runs under
GATES: dict[str, tuple[list[str], list[str]]] = {
    "musl": ([], []),
    "glibc": (["-DVGPU_MUSL_SPECS="], []),
    "arm64 glibc": ([f"-DCMAKE_TOOLCHAIN_FILE={CHECKOUT / 'packaging/setup/arm64.cmake'}"], [EMULATOR]),
}


def gate(directory: Path, options: list[str]) -> str:
    """Build the gate in `directory`. Returns the hook's program."""
    subprocess.run(
        ["cmake", "-S", CHECKOUT / "hook/gate", "-B", directory, *options], check=True, stdout=subprocess.DEVNULL
    )
    subprocess.run(["cmake", "--build", directory], check=True, stdout=subprocess.DEVNULL)
    return str(next(path for path in directory.rglob("vgpu-hook") if path.is_symlink()))


def empty(directory: Path) -> str:
    """A program for arm64 that does nothing."""
    source, program = directory / "empty.c", directory / "empty"
    source.write_text("int main(void) { return 0; }\n")
    subprocess.run([CROSS, "-O2", "-static", "-no-pie", "-o", program, source], check=True)
    return str(program)


def container(directory: Path) -> bytes:
    """The state of a container that asks for nothing."""
    (directory / "config.json").write_text(
        json.dumps({"ociVersion": "1.0.2", "annotations": {}, "process": {"env": []}})
    )
    state = {"ociVersion": "1.0.2", "id": "c", "status": "creating", "pid": 1, "bundle": str(directory)}
    return json.dumps(state).encode()


def milliseconds(command: list[str], state: bytes) -> float:
    began = time.perf_counter()
    done = subprocess.run(command, input=state, capture_output=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command}: {done.stderr.decode()}")
    return (time.perf_counter() - began) * 1000


def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory(prefix="vgpu-bench-") as temporary:
        directory = Path(temporary)
        state = container(directory)
        commands = {
            name: [*under, gate(directory / name.replace(" ", "-"), options), "prestart"]
            for name, (options, under) in GATES.items()
        }
        commands["arm64 empty"] = [EMULATOR, empty(directory)]
        runs = [{name: milliseconds(command, state) for name, command in commands.items()} for _ in range(rounds)]
        for name in commands:
            times = [run[name] for run in runs]
            print(f"{name}: {min(times):.2f} / {median(times):.2f} / {max(times):.2f} ms")
        for one, other in (("glibc", "musl"), ("arm64 glibc", "arm64 empty")):
            print(f"{one} less {other}, median of pairs: {median(run[one] - run[other] for run in runs):+.2f} ms")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
