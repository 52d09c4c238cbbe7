"""The simulator's clock for a Python process: the functions of libvcuda/include/vgpu_sim_clock.h.

A process that calls them takes part in virtual time. While it runs, all other processes stand still, so everything that
it reads belongs to one instant. It has to leave before it ends or waits for something else, or to hold the time.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

NEVER = 2**64 - 1
BEGIN = 1000 * 10**9  #: ns at which virtual time begins

Word = ctypes.POINTER(ctypes.c_uint32)


class Functions(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("is_virtual", ctypes.CFUNCTYPE(ctypes.c_int)),
        ("now", ctypes.CFUNCTYPE(ctypes.c_uint64)),
        ("sleep_until", ctypes.CFUNCTYPE(None, ctypes.c_uint64)),
        ("wait", ctypes.CFUNCTYPE(None, Word, ctypes.c_uint32, ctypes.c_uint64)),
        ("wake", ctypes.CFUNCTYPE(None, Word)),
        ("block", ctypes.CFUNCTYPE(None)),
        ("unblock", ctypes.CFUNCTYPE(None)),
        ("thread_announce", ctypes.CFUNCTYPE(ctypes.c_uint32)),
        ("thread_adopt", ctypes.CFUNCTYPE(None, ctypes.c_uint32)),
        ("thread_withdraw", ctypes.CFUNCTYPE(None, ctypes.c_uint32)),
        ("charge", ctypes.CFUNCTYPE(None, ctypes.c_uint64)),
        ("hold", ctypes.CFUNCTYPE(None, ctypes.c_int)),
    )


class Clock:
    """The clock of `library`, a simulated libcuda or libnvidia-ml. The first call opens the state in VGPU_SIM_DIR."""

    def __init__(self, library: str = "libcuda.so.1") -> None:
        functions: Any = Functions.in_dll(ctypes.CDLL(library), "vgpuSimClock")
        self.functions = functions
        self.now: Callable[[], int] = functions.now
        self.sleep_until: Callable[[int], None] = functions.sleep_until
        self.hold: Callable[[int], None] = functions.hold
        self.leave: Callable[[], None] = functions.block
        self.enter: Callable[[], None] = functions.unblock


def step(library: str) -> None:
    """Lets time pass until each time that comes in, and holds it there: tests/beds/virtual_director.py."""
    clock = Clock(library)
    clock.hold(1)
    print(clock.now(), flush=True)
    for line in sys.stdin:
        clock.hold(0)
        clock.sleep_until(int(line))
        clock.hold(1)
        print(clock.now(), flush=True)


if __name__ == "__main__":
    step(sys.argv[1])
