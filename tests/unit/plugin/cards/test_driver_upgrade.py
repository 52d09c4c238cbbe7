"""What the plugin knows of the driver's upgrade, and what it leaves for vgpud and for the next plugin."""

from __future__ import annotations

from pathlib import Path

from vgpu.config import driver_upgrade, paths
from vgpu.config.driver_upgrade import VALID
from vgpu.plugin.cards.driver_upgrade import AGAIN, DriverUpgrade


class Node:
    """A node at the time `now`, and what vgpud reads there."""

    def __init__(self, path: Path) -> None:
        self.run, self.now = str(path), 1000.0
        self.plugin = self.restarted()

    def restarted(self) -> DriverUpgrade:
        self.plugin = DriverUpgrade(self.run, lambda: self.now)
        return self.plugin

    def look(self, later: float = 0.0) -> tuple[str, str]:
        """A round of the plugin: (what it knows, what vgpud reads then)."""
        self.now += later
        self.plugin.look()
        return self.plugin.reason, driver_upgrade.read(self.run, self.plugin.boot_id, self.now)


def test_what_the_agent_says_counts_and_reaches_vgpud(tmp_path: Path) -> None:
    node = Node(tmp_path)
    assert node.look() == ("", "")
    node.plugin.say("drain")
    assert node.look() == ("drain", "drain")
    assert [node.look(AGAIN) for _ in range(30)] == [("drain", "drain")] * 30, "with an API server that is away, too"
    node.plugin.say("restart")
    assert node.look() == ("restart", "restart")
    node.plugin.say("")
    assert node.look() == ("", "")
    assert not Path(paths.driver_upgrade(node.run)).exists()


def test_a_plugin_that_starts_believes_the_record_for_a_while(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.plugin.say("drain")
    node.look()
    node.restarted()
    assert node.look(VALID - 1) == ("drain", "drain")
    assert node.look(2.0) == ("", ""), "nobody has confirmed it, neither here nor there"
    Path(paths.driver_upgrade(node.run)).write_text("{")
    node.plugin.look()
    assert node.plugin.reason == ""
    node.plugin.say("drain")
    assert node.look() == ("drain", "drain"), "it replaces a damaged record"
