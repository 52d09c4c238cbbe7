"""GCC's OpenMP, whose target regions run on the card: openmp.c."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from scenarios import main

SOURCE = Path(__file__).with_name("openmp.c")
PATH = "/usr/bin:/bin"  # without a newer ptxas, which does not know the oldest cards


def work(*words: str) -> None:
    program = Path.home() / "openmp"
    options = ["-O2", "-w", "-no-pie", "-fopenmp", "-foffload=nvptx-none", "-o", str(program), str(SOURCE)]
    subprocess.run(["gcc", *options], check=True, env={**os.environ, "PATH": PATH, "LD_LIBRARY_PATH": ""})
    subprocess.run([program, *words], check=True, env={**os.environ, "OMP_TARGET_OFFLOAD": "MANDATORY"})


def out_of_memory() -> None:
    work("fill")


if __name__ == "__main__":
    main(globals())
