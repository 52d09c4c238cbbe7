"""The clock with which vgpu's programs on one host measure ages and waits.

Belongs here: that clock. Not here: times of day, which records take from time.time(). The hook's process calls the
same clock without this module.
"""

from __future__ import annotations

import time


def since_boot() -> float:
    """Seconds since boot, with the time in suspension (CLOCK_BOOTTIME). No administrator can set this clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
