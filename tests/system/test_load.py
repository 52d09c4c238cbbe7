"""Many containers at once and one after the other: nothing accumulates on the host."""

from __future__ import annotations

import functools
import os
import subprocess
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import bpf_programs
import bundles
import pytest
from attack_records import Attack, attack
from container_site import BOTH, Site, mounts_with
from daemons import Daemon, wait_for
from fault_bed import NEIGHBOUR, Bed, Container, Tools

from vgpu.config import inventory as inventories
from vgpu.config import paths
from vgpu.hook.ledger.ledger import Ledger
from vgpu.hook.linux import bpf

pytestmark = pytest.mark.root


@pytest.fixture
def site(site: Site) -> Site:
    site.start_daemon()
    return site


def footprint(site: Site, tree: Path, cgroup: str) -> dict[str, int]:
    """The objects on the host that a container may leave behind."""
    settings = site.node.settings
    return {
        "mounts that name the node": len(mounts_with(str(site.node.directory.parent))),
        "descriptors of vgpud": site.daemon.open_files(),
        "children of vgpud": len(Path(f"/proc/{site.daemon.pid}/task/{site.daemon.pid}/children").read_text().split()),
        "cgroups of ours": _cgroups(cgroup),
        "files of the node's state": _files(settings.state_dir),
        "files of the node's run": _files(settings.run_dir) - len(list(site.node.run_dir.glob("hook.log*"))),
        "files in the root file system": _files(str(tree)),
    }


def _cgroups(name: str) -> int:
    """The cgroups below `name` in every hierarchy."""
    tops = [f"/sys/fs/cgroup{name}", *(f"{path}{name}" for path in Path("/sys/fs/cgroup").iterdir())]
    return sum(len(names) for top in tops for _, names, _ in os.walk(top))


def _programs() -> set[int]:
    """The device programs with the hook's name, of all nodes on this machine."""
    found = set()
    for number in bpf_programs.ids():
        try:
            fd = bpf.prog_get_fd_by_id(number)
        except OSError:  # it has ended meanwhile
            continue
        if bpf.prog_info(fd).name.startswith(b"vgpu"):
            found.add(number)
        os.close(fd)
    return found


def _files(directory: str) -> int:
    return sum(len(names) + len(files) for _, names, files in os.walk(directory))


def quiet(look: Callable[[], dict[str, int]]) -> dict[str, int]:
    """The footprint while the daemon does not query NVML, after the kernel has freed removed objects."""

    def twice() -> dict[str, int]:
        first = look()
        time.sleep(1)
        return first if first == look() and not first["children of vgpud"] else {}

    return wait_for(twice, what=lambda: f"it never was quiet: {look()}")  # type: ignore[no-any-return]


def run_some(site: Site, make: Callable[[], bundles.Bundle], number: int, at_once: int) -> list[str]:
    """Run `number` containers to their end, `at_once` at a time. Returns the errors."""
    with ThreadPoolExecutor(at_once) as pool:
        found = pool.map(lambda _: site.runtime.run(make()), range(number))
        return [done.stderr for done in found if done.returncode != 0]


@BOTH
@attack("starts and stops by runc, many at once, then one after the other", "the node")
def test_starts_and_stops_leave_nothing(site: Site, cgroup: str, attack: Attack) -> None:
    """With --long 200 at once and 5,000 in a row on each cgroup version. Nothing accumulates; the ledger is empty."""
    tree = site.tree()

    def make() -> bundles.Bundle:
        share = site.bundle(tree, cores="1", memory="64Mi")
        share.config["linux"]["cgroupsPath"] = f"{cgroup}/{uuid.uuid4().hex[:8]}"
        return share

    assert run_some(site, make, 2, 1) == []  # the first start makes directories and the log
    look = functools.partial(footprint, site, tree, cgroup)
    before, programs = quiet(look), _programs()
    together, in_a_row = attack.amount(200, 40), attack.rounds(5000, 10)
    assert run_some(site, make, together, together) == []
    late = site.daemon.health()["reaper"]["released"]  # of many, some poststop hooks wait longer than the reaper does
    assert run_some(site, make, in_a_row, 1) == []
    assert site.node.held() == set()
    ours = _programs() - programs  # and those of other tests, which end with their containers
    site.daemon.rounds(1)
    after = quiet(look)
    wait_for(lambda: not ours & _programs(), 300, "a device program stays")
    assert {name: (before[name], value) for name, value in after.items() if value > before[name]} == {}
    assert site.daemon.health()["reaper"]["released"] == late
    assert [item["cores_held"] for item in site.node.status()["cards"]] == [0, 0]
    outcome = "no growth of mounts, descriptors, device programs, cgroups or files; the ledger is empty"
    attack.held(together + in_a_row, outcome)


