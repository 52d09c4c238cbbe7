"""Core schedules and loans with real containers: each file has the container's share, and vgpud lends idle time."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bundles
import daemons
import nodes
import pytest
from daemons import wait_for
from tenants import Tenant

from vgpu.config import claims, core_schedule, paths
from vgpu.config.core_schedule import CoreSchedule

pytestmark = pytest.mark.root

Rootfs = Callable[..., Path]
MakeBundle = Callable[..., bundles.Bundle]
LEASE = 200_000_000  #: ns
#: Seconds. On a busy machine vgpud may take a program for one that uses more than it says, and lends it nothing until
#: the mean of six looks, 5 s apart, is right again.
AUDITED = 300.0


class Lab:
    """Containers that sleep on one node, by their ids."""

    def __init__(self, node: nodes.SimulatedNode, runtime: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle) -> None:
        self.node = node
        self.runtime = runtime
        self.tree = rootfs()
        self.bundle = bundle
        self.tenants: list[Tenant] = []

    def start(self, **annotations: str) -> tuple[str, Tenant]:
        share = self.bundle(self.tree, **{"memory": "1Gi", **annotations}).command("sleep", "600")
        container, done = self.runtime.create(share)
        assert done.returncode == 0, done.stderr
        self.runtime.call("start", container, check=True)
        self.tenants.append(Tenant(int(self.runtime.state(container)["pid"])))
        return container, self.tenants[-1]

    def cores(self) -> dict[str, tuple[Any, Any]]:
        """(used, lent) by container, as vgpuctl reports them."""
        rows = json.loads(self.node.vgpuctl("status", "--output", "json").stdout)["containers"]
        return {row["container"]: (row["cores_used"], row["cores_lent"]) for row in rows}


@pytest.fixture
def lab(node: nodes.SimulatedNode, runc1: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle) -> Iterator[Lab]:
    made = Lab(node, runc1, rootfs, bundle)
    yield made
    for tenant in made.tenants:
        tenant.rest()


@pytest.fixture
def daemon(node: nodes.SimulatedNode) -> Iterator[daemons.Daemon]:
    made = daemons.Daemon(node)
    yield made
    made.kill()


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
    lab.runtime.delete(second_id)
    assert [first.page, third.page] == scheduled([first], [30, 50])
    lab.runtime.delete(third_id)
    assert first.page == CoreSchedule(first.page.uuid, tenants=1, may_borrow=1)
    assert first.inside(core_schedule.PATH).stat().st_ino == inode, "changed in place: programs have it mapped"


def test_no_process_inside_can_write_them(lab: Lab) -> None:
    container, tenant = lab.start(cores="30")
    before = tenant.inside(core_schedule.PATH).read_bytes()
    for command in (f"echo x > {core_schedule.PATH}", f"rm -f {core_schedule.PATH}", f"chmod 666 {core_schedule.PATH}"):
        done = lab.runtime.call("exec", container, "sh", "-c", command)
        assert done.returncode != 0, command
    assert tenant.inside(core_schedule.PATH).read_bytes() == before


def test_a_whole_card_has_no_schedule(lab: Lab) -> None:
    container, tenant = lab.start(cores="100")
    assert not tenant.inside(core_schedule.PATH).exists()
    assert not (Path(paths.container(lab.node.settings.run_dir, container)) / "cards").exists()


def test_a_killed_container_gives_its_share_back(lab: Lab, daemon: daemons.Daemon) -> None:
    _, first = lab.start(cores="30")
    share = lab.bundle(lab.tree, cores="20", memory="1Gi").command("sleep", "600")
    del share.config["hooks"]["poststop"]
    container, _ = lab.runtime.create(share)
    lab.runtime.call("start", container, check=True)
    assert first.page.tenants == 2
    os.kill(int(lab.runtime.state(container)["pid"]), 9)
    daemon.start().ready()
    wait_for(lambda: first.page.tenants == 1)
    assert first.page == CoreSchedule(first.page.uuid, tenants=1, may_borrow=1)


def test_a_changed_share_is_in_the_schedules_when_the_command_returns(lab: Lab) -> None:
    container, first = lab.start(cores="30")
    _, second = lab.start(cores="20")
    lab.node.vgpuctl("set", container, "--cores", "60")
    assert [first.page, second.page] == scheduled([first], [60, 20])


def test_an_idle_owners_time_is_lent_and_taken_back(lab: Lab, daemon: daemons.Daemon) -> None:
    soft_id, soft = lab.start(cores="30", core_limit="100")
    owner_id, owner = lab.start(cores="70")
    plain = soft.page
    daemon.start().ready()
    soft.flood()
    wait_for(lambda: soft.lent == 100, AUDITED)
    wait_for(lambda: (lab.cores()[soft_id][0] or 0) > 60, AUDITED)
    assert lab.cores()[soft_id][1] == 100
    assert lab.cores()[owner_id][1] == 0
    owner.flood()
    wait_for(lambda: soft.page == plain)
    assert owner.lent == 0
    owner.rest()
    wait_for(lambda: soft.lent == 100, AUDITED)


def test_without_vgpud_loans_end_and_shares_stay(lab: Lab, daemon: daemons.Daemon) -> None:
    _, soft = lab.start(cores="30", core_limit="100")
    _, owner = lab.start(cores="60")
    plain = [soft.page, owner.page]
    daemon.start().ready()
    soft.flood()
    wait_for(lambda: soft.lent == 100, AUDITED)
    daemon.kill()
    assert soft.page.lent_until <= time.monotonic_ns() + LEASE, "a loan is never for longer"
    wait_for(lambda: soft.lent == 0)
    page = soft.page
    assert page.lending(0, 0) == plain[0]
    assert owner.page == plain[1]
    third_id, third = lab.start(cores="1", core_limit="50")
    assert third.page.tenants == 3
    lab.runtime.delete(third_id)
    assert [soft.page, owner.page] == plain
    daemon.start().ready()
    wait_for(lambda: soft.lent == 100, AUDITED)


def test_high_priority_goes_first_with_idle_time(lab: Lab, daemon: daemons.Daemon) -> None:
    high_id, high = lab.start(cores="20", core_limit="100", priority="0")
    _, low = lab.start(cores="20", core_limit="100")
    assert claims.read(lab.node.settings.run_dir, high_id).priority == 0
    daemon.start().ready()
    high.flood()
    low.flood()
    wait_for(lambda: high.lent >= 70 and 20 < low.lent <= 30)


def test_garbage_in_a_region_is_survived(lab: Lab, daemon: daemons.Daemon) -> None:
    _, soft = lab.start(cores="30", core_limit="100")
    _, vandal = lab.start(cores="20", core_limit="100")
    daemon.start().ready()
    soft.flood()
    wait_for(lambda: soft.lent > 30)
    for content in (os.urandom(1 << 20), b"", b"\xff" * 100):
        vandal.inside("/usr/local/vgpu/usage/usage").write_bytes(content)
        daemon.rounds()
    assert daemon.health()["pid"] == daemon.pid
    wait_for(lambda: 75 <= soft.lent <= 80)
