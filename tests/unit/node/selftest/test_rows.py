"""The verdicts of rows of time, where the measuring programs had no processor for a part of it."""

from __future__ import annotations

import pytest

from vgpu.node.selftest import rows
from vgpu.node.selftest.bounds import MS, Range
from vgpu.node.selftest.report import FAIL, NOT_JUDGED, PASS

WINDOW = 4000 * MS


@pytest.mark.parametrize(
    ("parts", "lost", "verdict"),
    [
        ((0.30, 0.70), 0, PASS),
        ((0.30, 0.70), WINDOW, PASS),
        ((0.25, 0.70), 0, FAIL),
        ((0.25, 0.70), 100 * MS, FAIL),  # explains 2.5 points
        ((0.25, 0.70), 200 * MS, NOT_JUDGED),
        ((0.30, 0.80), 200 * MS, FAIL),
    ],
)
def test_a_share_is_not_judged_if_lost_processor_time_explains_it(
    parts: tuple[float, float], lost: int, verdict: str
) -> None:
    ranges = [Range(0.29, 0.31), Range(0.68, 0.72)]
    row = rows.within("share.30-70", "for two floods", parts, ranges, "share", lost, WINDOW)
    assert row.verdict == verdict
    assert ("; the programs lost 200.00 ms of processor time" in row.measured) == (verdict == NOT_JUDGED)


@pytest.mark.parametrize(
    ("found", "lost", "verdict"),
    [(4 * MS, 0, PASS), (5 * MS, MS - 1, FAIL), (5 * MS, MS, NOT_JUDGED), (0, MS, FAIL)],
)
def test_a_latency_is_not_judged_if_lost_processor_time_explains_it(found: int, lost: int, verdict: str) -> None:
    assert rows.at_most("request.p99", "4 ms", [found], 4 * MS, "request", lost).verdict == verdict
