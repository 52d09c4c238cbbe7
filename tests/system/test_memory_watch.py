"""vgpud and containers that go past their memory limit, with a driver library of their own: reported, or stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import bundles
import daemons
import nodes
import pytest
from daemons import wait_for

from vgpu.config import incidents, rounds
from vgpu.config.settings import Settings
from vgpu.hook.linux import procfs

pytestmark = pytest.mark.root

Rootfs = Callable[..., Path]
MakeBundle = Callable[..., bundles.Bundle]
MIB = 1 << 20
BYPASS = "LD_LIBRARY_PATH=/usr/local/vgpu/driver"


@pytest.fixture
def daemon(node: nodes.SimulatedNode) -> Iterator[daemons.Daemon]:
    made = daemons.Daemon(node)
    yield made
    made.kill()


class Containers:
    """Containers that hold memory of one card."""

    def __init__(self, node: nodes.SimulatedNode, runtime: bundles.Runtime, tree: Path, bundle: MakeBundle) -> None:
        self.node = node
        self.runtime = runtime
        self.tree = tree
        self.bundle = bundle

    def holds(self, mib: int, *environment: str) -> str:
        """A container with a limit of 1 GiB whose second process holds `mib`. Returns its id."""
        before = len(self.holders())
        share = self.bundle(self.tree, cores="20", memory="1Gi")
        share.command("sh", "-c", f"cudaprobe hold {mib} /end; true")
        share.config["process"]["env"] += environment
        container, done = self.runtime.create(share)
        assert done.returncode == 0, done.stderr
        self.runtime.call("start", container, check=True)
        wait_for(lambda: len(self.holders()) > before)
        return container

    def holders(self) -> list[int]:
        return [process["pid"] for card in self.node.read_cards() for process in card["processes"]]


@pytest.fixture
def containers(node: nodes.SimulatedNode, runc1: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle) -> Containers:
    return Containers(node, runc1, rootfs(), bundle)


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
    assert containers.runtime.state(liar)["status"] == "running"
    assert daemon.health()["memory"]["stopped"] == 0
    containers.runtime.delete(liar)
    wait_for(lambda: not daemon.health()["memory"]["present"], what=daemon.text())


def test_by_policy_its_init_is_killed_and_no_others(containers: Containers, daemon: daemons.Daemon) -> None:
    node = containers.node
    values = {**node.settings.record()["settings"], "limits.enforcement": "kill"}  # type: ignore[dict-item]
    node.settings = Settings(values, "testnode", "test")
    node.write_settings()
    daemon.start().ready()
    innocents = [containers.holds(600), containers.holds(600)]
    liar = containers.holds(1500, BYPASS)
    pid = containers.runtime.state(liar)["pid"]
    started = procfs.start_time(pid)
    wait_for(lambda: not procfs.lives(pid, started), what=daemon.text())
    wait_for(lambda: daemon.health()["memory"]["stopped"] == 1, what=daemon.text())
    text = daemon.text()
    assert text.index("goes past libvcuda") < text.index("stopping a container that goes past its memory limit")
    daemon.rounds(3)
    (incident,) = incidents.of_record(rounds.read(node.settings.run_dir))
    assert (incident.kind, incident.container) == (incidents.STOPPED, liar)
    assert [containers.runtime.state(one)["status"] for one in innocents] == ["running", "running"]
    assert daemon.health()["memory"]["found"] == 1


def test_after_a_restart_of_vgpud_violators_are_found_and_who_was_lowered_meanwhile_is_not(
    containers: Containers, daemon: daemons.Daemon
) -> None:
    """The claim has the limit of before, so vgpud needs no memory of its own."""
    lowered = containers.holds(600)
    containers.node.vgpuctl("set", lowered, "--memory", "256Mi")
    liar = containers.holds(1500, BYPASS)
    for _ in range(2):
        daemon.start().ready()
        wait_for(lambda: daemon.health()["memory"]["present"], what=daemon.text())
        daemon.rounds(3)
        assert [one["container"] for one in daemon.health()["memory"]["present"]] == [liar]
        daemon.kill()


def test_refused_allocations_are_incidents_of_the_round(containers: Containers, daemon: daemons.Daemon) -> None:
    daemon.start().ready()
    container = containers.holds(600)
    node = containers.node
    daemon.rounds(2)
    assert rounds.read(node.settings.run_dir)["incidents"] == []
    for _ in range(2):
        containers.runtime.call("exec", container, "cudaprobe", "hold", "900", "/end")
    wait_for(lambda: rounds.read(node.settings.run_dir)["incidents"], what=daemon.text())
    (incident,) = incidents.of_record(rounds.read(node.settings.run_dir))
    assert (incident.kind, incident.container, incident.limit) == (incidents.OUT_OF_MEMORY, container, 1 << 30)
    assert incident.amount >= 1
