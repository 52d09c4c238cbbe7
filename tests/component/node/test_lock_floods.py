"""A container that holds very many locks on a card's presence file is found by /proc, and named."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from cards import card
from host import Host

from vgpu.config import paths
from vgpu.config.claims import Claim
from vgpu.config.incidents import LOCK_FLOOD
from vgpu.config.limits import CardLimit
from vgpu.hook.ledger import presence
from vgpu.hook.linux import procfs
from vgpu.node.daemon import lock_floods, region_readers
from vgpu.node.daemon.incidents import Incidents
from vgpu.node.daemon.lock_floods import MANY, LockFloods
from vgpu.node.daemon.region_readers import RegionReaders

UUID, OTHER = card(0).uuid, card(1).uuid
LOCKS = """
import fcntl, os, struct, sys
file = os.open(sys.argv[1], os.O_RDONLY)
for byte in range(0, 2 * int(sys.argv[2]), 2):
    fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, byte, 1, 0))
print(flush=True)
sys.stdin.read()
"""


class Node(Host):
    """Containers of one process each, which holds locks on a file of the run directory."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.shares: dict[str, SimpleNamespace] = {}
        self.processes: list[subprocess.Popen[str]] = []
        self.incidents = Incidents()
        self.readers = RegionReaders(self.conditions)
        lender = SimpleNamespace(shares=self.shares)
        self.floods = LockFloods(
            self.settings, self.conditions, lender, self.readers, self.incidents, clock=lambda: self.now  # type: ignore[arg-type]
        )  # fmt: skip

    def container(self, name: str, uuid: str, locks: int, on: str = "", says_slow: bool = False) -> None:
        claim = Claim(name, 0, 0, [CardLimit(uuid, 1, 10, 10)], False, None, [], "/b", 1.0, f"ns/{name}/c", True)
        path = presence.path_of(self.run_dir, claim, uuid)
        Path(self.run_dir).mkdir(exist_ok=True)
        for file in (path, on or path):
            presence.ensure(self.run_dir, file)
        words = [sys.executable, "-c", LOCKS, on or path, str(locks)]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.processes.append(process)
        assert process.stdout
        assert process.stdout.readline() == "\n"
        claim.pid, claim.start_time = process.pid, procfs.start_time(process.pid)
        self.shares[name] = SimpleNamespace(claim=claim, report=SimpleNamespace(locks_slow=says_slow))

    def look(self) -> set[tuple[str, str]]:
        """A round after half a minute. Returns the holders that it found."""
        self.now += 30
        self.floods.look()
        return set(self.floods.holders)

    def close(self) -> None:
        self.readers.stop()
        for process in self.processes:
            process.communicate()


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setattr(lock_floods, "WORK", 60.0)  # a busy machine ends no look
    monkeypatch.setattr(region_readers, "TOTAL", 60.0)
    made = Node(tmp_path)
    yield made
    made.close()


def test_the_holder_is_named_while_a_container_says_that_locks_take_long(node: Node) -> None:
    node.container("holder", UUID, 2 * MANY)
    node.container("honest", UUID, 3, says_slow=True)
    node.container("elsewhere", UUID, 2 * MANY, on=f"{node.run_dir}/another-file")
    node.container("other-card", OTHER, 2 * MANY)
    assert node.look() == {("holder", UUID)}
    (text,) = node.conditions.present.values()
    assert text.startswith("file locks take too long for honest (ns/honest/c), so")
    assert text.endswith(f"held by holder (ns/holder/c) on {UUID}")
    (incident,) = node.incidents.records()
    assert (incident["kind"], incident["container"], incident["uuid"]) == (LOCK_FLOOD, "holder", UUID)
    node.shares["honest"].report.locks_slow = False
    assert node.look() == set()
    assert not node.conditions.present


def test_nobody_is_looked_at_unless_a_container_says_so(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.container("holder", UUID, 2 * MANY)
    monkeypatch.setattr(node.readers, "call", None)
    assert node.look() == set()


def test_the_common_file_of_an_earlier_version(node: Node) -> None:
    node.container("holder", UUID, 2 * MANY, on=paths.common_presence(node.run_dir))
    node.shares["holder"].claim.common_presence = None
    node.container("honest", UUID, 3, says_slow=True)
    assert node.look() == {("holder", UUID)}


def test_a_flood_whose_holder_is_not_found(node: Node) -> None:
    node.container("honest", UUID, 3, says_slow=True)
    assert node.look() == set()
    (text,) = node.conditions.present.values()
    assert text.endswith("no holder is found")
