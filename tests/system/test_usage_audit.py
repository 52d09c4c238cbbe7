"""vgpud's audit of the use that containers report, on a real container that goes past libvcuda."""

from __future__ import annotations

import daemons
import pytest
from flooded_card import FloodedCard

pytestmark = pytest.mark.root


def test_a_container_that_bypasses_libvcuda_is_reported(card: FloodedCard) -> None:
    """It loads the driver's own library. Its usage region shows no use, but NVML does."""
    daemon = card.site.daemon
    card.site.start_daemon()
    card.flood(cores="30")
    card.environment = ["LD_LIBRARY_PATH=/usr/local/vgpu/driver"]
    liar_id, _ = card.flood(cores="30", core_limit="90")
    warnings = daemons.wait_for(
        lambda: [line for line in daemon.health().get("warnings", []) if "NVML measures" in line], timeout=900
    )
    assert liar_id in warnings[0]
    assert "reports 0 % of at most 90 %, but NVML measures" in warnings[0]
    assert len([line for line in daemon.health()["warnings"] if "NVML measures" in line]) == 1
    rows = {row["container"]: row for row in daemon.health()["cores"]}
    assert rows[liar_id]["doubted"] is True
    assert rows[liar_id]["lent"] == 0
