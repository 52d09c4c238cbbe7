"""A thousand pods at full speed while plugin and kubelet are killed: no grant is lost, and none is given twice.

There are eight cards with sixteen containers on each. Plugin, hook, ledger, grants and containers (of runc) are real;
kubelet is the stand-in. The test recreates pods whose Allocate failed without a plugin, as a ReplicaSet does.
"""

from __future__ import annotations

import itertools
import random
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import nodes
import pytest
from daemons import wait_for
from kubelet import Container, Pod
from kubelet_runtimes import RuncRuntime
from pod_site import CORE, UNIT, PodSite, plugin_settings, share, short_directory

from vgpu.config import claims
from vgpu.config.errors import VgpuError
from vgpu.hook.ledger.lock import Lock
from vgpu.hook.linux import procfs

pytestmark = pytest.mark.root

CARDS, EACH = 8, 16
SEED = 5
#: The hook's errors after which kubelet starts a container again later: no room, or a hundred hooks before it.
LATER = ("no card fits", "expected the lock")


class Site(PodSite):
    """The node. `ran` are the pods that have run; `failures` those that kubelet refused, by the reason's last words."""

    def __init__(self, directory: Path, rootfs: Path) -> None:
        self.sockets = short_directory()
        self.run_dir = Path(tempfile.mkdtemp(prefix="vgpu-", dir="/dev/shm"))  # like /run, so fsync costs nothing
        settings = plugin_settings(self.sockets, **{"paths.run": str(self.run_dir)})
        node = nodes.SimulatedNode(directory / "node", "h100x8", **settings)
        node.take_inventory()
        runtime = RuncRuntime(directory / "runc", node, rootfs)
        super().__init__(node, runtime, self.sockets, backoff=0.3, backoff_limit=3, poll=0.1)
        self.start()
        self.ran: list[str] = []
        self.failures: Counter[str] = Counter()
        self.wrong: list[str] = []

    def end(self) -> None:
        try:
            super().end()
        finally:
            self.runtime.end()
            shutil.rmtree(self.sockets)
            shutil.rmtree(self.run_dir)

    def collect(self) -> None:
        """Wait until all grants have ended. Nothing starts any more, so those in doubt need no grace."""
        self.node.change_settings(**{"plugin.grant_grace": 1})
        self.plugin.kill()
        self.plugin.start()
        wait_for(lambda: not self.grants(), 300, lambda: f"{self.grants()} {self.plugin.text()[-3000:]}")

    def grants(self) -> list[str]:
        """Those that have not ended."""
        return [f"{grant.id[:8]} {grant.name}" for grant in self.node.grants()]

    def living(self) -> list[claims.Claim]:
        """The claims of living containers under the ledger's lock, which a hundred hooks want too."""
        run = self.node.settings.run_dir
        with self._locked():
            found = [claims.read(run, path.parent.name) for path in Path(run, "containers").glob("*/claim.json")]
            return [claim for claim in found if procfs.lives(claim.pid, claim.start_time)]

    @contextmanager
    def _locked(self) -> Iterator[None]:
        while True:
            with suppress(VgpuError), Lock(self.node.settings.run_dir):
                yield
                return

    def look(self) -> int:
        """Check the claims of this moment. Returns how many containers hold something."""
        living = self.living()
        cores: Counter[str] = Counter()
        memory: Counter[str] = Counter()
        for claim in living:
            for card in claim.cards:
                cores[card.uuid] += card.cores
                memory[card.uuid] += 0 if claim.exclusive else card.memory
        self.wrong += [f"{uuid}: {total} cores" for uuid, total in cores.items() if total > 100]
        room = {card["uuid"]: card["total"] for card in self.node.read_cards()}
        self.wrong += [f"{uuid}: {total} bytes" for uuid, total in memory.items() if total > room[uuid]]
        redeemed = Counter(id for claim in living for id in claim.grants)
        self.wrong += [f"grant {id} in {count} containers" for id, count in redeemed.items() if count > 1]
        return len(living)


@pytest.fixture
def site(tmp_path: Path, base_trees: dict[str, Path]) -> Iterator[Site]:
    made = Site(tmp_path, base_trees["debian"])
    yield made
    made.end()


