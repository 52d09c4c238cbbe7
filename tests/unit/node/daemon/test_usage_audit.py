"""What containers say of their use against what NVML sees: who is caught, and who must not be."""

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
def test_the_honest_may_go_on(said: float, seen: float) -> None:
    assert looked([said] * 20, [seen] * 20).verdict() is None


@pytest.mark.parametrize(
    ("said", "seen", "part"), [(0, 50, 0.8), (10, 90, 0.8), (40, 65, 0.8), (45, 68, 0.8), (50, 90, 0.8)]
)
def test_who_uses_more_than_it_says_is_caught(said: float, seen: float, part: float) -> None:
    found = looked([said] * ENOUGH, [seen] * ENOUGH).verdict()
    assert found is not None
    assert found.part == pytest.approx(part)
    assert f"reports {said} % of at most 50 %, but NVML measures {seen} %" in found.describe()


def test_who_uses_more_than_it_may_is_caught_though_it_says_so() -> None:
    assert looked([100] * ENOUGH, [100] * ENOUGH, limit=50).verdict() is not None
    assert looked([100] * ENOUGH, [100] * ENOUGH, limit=100).verdict() is None


def test_nobody_is_caught_by_a_few_looks() -> None:
    assert looked([0] * (ENOUGH - 1), [100] * (ENOUGH - 1)).verdict() is None


def test_samples_that_come_late_catch_nobody() -> None:
    """A container works and stops; NVML goes on showing it for two looks."""
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


def test_noise_catches_nobody_honest() -> None:
    noise = random.Random(3)
    for _ in range(200):
        use = noise.uniform(5, 100)
        made = UsageAudit()
        for _ in range(40):
            made.look(use, 100, min(100.0, max(0.0, use * noise.uniform(0.6, 1.5))))
            assert made.verdict() is None


def test_a_verdict_narrows_within_bounds() -> None:
    for said in range(0, 101, 5):
        for seen in range(0, 101, 5):
            found = looked([said] * ENOUGH, [seen] * ENOUGH).verdict()
            assert found is None or MIN_PART <= found.part <= 1
