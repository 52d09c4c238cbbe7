"""The limits of verdicts: each has its sentence in a contract page, and follows what that sentence says."""

from __future__ import annotations

import pytest
from checkout import CHECKOUT

from vgpu.node.selftest import bounds
from vgpu.node.selftest.bounds import MIB, MS


@pytest.mark.parametrize("source", bounds.SOURCES)
def test_each_limit_comes_from_a_sentence_of_a_contract(source: str) -> None:
    page, words = bounds.SOURCES[source]
    assert words in " ".join((CHECKOUT / "docs" / page).read_text().split())


@pytest.mark.parametrize(
    ("found", "least", "most"),
    [
        # (longest kernels of both + two quotas) / window, below the share less the changes; periods of 66.7 and 100 ms
        (bounds.beside([30, 70], 0, [MS, MS], 4000 * MS, 0), 0.2991 - 0.0105, 0.3 + 0.0105),
        (bounds.beside([30, 70], 1, [MS, MS], 4000 * MS, 0), 0.6979 - 0.0238, 0.7 + 0.0238),
        (bounds.beside([10, 90], 1, [MS, MS], 4000 * MS, 0), 0.8982 - 0.0455, 0.9 + 0.0455),
        (bounds.beside([30, 60], 1, [MS, 9 * MS], 4000 * MS, 0), 0.6 - 0.0225, 0.6 + 0.0225),
        (bounds.beside([30, 70], 0, [MS, MS], 4000 * MS, 3 * MS), 0.2906 - 0.0293, 0.3 + 0.0293),  # 192 ms
        # a burst of 100 ms of the share, twice
        (bounds.alone(40, MS, 3000 * MS), 0.4 - 0.0270, 0.4 + 0.0270),
    ],
)
def test_a_share(found: bounds.Range, least: float, most: float) -> None:
    assert found == pytest.approx((least, most), abs=1e-4)


def test_other_limits() -> None:
    assert bounds.memory(2048 * MIB) == 64 * MIB
    assert bounds.memory(10_000 * MIB) == 100 * MIB
    assert bounds.container_wait([30, 70], 0, [MS, MS], 0) == pytest.approx(46.67 * MS + 5 * MS, abs=0.01 * MS)
    assert bounds.process_slice(90, MS) == 20 * MS
    assert bounds.request_wait(MS, MS) == 4 * MS
