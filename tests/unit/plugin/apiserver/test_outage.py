"""An outage is one line when it begins and one when it is over."""

from __future__ import annotations

import io

from vgpu.node.service.log import Conditions, Log
from vgpu.plugin.apiserver.outage import Outage


def test_an_outage_is_logged_once_whoever_finds_it_and_whatever_the_causes() -> None:
    log = io.StringIO()
    outage = Outage(Conditions(Log(log, levels=False)))
    outage.set("pods", "")
    assert log.getvalue() == ""
    outage.set("pods", "GET /api/v1/pods: Connection refused")
    outage.set("answers", "GET /api/v1/nodes/n: Connection refused")
    outage.set("pods", "GET /api/v1/pods: 503 Service Unavailable")
    outage.set("pods", "")
    assert log.getvalue().count("\n") == 1
    assert "the API server is away, trying again: GET /api/v1/pods: Connection refused" in log.getvalue()
    outage.set("answers", "")
    outage.set("answers", "")
    assert log.getvalue().count("\n") == 2
    assert "over: the API server is away" in log.getvalue()
