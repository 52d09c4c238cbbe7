"""What all programs of the tier share: a scenario is a function that prints lines, chosen by the first argument.

Two runs of a scenario print the same, whatever the machine does meanwhile: no times, addresses or process ids. A kernel
computes nothing on the simulated driver, so lines have results of copies and fills, sizes, counts and kinds of errors.
"""

from __future__ import annotations

import gc
import multiprocessing
import sys
from typing import Any, Callable

MIB = 1 << 20


def say(*words: object) -> None:
    print(*words, flush=True)


def fill(allocate: Callable[[int], Any], errors: Any, step: int = 64 * MIB, most: int = 4096) -> None:
    """Allocate until that fails, give everything back, and do it again: `granted` bytes, and the error's own words."""
    for _ in range(2):
        held: list[Any] = []
        try:
            while len(held) < most:
                held.append(allocate(step))
        except errors as error:
            say("refused", type(error).__name__, " ".join(str(error).split()))
        say("granted", len(held) * step)
        del held
        gc.collect()


def in_process(how: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns in another process, made by `fork` or `spawn`."""
    with multiprocessing.get_context(how).Pool(1) as pool:
        return pool.apply(function, arguments)


def main(scenarios: dict[str, Any]) -> None:
    scenarios[sys.argv[1]](*sys.argv[2:])
