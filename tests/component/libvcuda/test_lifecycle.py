"""dlclose, signal handlers, exec from a thread, fork while others allocate: programs work as without libvcuda."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from vcuda_boxes import Box, Compiled

LIMIT = 64 << 20


@pytest.mark.parametrize("scenario", ["reopen", "signals", "exec", "forks"])
def test_a_program_gets_its_way(awkward: Box, compiled: Compiled, scenario: str) -> None:
    awkward.limit(LIMIT)
    program = compiled("lifecycle.c", "-ldl", "-lpthread")
    with (awkward.path / "log").open("w") as log:
        command = awkward.command(str(program), scenario)
        done = subprocess.run(command, env=awkward.environment, stderr=log, timeout=90, check=False)
    assert done.returncode == 0, awkward.log
    # The scenario that ends with all of it allocated, as a killed program would: the next one gets it.
    assert awkward.opened().fills(1 << 20) == LIMIT
    assert awkward.usage()[1:] == (0, LIMIT)
