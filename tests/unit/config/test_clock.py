"""The clock of vgpu's programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from vgpu.config.clock import since_boot


def test_it_is_the_kernels_uptime() -> None:
    """The uptime includes suspension."""
    assert since_boot() == pytest.approx(float(Path("/proc/uptime").read_text().split()[0]), abs=1)
