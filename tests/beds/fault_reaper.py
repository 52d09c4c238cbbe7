"""vgpud's reaper, some hours later: it removes whatever it may remove."""

from __future__ import annotations

import io
import sys
import time

from vgpu.config.clock import since_boot
from vgpu.config.errors import VgpuError
from vgpu.config.settings import Settings
from vgpu.node.daemon.reaper import Reaper
from vgpu.node.service.log import Conditions, Log

HOURS = 7200.0


def sweep(settings: Settings) -> int:
    """Three rounds, each two hours after the one before. Returns 0, or 1 with a line when the last one failed."""
    passed = [0.0]
    conditions = Conditions(Log(io.StringIO(), levels=False))
    reaper = Reaper(
        settings, conditions, clock=lambda: since_boot() + passed[0], wall_clock=lambda: time.time() + passed[0]
    )
    failed = ""
    for _ in range(3):
        passed[0] += HOURS
        try:
            reaper.look()
            failed = ""
        except (VgpuError, OSError) as error:  # the daemon tries again in the next round
            failed = str(error)
    if failed:
        print(f"reaper: {failed}", file=sys.stderr)
    return 1 if failed else 0
