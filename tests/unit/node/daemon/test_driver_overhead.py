"""The driver's own memory for containers: computed from NVML's rows and usage regions, written to limits files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from host import Host
from region_reading import InProcess

from vgpu.config import limits, paths
from vgpu.config.limits import CardLimit
from vgpu.hook.ledger import container_processes
from vgpu.hook.linux import procfs, staleness
from vgpu.node.daemon.driver_overhead import DriverOverhead

MIB = 1 << 20
UUIDS = [limits.uuid_text(bytes([number]) * 16) for number in range(1, 3)]
SELF = os.getpid()
STRANGER = 1
NOW = 1_000_000.0


class Node(Host):
    """One container whose only process is this one, with a card or two, and its region in a tree of the test."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(path)
        self.regions: dict[str, int] | None = {}
        self.pids = [SELF]
        self.clock = NOW
        self.use = DriverOverhead(self.settings, InProcess(), clock=lambda: self.clock)
        monkeypatch.setattr("vgpu.node.daemon.driver_overhead.region_of", self._region)
        monkeypatch.setattr(
            container_processes.ContainerProcesses, "of", lambda _self, _claim: [(pid, 1) for pid in self.pids]
        )

    def _region(self, _pid: int, _start: int, _decode: object, _proc: str) -> dict[str, int]:
        return {} if self.regions is None else {"": 0, **self.regions}

    def container(self, name: str = "one", exclusive: bool = False) -> Path:
        cards = [CardLimit(uuid, 1 << 30) for uuid in UUIDS]
        self.claim(name, SELF, procfs.start_time(SELF), *cards, exclusive=exclusive, boot_id=staleness.boot_id())
        return Path(paths.limits(self.run_dir, name))

    def look(self, used: dict[int, int], allocated: int | None = None, meanwhile: int | None = None) -> bool:
        """Run a round. NVML reports `used` by pid on the first card. The region has allocations before and after."""
        self.regions = None if allocated is None else {UUIDS[0]: allocated}
        self.use.before()
        if meanwhile is not None:
            self.regions = {UUIDS[0]: meanwhile}
        return self.use.after({UUIDS[0]: [(pid, True, memory) for pid, memory in used.items()]}, 60.0)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, monkeypatch)


def overhead_in(file: Path) -> tuple[int, int]:
    found = limits.overheads(file.read_bytes())
    assert found[UUIDS[1]] == (0, 0)
    return found[UUIDS[0]]


def test_memory_beyond_the_allocations_is_written_when_it_was_seen_twice(node: Node) -> None:
    file = node.container()
    assert node.look({SELF: 500 * MIB}, 100 * MIB)
    assert overhead_in(file) == (0, 0)
    assert not node.look({SELF: 500 * MIB}, 100 * MIB)
    assert overhead_in(file) == (400 * MIB, int(NOW) + 60)
    assert limits.decode(file.read_bytes())[2] % 2 == 0


def test_it_is_renewed_and_sinks_at_once_and_rises_in_the_second_round(node: Node) -> None:
    file = node.container()
    for used, figure in ((500, 0), (500, 500), (700, 500), (700, 700), (300, 300), (0, 0)):
        node.clock += 15
        node.look({SELF: used * MIB}, 0)
        assert overhead_in(file) == ((figure * MIB, int(node.clock) + 60) if figure else (0, 0))


def test_memory_allocated_or_freed_during_the_round_is_no_overhead(node: Node) -> None:
    file = node.container()
    for allocated, meanwhile in ((300, 100), (100, 300), (300, 0)):
        node.look({SELF: 310 * MIB}, allocated * MIB, meanwhile * MIB)
    assert overhead_in(file)[0] == 10 * MIB


def test_only_the_containers_own_processes_count(node: Node) -> None:
    file = node.container()
    for _ in range(2):
        node.look({SELF: 5 * MIB, STRANGER: 900 * MIB}, 0)
    assert overhead_in(file)[0] == 5 * MIB
    node.pids = [SELF, STRANGER]
    for _ in range(2):
        node.look({SELF: 5 * MIB, STRANGER: 900 * MIB}, 0)
    assert overhead_in(file)[0] == 905 * MIB


def test_without_a_readable_region_nothing_is_written(node: Node) -> None:
    """Otherwise allocations would count as overhead."""
    file = node.container()
    for _ in range(2):
        node.look({SELF: 500 * MIB})
    assert overhead_in(file) == (0, 0)


def test_a_region_that_claims_too_much_harms_nobody(node: Node) -> None:
    file = node.container()
    for _ in range(2):
        node.look({SELF: 500 * MIB}, 1 << 70)
    assert overhead_in(file) == (0, 0)


def test_whole_cards_and_files_that_are_gone_or_damaged_are_left_alone(node: Node) -> None:
    whole, gone, damaged = node.container("whole", exclusive=True), node.container("gone"), node.container("damaged")
    before = whole.read_bytes()
    gone.unlink()
    damaged.write_bytes(b"garbage")
    fine = node.container("fine")
    for _ in range(2):
        node.look({SELF: 500 * MIB}, 0)
    assert (whole.read_bytes(), gone.exists(), damaged.read_bytes()) == (before, False, b"garbage")
    assert overhead_in(fine)[0] == 500 * MIB


def test_idle_containers_files_are_not_touched(node: Node) -> None:
    file = node.container()
    for _ in range(2):
        node.look({STRANGER: 500 * MIB}, 0)
    assert limits.decode(file.read_bytes())[2] == 2