def one_pod(site: Site, number: int, full: threading.Barrier | None) -> None:
    """Run a pod once and delete it. Its amounts are unique, so a mix-up is visible.

    The pods of the first wave stay until all of them run at the same time.
    """
    chance = random.Random(SEED * 100_003 + number)
    cores, units = chance.randint(1, 100 // EACH), chance.randint(1, 318 // EACH)
    while True:
        pod = site.run(share(cores, units, command=["sleep", "86400"]))
        wait_for(lambda pod=pod: pod.running or not pod.active, 900, f"{pod.phase} {pod.events[-1:]}")
        if pod.running:
            break
        site.failures[pod.message.rpartition("desc = ")[2][:60]] += 1
        site.kubelet.delete(pod)
        time.sleep(0.2)
    site.ran.append(pod.uid)
    site.wrong += _mixed_up(site, pod, cores, units)
    if full is not None:
        full.wait(1800)
    time.sleep(chance.random())
    site.kubelet.delete(pod)


def _mixed_up(site: Site, pod: Pod, cores: int, units: int) -> list[str]:
    """The errors in a running pod's claim and in the way it was started."""
    claim = claims.read(site.node.settings.run_dir, pod.statuses["c"].id)
    found = [(card.cores, card.memory) for card in claim.cards]
    wrong = [] if found == [(cores, units * UNIT)] else [f"{pod.uid} asked for {cores}, {units}: {found}"]
    if claim.holder is None or claim.holder.pod_uid != pod.uid:
        wrong.append(f"{pod.uid}: its claim is of {claim.holder}")
    return wrong + [line for line in pod.events if not any(words in line for words in LATER)]


class Trouble(threading.Thread):
    """Kills the plugin or kubelet after each few pods. So a slow machine has as many kills as a fast one."""

    def __init__(self, site: Site) -> None:
        super().__init__(daemon=True)
        self.site = site
        self.done = threading.Event()
        self.kills: Counter[str] = Counter()
        self.failed: BaseException | None = None

    def run(self) -> None:
        chance = random.Random(SEED)
        try:
            for victim in itertools.cycle(("plugin", "kubelet", "plugin", "both")):
                if self._is_over_after(chance.randint(0, 5), chance.uniform(0, 0.3)):
                    return
                self.kills[victim] += 1
                self._kill(victim)
        except BaseException as error:
            self.failed = error

    def _is_over_after(self, pods: int, seconds: float) -> bool:
        """Wait until so many more pods have run, and for a moment. After 0 the plugin may not be ready yet."""
        wanted = len(self.site.ran) + pods
        while len(self.site.ran) < wanted and not self.done.wait(0.02):
            pass
        return self.done.wait(seconds)

    def _kill(self, victim: str) -> None:
        if victim in ("plugin", "both"):
            self.site.plugin.kill()
        if victim in ("kubelet", "both"):
            self.site.kubelet.restart()
        if victim in ("plugin", "both"):
            self.site.plugin.start()

    def end(self) -> None:
        self.done.set()
        self.join()
        if self.failed is not None:
            raise self.failed


def test_no_grant_is_lost_and_none_given_twice(site: Site, request: pytest.FixtureRequest) -> None:
    """1,000 pods with --long, otherwise a sample."""
    count = 1000 if request.config.getoption("--long") else 60
    at_once = min(CARDS * EACH, count // 3)
    sentinel = site.run(Container("c"))  # every node has pods without cards
    trouble = Trouble(site)
    trouble.start()
    at_the_top: list[int] = []
    full = threading.Barrier(at_once, lambda: at_the_top.append(site.look()))
    with ThreadPoolExecutor(at_once) as pool:
        running = [pool.submit(one_pod, site, number, full if number < at_once else None) for number in range(count)]
        while not all(one.done() for one in running):
            site.look()
            time.sleep(0.1)
    trouble.end()
    for one in running:
        one.result()
    print(f"{count} pods, {at_the_top} at once, {dict(trouble.kills)}, refused {dict(site.failures)}")
    assert site.wrong == []
    assert trouble.kills["plugin"] > 0
    assert at_the_top == [at_once]
    assert site.living() == []
    assert sentinel.running
    site.collect()
    site.ready()
    _all_is_free(site)


def _all_is_free(site: Site) -> None:
    """Assert that each card can be allocated as a whole."""
    pods = [site.run(Container("c", {CORE: 100})) for _ in range(CARDS)]
    for pod in pods:
        wait_for(lambda pod=pod: pod.running, 300, f"{pod.message} {pod.events}")
    assert site.look() == CARDS
    assert site.wrong == []
