"""vgpud and containers that go past their memory limit, with a driver library of their own: reported, or stopped."""

from __future__ import annotations

import daemons
import pytest
from container_site import MIB, Site
from daemons import wait_for

from vgpu.config import incidents, rounds
from vgpu.hook.linux import procfs

pytestmark = pytest.mark.root

BYPASS = "LD_LIBRARY_PATH=/usr/local/vgpu/driver"


class Containers:
    """Containers that hold memory of one card."""

    def __init__(self, site: Site) -> None:
        self.site, self.node, self.tree = site, site.node, site.tree()

    def holds(self, mib: int, *environment: str) -> str:
        """A container with a limit of 1 GiB whose second process holds `mib`. Returns its id."""
        before = len(self.holders())
        share = self.site.bundle(self.tree, cores="20", memory="1Gi")
        share.config["process"]["env"] += environment
        container = self.site.start(share, "sh", "-c", f"cudaprobe hold {mib} /end; true")
        wait_for(lambda: len(self.holders()) > before)
        return container

    def holders(self) -> list[int]:
        return [process["pid"] for card in self.node.read_cards() for process in card["processes"]]

    def status(self, container: str) -> str:
        return str(self.site.runtime.state(container)["status"])


@pytest.fixture
def containers(site: Site) -> Containers:
    return Containers(site)


@pytest.fixture
def daemon(site: Site) -> daemons.Daemon:
    return site.daemon


def test_a_container_past_its_limit_is_reported_and_runs_on(containers: Containers, daemon: daemons.Daemon) -> None:
    daemon.start().ready()
    containers.holds(600)
    liar = containers.holds(1500, BYPASS)
    wait_for(lambda: daemon.health()["memory"]["present"], what=daemon.text())
    (found,) = daemon.health()["memory"]["present"]
    assert (found["container"], found["limit"]) == (liar, 1 << 30)
    assert found["used"] >= 1500 * MIB
    (warning,) = (line for line in daemon.health()["warnings"] if "goes past libvcuda" in line)
    assert liar in warning
    assert containers.status(liar) == "running"
    assert daemon.health()["memory"]["stopped"] == 0
    containers.site.delete(liar)
    wait_for(lambda: not daemon.health()["memory"]["present"], what=daemon.text())


def test_by_policy_its_init_is_killed_and_no_others(containers: Containers, daemon: daemons.Daemon) -> None:
    node = containers.node
    node.change_settings(**{"limits.enforcement": "kill"})
    daemon.start().ready()
    innocents = [containers.holds(600), containers.holds(600)]
    liar = containers.holds(1500, BYPASS)
    pid = containers.site.pid(liar)
    started = procfs.start_time(pid)
    wait_for(lambda: not procfs.lives(pid, started), what=daemon.text())
    wait_for(lambda: daemon.health()["memory"]["stopped"] == 1, what=daemon.text())
    text = daemon.text()
    assert text.index("goes past libvcuda") < text.index("stopping a container that goes past its memory limit")
    daemon.rounds(3)
    listed = incidents.of_record(rounds.read(node.settings.run_dir))
    found = [(one.kind, one.container) for one in listed if one.kind != incidents.UNLIMITED_PROCESS]
    # Where a round comes before the container's end, what the hook said of the variable is listed, too.
    assert [one for one in found if one != (incidents.UNCOVERED, liar)] == [(incidents.STOPPED, liar)]
    assert [containers.status(one) for one in innocents] == ["running", "running"]
    assert daemon.health()["memory"]["found"] == 1


def test_refused_allocations_are_incidents_of_the_round(containers: Containers, daemon: daemons.Daemon) -> None:
    daemon.start().ready()
    container = containers.holds(600)
    node = containers.node
    daemon.rounds(2)
    assert rounds.read(node.settings.run_dir)["incidents"] == []
    for _ in range(2):
        containers.site.runtime.call("exec", container, "cudaprobe", "hold", "900", "/end")
    wait_for(lambda: rounds.read(node.settings.run_dir)["incidents"], what=daemon.text())
    (incident,) = incidents.of_record(rounds.read(node.settings.run_dir))
    assert (incident.kind, incident.container, incident.limit) == (incidents.OUT_OF_MEMORY, container, 1 << 30)
    assert incident.amount >= 1
