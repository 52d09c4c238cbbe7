"""A look at NVML's figures is quiet only if no call was under way that allocates or frees memory, from begin to end."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from checkout import CHECKOUT

if TYPE_CHECKING:
    from vcuda_boxes import Compiled

SOURCES = CHECKOUT / "libvcuda/src"


@pytest.mark.parametrize(("case", "is_quiet"), [("before", 1), ("stays", 0), ("ends", 0), ("impatient", 0)])
def test_a_look_is_quiet_only_if_no_call_was_under_way(compiled: Compiled, case: str, is_quiet: int) -> None:
    """A call that ends during the look got memory that the figures lack: the look took it for none before."""
    program = compiled("halted_calls.c", f"-I{SOURCES}", str(SOURCES / "memory/calls.c"), "-lpthread")
    assert int(subprocess.check_output([program, case], text=True, timeout=300)) == is_quiet
