"""Core schedules and loans with real containers: each file has the container's share, and vgpud lends idle time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
from container_site import Site
from daemons import wait_for
from tenants import Tenant

from vgpu.config import core_schedule
from vgpu.config.core_schedule import CoreSchedule

pytestmark = pytest.mark.root

LEASE = 200_000_000  #: ns


class Lab:
    """Containers that sleep on one node, by their ids."""

    def __init__(self, site: Site) -> None:
        self.site, self.node = site, site.node
        self.tree = site.tree()
        self.tenants: list[Tenant] = []

    def start(self, poststop: bool = True, **annotations: str) -> tuple[str, Tenant]:
        share = self.site.bundle(self.tree, **{"memory": "1Gi", **annotations})
        if not poststop:
            del share.config["hooks"]["poststop"]
        container = self.site.start(share)
        self.tenants.append(Tenant(self.site.pid(container)))
        return container, self.tenants[-1]

    def cores(self) -> dict[str, tuple[Any, Any]]:
        """(used, lent) by container, as vgpuctl reports them."""
        return {row["container"]: (row["cores_used"], row["cores_lent"]) for row in self.node.status()["containers"]}


@pytest.fixture
def lab(site: Site) -> Iterator[Lab]:
    made = Lab(site)
    yield made
    for tenant in made.tenants:
        tenant.rest()


def scheduled(tenants: list[Tenant], shares: list[int]) -> list[CoreSchedule]:
    return core_schedule.schedule(tenants[0].page.uuid, shares)


def test_schedules_follow_containers_that_start_and_end(lab: Lab) -> None:
    _, first = lab.start(cores="30")
    assert first.page == CoreSchedule(first.page.uuid, tenants=1, may_borrow=1)
    inode = first.inside(core_schedule.PATH).stat().st_ino
    second_id, second = lab.start(cores="20")
    assert [first.page, second.page] == scheduled([first], [30, 20])
    third_id, third = lab.start(cores="50")
    assert [first.page, second.page, third.page] == scheduled([first], [30, 20, 50])
    lab.site.delete(second_id)
    assert [first.page, third.page] == scheduled([first], [30, 50])
    lab.site.delete(third_id)
    assert first.page == CoreSchedule(first.page.uuid, tenants=1, may_borrow=1)
    assert first.inside(core_schedule.PATH).stat().st_ino == inode, "changed in place: programs have it mapped"


def test_a_killed_container_gives_its_share_back(lab: Lab) -> None:
    _, first = lab.start(cores="30")
    _, second = lab.start(poststop=False, cores="20")
    assert first.page.tenants == 2
    os.kill(second.pid, 9)
    lab.site.start_daemon()
    wait_for(lambda: first.page.tenants == 1)
    assert first.page == CoreSchedule(first.page.uuid, tenants=1, may_borrow=1)


def test_a_changed_share_is_in_the_schedules_when_the_command_returns(lab: Lab) -> None:
    container, first = lab.start(cores="30")
    _, second = lab.start(cores="20")
    lab.node.vgpuctl("set", container, "--cores", "60")
    assert [first.page, second.page] == scheduled([first], [60, 20])


def test_an_idle_owners_time_is_lent_and_taken_back(lab: Lab) -> None:
    soft_id, soft = lab.start(cores="30", core_limit="100")
    owner_id, owner = lab.start(cores="70")
    plain = soft.page
    lab.site.start_daemon()
    soft.flood()
    wait_for(lambda: soft.lent == 100)
    wait_for(lambda: (lab.cores()[soft_id][0] or 0) > 60)
    assert lab.cores()[soft_id][1] == 100
    assert lab.cores()[owner_id][1] == 0
    owner.flood()
    wait_for(lambda: soft.page == plain)
    assert owner.lent == 0
    owner.rest()
    wait_for(lambda: soft.lent == 100)


def test_without_vgpud_loans_end_and_shares_stay(lab: Lab) -> None:
    _, soft = lab.start(cores="30", core_limit="100")
    _, owner = lab.start(cores="60")
    plain = [soft.page, owner.page]
    lab.site.start_daemon()
    soft.flood()
    wait_for(lambda: soft.lent == 100)
    lab.site.daemon.kill()
    assert soft.page.lent_until <= time.monotonic_ns() + LEASE, "a loan is never for longer"
    wait_for(lambda: soft.lent == 0)
    page = soft.page
    assert page.lending(0, 0) == plain[0]
    assert owner.page == plain[1]
    third_id, third = lab.start(cores="1", core_limit="50")
    assert third.page.tenants == 3
    lab.site.delete(third_id)
    assert [soft.page, owner.page] == plain
    lab.site.start_daemon()
    wait_for(lambda: soft.lent == 100)
