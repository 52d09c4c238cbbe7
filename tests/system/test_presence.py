"""The presence file in real containers: all have the same, none can write it, and dead processes hold no locks."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import bundles
import nodes
import pytest
from checkout import CHECKOUT
from daemons import wait_for

from vgpu.config import core_schedule, paths

pytestmark = pytest.mark.root

Rootfs = Callable[..., Path]
MakeBundle = Callable[..., bundles.Bundle]
SOURCE = CHECKOUT / "tests/data/cuda/present.c"
INSIDE = core_schedule.PRESENCE_PATH


@pytest.fixture(scope="module")
def present(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundles.static_program(SOURCE, tmp_path_factory.mktemp("present"))


class Lab:
    """Containers of one tree, each with a share of the node's card."""

    def __init__(self, runtime: bundles.Runtime, tree: Path, bundle: MakeBundle, present: Path) -> None:
        self.runtime = runtime
        self.tree = tree
        self.bundle = bundle
        self.present = present

    def start(self, *command: str, cores: str = "20") -> str:
        share = self.bundle(self.tree, memory="1Gi", cores=cores)
        share.bind(self.present, "/usr/bin/present", "ro")
        container, done = self.runtime.create(share.command(*command))
        assert done.returncode == 0, done.stderr
        self.runtime.call("start", container, check=True)
        return container

    def sleeper(self, cores: str = "20") -> str:
        return self.start("sleep", "600", cores=cores)

    def inside(self, container: str) -> Path:
        return Path(f"/proc/{self.pid(container)}/root{INSIDE}")

    def pid(self, container: str) -> int:
        return int(self.runtime.state(container)["pid"])

    def held(self, container: str) -> str:
        """The first byte that other processes have locked, as the container sees it."""
        return self.runtime.call("exec", container, "present", INSIDE, check=True).stdout.strip()


@pytest.fixture
def lab(runc1: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle, present: Path) -> Lab:
    return Lab(runc1, rootfs(), bundle, present)


def test_all_containers_have_the_same_and_it_outlives_them(lab: Lab, node: nodes.SimulatedNode) -> None:
    first, second = lab.sleeper(), lab.sleeper()
    host = os.stat(paths.presence(node.settings.run_dir))
    for container in (first, second):
        found = lab.inside(container).stat()
        assert (found.st_dev, found.st_ino) == (host.st_dev, host.st_ino)
        assert lab.inside(container).read_bytes() == bytes(core_schedule.PRESENCE_SIZE)
    for container in (first, second):
        lab.runtime.delete(container)
    assert lab.inside(lab.sleeper()).stat().st_ino == host.st_ino


def test_a_container_finds_its_byte_by_the_inode_of_its_limits_file(lab: Lab, node: nodes.SimulatedNode) -> None:
    """The overlay shows the inode number that the file has on the host, where all of them are on one file system."""
    started = [lab.sleeper() for _ in range(2)]
    inside = [lab.inside(container).with_name("limits").stat().st_ino for container in started]
    assert inside == [os.stat(paths.limits(node.settings.run_dir, container)).st_ino for container in started]
    assert inside[0] != inside[1]


def test_no_process_inside_can_write_it(lab: Lab) -> None:
    container = lab.sleeper()
    for command in (f"echo x > {INSIDE}", f"rm -f {INSIDE}", f"chmod 666 {INSIDE}", f"truncate -s 0 {INSIDE}"):
        assert lab.runtime.call("exec", container, "sh", "-c", command).returncode != 0, command
    assert lab.inside(container).read_bytes() == bytes(core_schedule.PRESENCE_SIZE)


def test_a_lock_is_visible_to_others_and_ends_with_a_killed_process(lab: Lab) -> None:
    watcher = lab.sleeper()
    assert lab.held(watcher) == "-1"
    holder = lab.start("present", INSIDE, "4711")
    wait_for(lambda: lab.held(watcher) == "4711")
    os.kill(lab.pid(holder), 9)
    wait_for(lambda: lab.held(watcher) == "-1")


def test_a_whole_card_has_no_presence_file(lab: Lab) -> None:
    assert not lab.inside(lab.sleeper(cores="100")).exists()
