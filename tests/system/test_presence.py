"""The presence file in real containers: all have the same, none can write it, and dead processes hold no locks."""

from __future__ import annotations

import os
from pathlib import Path

import bundles
import pytest
from checkout import CHECKOUT
from container_site import SLEEP, Site
from daemons import wait_for

from vgpu.config import core_schedule, paths

pytestmark = pytest.mark.root

SOURCE = CHECKOUT / "tests/data/cuda/present.c"
INSIDE = core_schedule.PRESENCE_PATH


@pytest.fixture(scope="module")
def present(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundles.static_program(SOURCE, tmp_path_factory.mktemp("present"))


class Lab:
    """Containers of one tree, each with a share of the node's card."""

    def __init__(self, site: Site, present: Path) -> None:
        self.site, self.present = site, present
        self.tree = site.tree()

    def start(self, *command: str, cores: str = "20") -> str:
        share = self.site.bundle(self.tree, memory="1Gi", cores=cores).bind(self.present, "/usr/bin/present", "ro")
        return self.site.start(share, *(command or SLEEP))

    def inside(self, container: str) -> Path:
        return Path(f"/proc/{self.site.pid(container)}/root{INSIDE}")

    def held(self, container: str) -> str:
        """The first byte that other processes have locked, as the container sees it."""
        return self.site.execute(container, "present", INSIDE).strip()


@pytest.fixture
def lab(site: Site, present: Path) -> Lab:
    return Lab(site, present)


def test_all_containers_have_the_same_and_it_outlives_them(lab: Lab, site: Site) -> None:
    first, second = lab.start(), lab.start()
    host = os.stat(paths.presence(site.node.settings.run_dir))
    for container in (first, second):
        found = lab.inside(container).stat()
        assert (found.st_dev, found.st_ino) == (host.st_dev, host.st_ino)
        assert lab.inside(container).read_bytes() == bytes(core_schedule.PRESENCE_SIZE)
    site.delete(first, second)
    assert lab.inside(lab.start()).stat().st_ino == host.st_ino


def test_a_container_finds_its_byte_by_the_inode_of_its_limits_file(lab: Lab, site: Site) -> None:
    """The overlay shows the inode number that the file has on the host, where all of them are on one file system."""
    started = [lab.start() for _ in range(2)]
    inside = [lab.inside(container).with_name("limits").stat().st_ino for container in started]
    assert inside == [os.stat(paths.limits(site.node.settings.run_dir, container)).st_ino for container in started]
    assert inside[0] != inside[1]


def test_a_lock_is_visible_to_others_and_ends_with_a_killed_process(lab: Lab) -> None:
    watcher = lab.start()
    assert lab.held(watcher) == "-1"
    holder = lab.start("present", INSIDE, "4711")
    wait_for(lambda: lab.held(watcher) == "4711")
    os.kill(lab.site.pid(holder), 9)
    wait_for(lambda: lab.held(watcher) == "-1")
