"""Containers' own reports of their use compared with NVML's: which get a penalty, and which must not."""

from __future__ import annotations

import random

import pytest

from vgpu.node.daemon.usage_audit import LAG, LOOKS, MIN_PART, UsageAudit

ENOUGH = LOOKS + LAG


def looked(said: list[float], seen: list[float], limit: float = 50) -> UsageAudit:
    made = UsageAudit()
    for word, sight in zip(said, seen):
        made.look(word, limit, sight)
    return made


@pytest.mark.parametrize(("said", "seen"), [(50, 50), (50, 70), (50, 0), (0, 9), (0, 0), (5, 15)])
def test_an_honest_container_gets_no_penalty(said: float, seen: float) -> None:
    assert looked([said] * 20, [seen] * 20).verdict() is None


@pytest.mark.parametrize(
    ("said", "seen", "part"), [(0, 50, 0.8), (10, 90, 0.8), (40, 65, 0.8), (45, 68, 0.8), (50, 90, 0.8)]
)
def test_a_container_that_uses_more_than_it_reports_gets_a_penalty(said: float, seen: float, part: float) -> None:
    found = looked([said] * ENOUGH, [seen] * ENOUGH).verdict()
    assert found is not None
    assert found.part == pytest.approx(part)
    assert f"reports {said} % of at most 50 %, but NVML measures {seen} %" in found.describe()


def test_a_container_that_reports_use_beyond_its_limit_gets_a_penalty() -> None:
    assert looked([100] * ENOUGH, [100] * ENOUGH, limit=50).verdict() is not None
    assert looked([100] * ENOUGH, [100] * ENOUGH, limit=100).verdict() is None


def test_a_few_rounds_give_no_penalty() -> None:
    assert looked([0] * (ENOUGH - 1), [100] * (ENOUGH - 1)).verdict() is None


def test_late_samples_give_no_penalty() -> None:
    """A container works and stops. NVML still shows its use for two rounds."""
    said = [50.0] * 10 + [0.0] * 12
    seen = [0.0] * 2 + [50.0] * 10 + [0.0] * 10
    made = UsageAudit()
    for word, sight in zip(said, seen):
        made.look(word, 50, sight)
        assert made.verdict() is None


def test_a_changed_limit_counts_with_the_greater_for_a_while() -> None:
    made = looked([80] * ENOUGH, [80] * ENOUGH, limit=80)
    made.look(20, 20, 80)
    assert made.verdict() is None


def test_noise_gives_no_honest_container_a_penalty() -> None:
    noise = random.Random(3)
    for _ in range(200):
        use = noise.uniform(5, 100)
        made = UsageAudit()
        for _ in range(40):
            made.look(use, 100, min(100.0, max(0.0, use * noise.uniform(0.6, 1.5))))
            assert made.verdict() is None


def test_a_penalty_narrows_within_bounds() -> None:
    for said in range(0, 101, 5):
        for seen in range(0, 101, 5):
            found = looked([said] * ENOUGH, [seen] * ENOUGH).verdict()
            assert found is None or MIN_PART <= found.part <= 1
