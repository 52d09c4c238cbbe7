"""Core shares end to end: containers by runc that flood one card, the hook's schedules, libvcuda's throttle, loans.

The tests run in real time, so the bounds are wide. The benchmark measures how exact shares are (tests/bench/cores.py).
Shares are measured by the simulator's ledger. Where the host of a virtual machine takes a third of its processors for
some seconds (steal in /proc/stat), two containers that always have work got 70 percent of a card together.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import bundles
import daemons
import nodes
import pytest
from checkout import CHECKOUT, LOAD_SOURCES

pytestmark = [
    pytest.mark.root,
    pytest.mark.flaky(reruns=1),  # real time: other programs of the machine may delay a measurement
]

Rootfs = Callable[..., Path]
MakeBundle = Callable[..., bundles.Bundle]
SETTLE_S, LOOK_S = 1.5, 2.0
NEAR = 0.25  #: of a share, as this machine may be busy
LOOKS = 8


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The benchmark's load generator."""
    program = tmp_path_factory.mktemp("load") / "cores_load"
    include = CHECKOUT / "libvcuda/include"
    libraries = ["-ldl", "-lm", "-lpthread"]
    command = ["cc", "-O2", f"-I{include}", "-o", str(program), *LOAD_SOURCES, *libraries]
    subprocess.run(command, check=True)
    return program


class Card:
    """The containers that flood one card, by their VGPU_SIM_GROUP."""

    def __init__(
        self, node: nodes.SimulatedNode, runtime: bundles.Runtime, tree: Path, bundle: MakeBundle, load: Path
    ) -> None:
        self.node = node
        self.runtime = runtime
        self.tree = tree
        self.bundle = bundle
        self.load = load
        self.count = 0
        self.environment: list[str] = []

    def flood(self, **annotations: str) -> tuple[str, int]:
        """Start a container with a program that always wants more. Returns its id and its group."""
        self.count += 1
        share = self.bundle(self.tree, **{"memory": "1Gi", **annotations})
        share.bind(self.load, "/usr/bin/cores_load", "ro")
        share.config["process"]["env"] += [f"VGPU_SIM_GROUP={self.count}", *self.environment]
        share.command("cores_load", "kernel=fixed:1000000", "wait=0", "end=600000000000")
        container, done = self.runtime.create(share)
        assert done.returncode == 0, done.stderr
        self.runtime.call("start", container, check=True)
        return container, self.count

    def busy(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for card in self.node.read_cards():
            for process in card["processes"]:
                found[process["group"]] = found.get(process["group"], 0) + process["busy_ns"]
        return found

    def shares(self) -> dict[int, float]:
        """Percent of the card that each group uses within LOOK_S."""
        before, begin = self.busy(), time.monotonic()
        time.sleep(LOOK_S)
        length = (time.monotonic() - begin) * 1e9
        return {group: (busy - before.get(group, 0)) * 100 / length for group, busy in self.busy().items()}

    def assert_shares(self, expected: dict[int, float]) -> None:
        """In one look of LOOKS all containers get their shares, and in none more. A busy machine delays programs."""
        for _ in range(LOOKS):
            found = self.shares()
            assert all(found[group] <= share * (1 + NEAR) for group, share in expected.items()), found
            if all(found[group] >= share * (1 - NEAR) for group, share in expected.items()):
                return
        raise AssertionError(f"expected {expected}, found {found}")


@pytest.fixture
def card(node: nodes.SimulatedNode, runc1: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle, load: Path) -> Card:
    return Card(node, runc1, rootfs(), bundle, load)


@pytest.fixture
def daemon(node: nodes.SimulatedNode) -> Iterator[daemons.Daemon]:
    made = daemons.Daemon(node)
    yield made
    made.kill()


def test_hard_shares_without_any_daemon(card: Card) -> None:
    _, first = card.flood(cores="60")
    _, second = card.flood(cores="30")
    time.sleep(SETTLE_S)
    card.assert_shares({first: 60, second: 30})


def test_a_soft_share_uses_an_idle_card_and_gives_it_back(card: Card, daemon: daemons.Daemon) -> None:
    daemon.start().ready()
    _, soft = card.flood(cores="30", core_limit="100")
    time.sleep(SETTLE_S)
    card.assert_shares({soft: 95})
    owner_id, owner = card.flood(cores="70")
    time.sleep(SETTLE_S)
    card.assert_shares({soft: 30, owner: 70})
    card.runtime.delete(owner_id)
    time.sleep(SETTLE_S)
    card.assert_shares({soft: 95})
    daemon.kill()
    time.sleep(SETTLE_S)
    card.assert_shares({soft: 30})
    daemon.start().ready()
    time.sleep(SETTLE_S)
    card.assert_shares({soft: 95})


def test_a_changed_share_takes_effect_at_once(card: Card) -> None:
    container, changed = card.flood(cores="20")
    time.sleep(SETTLE_S)
    card.assert_shares({changed: 20})
    card.node.vgpuctl("set", container, "--cores", "80")
    time.sleep(0.2)
    card.assert_shares({changed: 80})


def test_a_container_that_bypasses_libvcuda_is_reported(card: Card, daemon: daemons.Daemon) -> None:
    """It loads the driver's own library. Its usage region shows no use, but NVML does."""
    daemon.start().ready()
    _, honest = card.flood(cores="30")
    card.environment = ["LD_LIBRARY_PATH=/usr/local/vgpu/driver"]
    liar_id, liar = card.flood(cores="30", core_limit="90")
    warnings = daemons.wait_for(
        lambda: [line for line in daemon.health().get("warnings", []) if liar_id in line], timeout=120
    )
    assert "reports 0 % of at most 90 %, but NVML measures" in warnings[0]
    assert len([line for line in daemon.health()["warnings"] if "NVML measures" in line]) == 1
    rows = {row["container"]: row for row in daemon.health()["cores"]}
    assert rows[liar_id]["doubted"] is True
    assert rows[liar_id]["lent"] == 0
    assert card.shares()[liar] > card.shares()[honest]
