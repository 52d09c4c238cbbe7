"""A card of a simulated node that containers flood, and the part of it that each gets, by the simulator's ledger."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import bundles
import nodes
from checkout import CHECKOUT, LOAD_SOURCES

MakeBundle = Callable[..., bundles.Bundle]
LOOK_S = 2.0
NEAR = 0.25  #: of a share, as this machine may be busy
LOOKS = 8


def compiled(directory: Path) -> Path:
    """The benchmark's load generator."""
    program = directory / "cores_load"
    include = CHECKOUT / "libvcuda/include"
    libraries = ["-ldl", "-lm", "-lpthread"]
    command = ["cc", "-O2", f"-I{include}", "-o", str(program), *LOAD_SOURCES, *libraries]
    subprocess.run(command, check=True)
    return program


class FloodedCard:
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
