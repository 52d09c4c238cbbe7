"""Processes of shares without libvcuda: by what they map, in two looks, and never one that has it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from host import Host

from vgpu.config import limits
from vgpu.config.claims import Claim
from vgpu.config.incidents import UNCOVERED, UNLIMITED_PROCESS
from vgpu.config.limits import CardLimit
from vgpu.hook.ledger.container_processes import ContainerProcesses
from vgpu.node.daemon import unlimited_processes
from vgpu.node.daemon.incidents import Incidents
from vgpu.node.daemon.unlimited_processes import UnlimitedProcesses, loaded_instead

UUID = limits.uuid_text(bytes(range(16)))
OURS, OLD = 77, 66


def mapped(inode: int, path: str, device: str = "00:2c") -> str:
    return f"7fc626438000-7fc626454000 r-xp 0001c000 {device} {inode}    {path}\n"


LIMITER = mapped(OURS, "/usr/lib64/libcuda.so.550.1")
REAL = mapped(5, "/usr/local/vgpu/driver/libcuda.so.1")
USAGE = mapped(2, "/usr/local/vgpu/usage/usage")
PRIVATE = mapped(9, "/opt/my driver/libcuda.so.1")
ANONYMOUS = "7ffc12345000-7ffc12366000 rw-p 00000000 00:00 0                          [stack]\n7f0-7f1 rw-p 0 0:0 0\n"


@pytest.mark.parametrize(
    ("maps", "limiter", "instead"),
    [
        (ANONYMOUS + USAGE + REAL + LIMITER, OURS, None),
        (mapped(OURS | 3 << 50, "/usr/lib64/libcuda.so.1", "fe:00"), OURS, None),  # overlayfs's upper bits
        (mapped(OLD, "/usr/lib64/libcuda.so.550.1 (deleted)"), OLD, None),  # libvcuda was upgraded since
        (mapped(OURS, "/app/_internal/renamed.so"), OURS, None),
        (ANONYMOUS + PRIVATE, OURS, "/opt/my driver/libcuda.so.1"),
        (USAGE + mapped(78, "/usr/lib64/libnvidia-ml.so.550.1") + PRIVATE, OURS, "/opt/my driver/libcuda.so.1"),
        (REAL, OURS, "/usr/local/vgpu/driver/libcuda.so.1"),
        (REAL + PRIVATE, OURS, None),  # a file system whose inodes have other numbers here
        (mapped(9, "/opt/x/driver-550.bin"), OURS, ""),
        (mapped(9, "/opt/x/libcudart.so.12"), OURS, ""),
        # a claim of an earlier version
        (LIMITER, 0, None),
        (mapped(OLD, "/usr/lib64/libcuda.so.550.1 (deleted)") + REAL, 0, None),
        (PRIVATE + USAGE, 0, "/opt/my driver/libcuda.so.1"),
        ("", OURS, None),  # it has ended, or its first thread has
    ],
)
def test_what_a_process_has_loaded_instead(tmp_path: Path, maps: str, limiter: int, instead: str | None) -> None:
    host = Host(tmp_path)
    host.live(10)
    host.write("proc/10/maps", maps)
    assert loaded_instead((10, 5), limiter, frozenset({OURS}), str(host.proc)) == instead
    assert loaded_instead((10, 6), limiter, frozenset({OURS}), str(host.proc)) is None, "another process"


def test_a_process_with_more_mappings_than_are_read_is_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(tmp_path)
    host.live(10)
    host.write("proc/10/maps", PRIVATE + LIMITER)
    monkeypatch.setattr(unlimited_processes, "MAX_MAPS", len(PRIVATE))
    assert loaded_instead((10, 5), OURS, frozenset(), str(host.proc)) is None


class Node(Host):
    """Containers whose processes, and what they map, the test sets."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(path)
        self.pids: dict[str, list[tuple[int, int]]] = {}
        self.claims: list[Claim] = []
        self.silent: set[str] = set()
        self.asked = 0
        self.incidents = Incidents(lambda: self.now)
        self.found = UnlimitedProcesses(self.conditions, self, self.incidents, str(self.proc))
        monkeypatch.setattr(ContainerProcesses, "of", lambda _, claim: self.pids[claim.container])

    def call(self, claims: Iterable[Claim], work: Callable[[Claim], object]) -> dict[str, object]:
        answers = {claim.container: work(claim) for claim in claims if claim.container not in self.silent}
        self.asked += sum(len(answer) for answer in answers.values() if isinstance(answer, list))
        return answers

    def contains(self, name: str, *pids: int, maps: str = PRIVATE, **fields: object) -> Claim:
        made = self.claim(name, pids[0], 5, CardLimit(UUID, 1 << 30, 30, 30), name=f"ns/{name}/main", **fields)
        made.limiter = OURS
        self.claims.append(made)
        self.pids[name] = [(pid, 5) for pid in pids]
        for pid in pids:
            self.live(pid)
            self.write(f"proc/{pid}/comm", "python\n")
            self.write(f"proc/{pid}/maps", maps)
        return made

    def look(self, *pids: int, computes: bool = True) -> list[int]:
        """NVML lists these processes. Returns those that are found."""
        self.found.look({UUID: [(pid, computes, 1) for pid in pids]}, self.claims, frozenset())
        return [one.pid for one in self.found.present]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, monkeypatch)


