"""The clock by which vgpu's programs on one host measure age and wait. The hook's process loads this."""

from __future__ import annotations

import time


def since_boot() -> float:
    """Seconds since boot, suspension included: CLOCK_BOOTTIME, which no administrator sets."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
