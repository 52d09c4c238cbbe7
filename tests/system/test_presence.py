"""The presence files in real containers: all of a card have the same, none has another card's, none can write them, and
dead processes hold no locks.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import bundles
import pytest
from checkout import CHECKOUT
from container_site import SLEEP, Site
from daemons import wait_for

from vgpu.config import core_schedule, paths

pytestmark = pytest.mark.root

SOURCE = CHECKOUT / "tests/data/cuda/present.c"


@pytest.fixture(scope="module")
def present(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundles.static_program(SOURCE, tmp_path_factory.mktemp("present"))


class Lab:
    """Containers of one tree, each with a share of one of the node's two cards."""

    def __init__(self, site: Site, present: Path) -> None:
        self.site, self.present = site, present
        self.tree = site.tree()

    def start(self, *command: str, **request: str) -> str:
        request = {"memory": "1Gi", "cores": "20", **request}
        share = self.site.bundle(self.tree, **request).bind(self.present, "/usr/bin/present", "ro")
        return self.site.start(share, *(command or SLEEP))

    def name(self, card: int = 0) -> str:
        return core_schedule.presence_name(str(self.site.node.read_cards()[card]["uuid"]))

    def path(self, card: int = 0) -> str:
        return f"{core_schedule.PRESENCE_DIR}/{self.name(card)}"

    def inside(self, container: str, card: int = 0) -> Path:
        return Path(f"/proc/{self.site.pid(container)}/root{self.path(card)}")

    def held(self, container: str, card: int = 0) -> str:
        """The first byte that other processes have locked, as the container sees it."""
        return self.site.execute(container, "present", self.path(card)).strip()


@pytest.fixture
def lab(make_site: Callable[..., Site], present: Path) -> Lab:
    return Lab(make_site("a100x2"), present)


def test_a_container_has_its_own_cards_files_only(lab: Lab) -> None:
    """So what it locks is met by containers of its cards, and by no others, until it ends."""
    files = {card: lab.name(card) for card in (0, 1)}
    uuids = [str(card["uuid"]) for card in lab.site.node.read_cards()]
    first, second = (lab.start(**{"use-gpuuuid": uuid}) for uuid in uuids)
    both = lab.start(gpus="2")
    found = {
        container: {path.name for path in lab.inside(container).parent.iterdir()} for container in (first, second, both)
    }
    assert found == {first: {files[0]}, second: {files[1]}, both: set(files.values())}
    holder = lab.start("present", lab.path(), "4711", **{"use-gpuuuid": uuids[0]})
    wait_for(lambda: lab.held(first) == "4711")
    assert lab.held(both) == "4711"
    assert (lab.held(second, 1), lab.held(both, 1)) == ("-1", "-1")
    os.kill(lab.site.pid(holder), 9)
    wait_for(lambda: lab.held(first) == "-1")


def test_a_container_finds_its_byte_by_the_inode_of_its_limits_file(lab: Lab) -> None:
    """The overlay shows the inode number that the file has on the host, where all of them are on one file system."""
    started = [lab.start() for _ in range(2)]
    inside = [lab.inside(container).parent.with_name("limits").stat().st_ino for container in started]
    assert inside == [os.stat(paths.limits(lab.site.node.settings.run_dir, container)).st_ino for container in started]
    assert inside[0] != inside[1]