def test_two_looks_name_the_process_its_container_and_its_library(node: Node) -> None:
    node.contains("c1", 10, 11)
    node.contains("c2", 20, maps=LIMITER)
    assert node.look(10, 20) == []
    assert node.look(10, 11, 20) == [10]
    (text,) = node.conditions.present.values()
    assert "container c1 (ns/c1/main): process 10 (python)" in text
    assert "/opt/my driver/libcuda.so.1" in text
    (incident,) = node.incidents.records()
    assert (incident["kind"], incident["container"], incident["amount"]) == (UNLIMITED_PROCESS, "c1", 1)
    assert incident["detail"] == "/opt/my driver/libcuda.so.1"
    assert [row["pid"] for row in node.found.figures()] == [10]
    assert node.look() == []
    assert not node.conditions.present


def test_whole_cards_graphics_and_strangers_are_left_out(node: Node) -> None:
    node.contains("c1", 10, exclusive=True)
    node.contains("c2", 20)
    for _ in range(3):
        assert node.look(10, 99) == []
        assert node.look(20, computes=False) == []


def test_a_program_that_is_executed_between_the_looks_is_no_suspect(node: Node) -> None:
    node.contains("c1", 10)
    assert node.look(10) == []
    node.write("proc/10/maps", LIMITER)
    assert node.look(10) == []
    node.write("proc/10/maps", PRIVATE)
    assert node.look(10) == []


def test_a_look_is_bounded_and_comes_round(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unlimited_processes, "MAX_LOOKED", 3)
    pids = range(10, 20)
    node.contains("c1", *pids)
    for looks in range(1, 5):
        assert node.look(*pids) == [] or looks > 3
        assert node.asked <= 3 * looks
    for _ in range(6):
        node.look(*pids)
    assert sorted(one.pid for one in node.found.present) == list(pids)


def test_a_container_that_blocks_its_reader_delays_no_other(node: Node) -> None:
    node.contains("c1", 10)
    node.contains("c2", 20)
    node.silent = {"c1"}
    node.look(10, 20)
    assert node.look(10, 20) == [20]


def test_what_the_hook_could_not_cover_is_an_incident_while_the_container_lives(node: Node) -> None:
    node.contains("c1", 10, maps=LIMITER).uncovered = ["/mnt/x/libcuda.so.1: stays"]
    node.look(10)
    (incident,) = node.incidents.records()
    assert (incident["kind"], incident["amount"], incident["detail"]) == (UNCOVERED, 1, "/mnt/x/libcuda.so.1: stays")
