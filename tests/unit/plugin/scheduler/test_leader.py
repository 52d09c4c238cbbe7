"""The election: one holder at a time, with clocks that are apart, faults, and the end of a lease."""

from __future__ import annotations

import io
from typing import Any

import pytest
from gpu_clusters import Clock, Server

from vgpu.node.service.log import Conditions, Log
from vgpu.plugin.scheduler.leader import LEASE, RENEW_DEADLINE, Leader


def replica(leases: Server, name: str, clock: Clock, wall: float = 0.0) -> Leader:
    conditions = Conditions(Log(io.StringIO()))
    return Leader(leases, "kube-system", "x", name, conditions, clock, lambda: clock() + wall)


def lease(leases: Server) -> Any:
    (found,) = leases.objects.values()
    return found["spec"]


def test_one_replica_leads() -> None:
    leases, clock = Server(), Clock()
    one, other = replica(leases, "one", clock), replica(leases, "other", clock)
    assert one.attempt()
    assert not other.attempt()
    assert (one.leads(), other.leads()) == (True, False)


@pytest.mark.parametrize("wall", [-10_000.0, 0.0, 10_000.0])
def test_a_replica_takes_over_when_the_lease_has_not_changed_for_its_duration(wall: float) -> None:
    leases, clock = Server(), Clock()
    one, other = replica(leases, "one", clock), replica(leases, "other", clock, wall)
    assert one.attempt()
    assert not other.attempt()
    clock.now += LEASE - 1
    assert not other.attempt()
    clock.now += 2
    assert other.attempt()
    assert (one.leads(), other.leads()) == (False, True)
    assert lease(leases)["leaseTransitions"] == 1


def test_a_leader_that_cannot_renew_ends_before_another_can_begin() -> None:
    leases, clock = Server(), Clock()
    one = replica(leases, "one", clock)
    assert one.attempt()
    leases.faults = ["unreachable"]
    clock.now += RENEW_DEADLINE
    assert not one.attempt()
    assert not one.leads()
    assert RENEW_DEADLINE < LEASE


def test_a_lease_that_is_given_up_is_taken_at_once() -> None:
    leases, clock = Server(), Clock()
    one, other = replica(leases, "one", clock), replica(leases, "other", clock)
    assert one.attempt()
    one.release()
    assert not one.leads()
    assert other.attempt()


def test_two_that_take_a_lease_at_once_do_not_both_get_it(monkeypatch) -> None:
    leases, clock = Server(), Clock()
    one, other = replica(leases, "one", clock), replica(leases, "other", clock)
    assert one.attempt()
    one.release()
    (path,) = leases.objects
    stale = leases.get(path)
    assert replica(leases, "third", clock).attempt()
    monkeypatch.setattr(leases, "get", lambda path: stale)
    assert not other.attempt()


def test_a_lease_that_another_takes_while_it_is_given_up_stays_the_others(monkeypatch) -> None:
    leases, clock = Server(), Clock()
    one = replica(leases, "one", clock)
    assert one.attempt()
    (path,) = leases.objects
    mine = leases.get(path)
    leases.patch(path, {"spec": {"holderIdentity": "other"}})
    monkeypatch.setattr(leases, "get", lambda path: mine)
    one.release()
    assert lease(leases)["holderIdentity"] == "other"


def let_another_lead(leases: Server, clock: Clock) -> None:
    """The holder pauses for a minute; meanwhile another replica leads, and gives the lease up."""
    other = replica(leases, "other", clock)
    assert not other.attempt()
    clock.now += 60
    assert other.attempt()
    other.release()


def test_a_leader_that_was_asleep_never_leads_again() -> None:
    """Nobody holds the lease any more, but the decisions of the leader between are unknown to the first one."""
    leases, clock = Server(), Clock()
    one = replica(leases, "one", clock)
    assert one.attempt()
    let_another_lead(leases, clock)
    assert not one.attempt()
    assert not one.leads()


def test_a_leader_that_sleeps_between_looking_at_the_clock_and_at_the_lease_does_not_take_it_again() -> None:
    leases, clock = Server(), Clock()
    one = replica(leases, "one", clock)
    assert one.attempt()
    let_another_lead(leases, clock)
    one.clock = lambda: 1000.0  # a clock that stood still with the process
    assert not one.attempt()
    assert lease(leases)["holderIdentity"] == ""
