"""When vgpud removes copies of libvcuda: an upgrade, a downgrade, and containers that have them."""

from __future__ import annotations

from pathlib import Path

import pytest
from host import Host

from vgpu.config.inventory import Inventory, LimiterCopy
from vgpu.node.daemon.copy_removal import GRACE, SWEEP, CopyRemoval


class Node(Host):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.state, self.run = path / "state", path / "run"
        self.removal = CopyRemoval(self.settings, self.conditions.log, lambda: self.now)
        self.inventory("550.1", "aa")

    def inventory(self, driver: str, build: str) -> None:
        path = self.state / "vcuda" / f"{driver}-{build}" / "libcuda.so.1"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"copy")
        copies = [LimiterCopy("libcuda.so.1", "1:2:3:4", build, str(path), "digest", 2)]
        self.found: Inventory | None = Inventory(driver, "", 0.0, [], [], [], [], copies)

    def container(self, name: str) -> Path:
        path = self.run / "containers" / name
        path.mkdir(parents=True)
        return path

    def look(self, seconds: float = SWEEP + 1) -> list[str]:
        """The copies that are there after another round."""
        self.now += seconds
        self.removal.look(self.found)
        return sorted(path.name for path in (self.state / "vcuda").iterdir())


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_copy_goes_when_neither_driver_nor_package_is_current(node: Node) -> None:
    node.look()
    node.inventory("580.1", "bb")
    assert node.look() == ["550.1-aa", "580.1-bb"], "a hook may have read the older inventory"
    assert node.look(GRACE + SWEEP) == ["580.1-bb"]
    assert "550.1-aa" in node.log.getvalue()


@pytest.mark.parametrize(("driver", "build"), [("550.1", "bb"), ("580.1", "aa")])
def test_a_copy_of_this_driver_or_this_package_stays(node: Node, driver: str, build: str) -> None:
    node.inventory(driver, build)
    for _ in range(4):
        assert node.look() == sorted(["550.1-aa", f"{driver}-{build}"])


def test_a_copy_stays_until_the_containers_of_its_time_have_ended(node: Node) -> None:
    directory = node.container("c1")
    node.inventory("580.1", "bb")
    node.look()
    node.container("c2")  # within the grace: its hook may have read the older inventory
    node.look(GRACE - 1)
    node.look()
    directory.rmdir()
    assert node.look() == ["550.1-aa", "580.1-bb"]
    (node.run / "containers/c2").rmdir()
    node.container("c3")  # later: it has the newer copy
    assert node.look() == ["580.1-bb"]


def test_a_return_to_the_older_driver_keeps_its_copy(node: Node) -> None:
    node.inventory("580.1", "bb")
    node.look()
    node.inventory("550.1", "aa")
    node.look()
    node.inventory("580.1", "bb")
    assert node.look() == ["550.1-aa", "580.1-bb"], "the grace begins again"


@pytest.mark.parametrize("copies", [None, []])
def test_nothing_goes_while_nothing_is_known(node: Node, copies: list[LimiterCopy] | None) -> None:
    node.inventory("580.1", "bb")
    node.found = None if copies is None else Inventory("580.1", "", 0.0, [], [], [], [], copies)
    for _ in range(4):
        assert node.look() == ["550.1-aa", "580.1-bb"]
