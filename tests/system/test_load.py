"""Many containers at once and one after the other: nothing accumulates on the host."""

from __future__ import annotations

import functools
import os
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import bpf_programs
import bundles
import nodes
import pytest
from attack_records import Attack, attack
from container_site import BOTH, SLEEP, Site, mounts_with
from daemons import wait_for

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
    held = list(Path(settings.state_dir).glob("held-time.*"))  # vgpud's own, made a minute after its start
    return {
        "mounts that name the node": len(mounts_with(str(site.node.directory.parent))),
        "descriptors of vgpud": site.daemon.open_files(),
        "children of vgpud": len(Path(f"/proc/{site.daemon.pid}/task/{site.daemon.pid}/children").read_text().split()),
        "cgroups of ours": _cgroups(cgroup),
        "files of the node's state": _files(settings.state_dir) - len(held),
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
    """The footprint while one child of the daemon waits for events of the cards and none asks NVML, after the kernel
    has freed removed objects."""

    def twice() -> dict[str, int]:
        first = look()
        time.sleep(1)
        return first if first == look() and first["children of vgpud"] == 1 else {}

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
    together, in_a_row = attack.amount(200, 16), attack.rounds(5000, 4)
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

    def __init__(self, node: nodes.SimulatedNode) -> None:
        super().__init__()
        self.ledger = Ledger(node.settings, inventories.read(node.settings.run_dir).cards)
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


HOOK_SECONDS = 60  #: what every registration of the hook gives to a start
REFUSED = ("cores free of", f"hook ran past specified timeout of {HOOK_SECONDS}")  #: by the hook, and by runc


@attack("creates and deletes by runc, all at the same time", "the node")
def test_starts_at_the_same_time(make_site: Callable[..., Site], attack: Attack) -> None:
    """With --long 500. Each start has its share or is refused with a word, the ledger has those that started, no card
    has more than itself, and vgpud does not grow.
    """
    site = make_site("h100x8")
    site.start_daemon()
    tree, count = site.tree(), attack.rounds(500, 24)
    cores = "40" if count < 100 else "2"  # a few too many for the node
    made = [site.bundle(tree, *SLEEP, cores=cores, memory="64Mi") for _ in range(count)]
    for bundle in made:
        bundle.config["hooks"]["prestart"][0]["timeout"] = HOOK_SECONDS
    site.daemon.rounds(2)
    before = (site.daemon.open_files(), rss(site.daemon.pid))
    watch = Watch(site.node)
    watch.start()
    try:
        with ThreadPoolExecutor(count) as pool:
            done = list(pool.map(lambda bundle: site.runtime.create(bundle, timeout=1200), made))
    finally:
        watch.end()
    started = {container for container, process in done if process.returncode == 0}
    lines = [process.stderr for _, process in done if process.returncode != 0]
    assert [line for line in lines if not any(word in line for word in REFUSED)] == []
    assert (watch.beyond, watch.looks > 0) == ([], True)
    assert {claim.container for claim in watch.ledger.claims() if claim.ready} == started
    assert sum(held.cores for held in watch.ledger.commitments().values()) == len(started) * int(cores)
    assert started and all(mounts_with("/usr/local/vgpu/limits", site.pid(container)) for container in started)
    site.daemon.rounds(3)
    assert site.daemon.open_files() <= before[0] + count + 2
    assert rss(site.daemon.pid) < before[1] + MOST_GROWTH
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(lambda container: site.runtime.call("delete", "--force", container, timeout=1200), started))
    assert os.listdir(paths.containers(site.node.settings.run_dir)) == []
    wait_for(
        lambda: site.daemon.open_files() <= before[0] + 2,
        what=lambda: f"{site.daemon.open_files()} files, not {before[0]}",
    )
    attack.held(count, "each has its share or a line, no card more than itself; vgpud stays as it was")


def rss(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