MOST_GROWTH = 16 << 20  #: bytes of vgpud for hundreds of containers


class Watch(threading.Thread):
    """Looks at what is committed, while others start."""

    def __init__(self, bed: Bed) -> None:
        super().__init__()
        self.ledger = Ledger(bed.node.settings, inventories.read(bed.node.settings.run_dir).cards)
        self.over = threading.Event()
        self.beyond: list[str] = []
        self.looks = 0

    def run(self) -> None:
        while not self.over.wait(0.2):
            self.looks += 1
            for card, held in self.ledger.commitments().items():
                if held.cores > 100 or held.exclusive:
                    self.beyond.append(f"{card}: {held.cores} cores")

    def end(self) -> None:
        self.over.set()
        self.join()


def at_once(bed: Bed, containers: list[Container], stage: str) -> list[str]:
    """Call the hook for all containers at the same time. Returns the lines of those that failed."""
    running = []
    for container in containers:
        state = container.bundle.path / "state.json"
        state.write_bytes(container.state())
        with state.open("rb") as stdin, (container.bundle.path / "line").open("wb") as line:
            command = [bed.node.hook, "--config", bed.node.config, stage]
            running.append(subprocess.Popen(command, stdin=stdin, stdout=line, stderr=line))
    failed = [container for container, process in zip(containers, running) if process.wait(500)]
    return [(container.bundle.path / "line").read_text() for container in failed]


@attack("starts by the hook, all at the same time, and stops", "the node")
def test_starts_at_the_same_time(
    tmp_path: Path, base_trees: dict[str, Path], attack: Attack, request: pytest.FixtureRequest
) -> None:
    """With --long 500. Each has its share, no card has more than itself, and vgpud does not grow."""
    bed = Bed(tmp_path, Tools(tmp_path), base_trees["debian"], f"/vgpu-test-{uuid.uuid4().hex[:8]}", profile="h100x8")
    request.addfinalizer(bed.close)
    daemon = Daemon(bed.node).start().ready()
    request.addfinalizer(daemon.kill)
    count = attack.rounds(500, 30)
    containers = [bed.container((1, 1)) for _ in range(count)]
    daemon.rounds(2)
    before = (daemon.open_files(), rss(daemon.pid))
    watch = Watch(bed)
    watch.start()
    try:
        assert at_once(bed, containers, "prestart") == []
    finally:
        watch.end()
    assert (watch.beyond, watch.looks > 0) == ([], True)
    claimed = {claim.container: claim for claim in watch.ledger.claims()}
    assert claimed.keys() >= {container.id for container in containers}
    assert all(claim.ready for claim in claimed.values())
    assert sum(held.cores for held in watch.ledger.commitments().values()) == count + NEIGHBOUR[0]
    daemon.rounds(3)
    assert daemon.open_files() <= before[0] + count + 2
    assert rss(daemon.pid) < before[1] + MOST_GROWTH
    for container in containers:
        bed.end(container)
    assert at_once(bed, containers, "poststop") == []
    assert os.listdir(paths.containers(bed.node.settings.run_dir)) == [bed.neighbour.id]
    wait_for(lambda: daemon.open_files() <= before[0] + 2, what=lambda: f"{daemon.open_files()} files, not {before[0]}")
    attack.held(count, "each has its share, no card more than itself; files and memory of vgpud stay as they were")


def rss(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
