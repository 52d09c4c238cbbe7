"""Finds a short part of a random history that still fails: shrink.py TEST SEED [RUNS].

TEST is a test's node id; it takes its seed from VGPU_SEED and the numbers of its steps from VGPU_STEPS. A part fails if
one of RUNS runs does, one unless given. Prints each part that is shorter, the shortest last.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

STEPS = 150


def shrunk(steps: list[int], fails: Callable[[list[int]], bool]) -> list[int]:
    """The steps that are left when none of them, nor any half, quarter, ... of the rest, can be left out."""
    size = len(steps) // 2
    while size:
        at = 0
        while at < len(steps):
            fewer = steps[:at] + steps[at + size :]
            if fewer and fails(fewer):
                steps = fewer
            else:
                at += size
        size //= 2
    return steps


def main(test: str, seed: str, runs: str = "1") -> None:
    def fails(steps: list[int]) -> bool:
        chosen = ",".join(map(str, steps))
        environment = {**os.environ, "VGPU_SEED": seed, "VGPU_STEPS": chosen}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
        quiet = subprocess.DEVNULL
        failed = any(
            subprocess.run(command, env=environment, stdout=quiet, check=False).returncode for _ in range(int(runs))
        )
        if failed:
            print(f"VGPU_SEED={seed} VGPU_STEPS={chosen}", flush=True)
        return failed

    shrunk(list(range(STEPS)), fails)


if __name__ == "__main__":
    main(*sys.argv[1:])
