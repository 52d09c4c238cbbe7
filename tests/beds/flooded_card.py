"""A card of a simulated node that containers flood, and the part of it that each gets, by the simulator's ledger.

Its time is the wall's, or virtual.
"""

from __future__ import annotations

from pathlib import Path

import nodes
from container_site import Site
from virtual_director import SECOND, Director, wait_for


class FloodedCard:
    """The containers that flood one card, by their VGPU_SIM_GROUP."""

    def __init__(self, site: Site, load: Path) -> None:
        self.site, self.node = site, site.node
        self.tree = site.tree()
        self.load = load
        self.count = 0
        self.environment: list[str] = []
        self.director: Director | None = None

    def make_virtual(self) -> Director:
        """From now on the card's time is virtual. Before any container, on a node of two A100."""
        nodes.simctl().make_state(str(self.node.sim), "a100x2", clock="virtual", parties=1)
        self.director = Director(nodes.simctl(), self.node.sim, next(self.node.driver.rglob("libcuda.so.1")))
        return self.director

    def flood(self, **annotations: str) -> tuple[str, int]:
        """Start a container with a program that always wants more. Returns its id and its group."""
        self.count += 1
        share = self.site.bundle(self.tree, **{"memory": "1Gi", **annotations})
        share.bind(self.load, "/usr/bin/cores_load", "ro")
        share.config["process"]["env"] += [f"VGPU_SIM_GROUP={self.count}", *self.environment]
        container = self.site.start(share, "cores_load", "kernel=fixed:1000000", "wait=0", "end=600000000000")
        if director := self.director:
            wait_for(lambda: director.clock()["processes"] > self.count)
        return container, self.count

    def busy(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for card in self.node.read_cards():
            for process in card["processes"]:
                found[process["group"]] = found.get(process["group"], 0) + process["busy_ns"]
        return found

    def shares(self, director: Director) -> dict[int, float]:
        """Percent of the card that each group uses within a second from now on."""
        before = self.busy()
        director.run(SECOND)
        return {group: (busy - before.get(group, 0)) * 100 / SECOND for group, busy in self.busy().items()}
