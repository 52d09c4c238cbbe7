"""The core share while kills, loans, leases and damage happen. Signals are real, and time is virtual."""

from __future__ import annotations

import pytest
from sharing_containers import MS, SECOND, Container, Node

from vgpu.config import core_schedule, usage
from vgpu.config.core_schedule import CoreSchedule

SETTLE = 400 * MS


@pytest.fixture
def container(node: Node) -> Container:
    return node.container()


def share(container: Container, within: int = SECOND) -> float:
    """Percent of the card's time that its programs use from now on."""
    before = container.busy()
    container.director.run(within)
    return (container.busy() - before) / within * 100


def has(share: float) -> object:
    return pytest.approx(share, rel=0.05)


def test_a_killed_process_leaves_no_debt_and_no_time_slice(container: Container) -> None:
    container.limit(40)
    victims = [container.flood() for _ in range(3)]
    container.flood()
    container.director.run(SETTLE)
    for victim in victims:
        victim.kill()
        victim.wait()
    container.director.run(SETTLE)
    assert share(container) == has(40)


def test_lent_time_is_used_and_given_back(container: Container) -> None:
    container.limit(20, core_limit=80)
    page = CoreSchedule(container.uuid(), lent_until=container.director.now + 60 * SECOND, lent_rate=100, tenants=2)
    container.write_schedules([page])
    container.flood()
    container.director.run(SETTLE)
    assert share(container) == has(80), "never more than the core limit"
    core_schedule.update(str(container.box.path / "cards"), CoreSchedule(container.uuid(), tenants=2))
    container.director.run(200 * MS)
    assert share(container) == has(20)


def test_a_lease_ends_by_itself(container: Container) -> None:
    container.limit(20, core_limit=80)
    until = container.director.now + 300 * MS
    container.write_schedules([CoreSchedule(container.uuid(), lent_until=until, lent_rate=80, tenants=2)])
    container.flood()
    container.director.run(100 * MS)
    assert share(container, 180 * MS) > 70
    container.director.run(SETTLE)
    assert share(container) == has(20)


@pytest.mark.parametrize("period", [1, 1 << 63, 2**64 - 1])
def test_a_nonsensical_period_is_ignored(container: Container, period: int) -> None:
    container.limit(50)
    container.write_schedules([CoreSchedule(container.uuid(), period, tenants=1, share=2**32 - 1)])
    container.flood()
    container.director.run(SETTLE)
    assert share(container) == has(50)


@pytest.mark.parametrize(("offset", "until", "percent"), [(600, 60, 20), (-600, -60, 80)], ids=["ahead", "behind"])
def test_a_time_namespaces_clock_is_set_right(container: Container, offset: int, until: int, percent: int) -> None:
    """A lease ends by the host's clock, which is ahead of the container's, or behind it."""
    container.limit(20, core_limit=80)
    lease = container.director.now + until * SECOND
    page = CoreSchedule(container.uuid(), lent_until=lease, lent_rate=80, tenants=1)
    container.write_schedules([page], clock_offset=offset * SECOND)
    container.flood()
    container.director.run(SETTLE)
    assert share(container) == has(percent)


def test_the_host_reads_the_containers_figures(container: Container) -> None:
    container.limit(30)
    container.flood()
    container.director.run(2 * SETTLE)
    data = (container.box.path / "usage/usage").read_bytes()
    times = data[usage.TIMES_OFFSET : usage.FLIGHTS_OFFSET]
    said = usage.time_at(times, usage.places(data[: usage.CARDS_END])[container.uuid()])
    assert said.used == pytest.approx(container.busy(), rel=0.02)
    assert container.director.now - said.wanted < 100 * MS
    assert said.longest == pytest.approx(MS, rel=0.1)
    assert usage.has_counts(data[: usage.CARDS_END])
    assert sum(said.waits) > 0
    assert said.throttled > SETTLE, "with a share of 30 a flood waits for most of the time"


def test_garbage_in_the_usage_region_has_a_bounded_effect(container: Container) -> None:
    """A container that overwrites its own fields is throttled for a while only, and is held to its share again."""
    container.limit(50)
    container.flood()
    container.director.run(SETTLE)
    with (container.box.path / "usage/usage").open("r+b") as file:
        file.seek(usage.TIMES_OFFSET)
        file.write(b"\xff" * usage.TIME.size)
        file.seek(usage.TIMES_OFFSET)
        file.write((-(1 << 62)).to_bytes(8, "little", signed=True))
    container.director.run(SETTLE)
    assert share(container) == has(50)


def test_a_reservation_that_was_too_large_is_returned(container: Container) -> None:
    """Between bursts of short kernels, whose launches reserve more than they use, no work is in flight."""
    container.limit(50)
    container.flood(kernel="fixed:20000", launches=40, wait=1, gap=100 * MS)
    container.director.run(SETTLE)
    reserved = [container.in_flight() for _ in container.director.steps(600 * MS, 10 * MS)]
    assert reserved.count(0) > len(reserved) * 0.9


def test_an_exclusive_card_is_not_slowed(container: Container) -> None:
    container.limit(100)
    container.flood()
    container.director.run(SETTLE)
    assert share(container) > 99
