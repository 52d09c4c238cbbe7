"""Regions are read for many containers, of which some block their readers: they are held back, probed and named."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemons import wait_for
from host import Host

from vgpu.config import limits, usage
from vgpu.config.claims import Claim
from vgpu.node.daemon import region_readers
from vgpu.node.daemon.region_readers import RegionReaders
from vgpu.node.daemon.usage_regions import SAME, Regions

REPORTED = "blocks the host's reads of its usage region"


class Node(Host):
    """Containers of a made-up /proc. The reader of one that blocks waits in the kernel, for the lock of a file."""

    CARD = limits.uuid_text(bytes(range(16)))

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(path)
        self.now = 0.0
        self.locks: dict[int, int] = {}
        self.readers = RegionReaders(self.conditions, str(self.proc), lambda: self.now)
        self.claims = [self.container(f"c{number}", 100 + number) for number in range(4)]
        answer = Regions.answer

        def may_wait(regions: Regions, request: object) -> object:
            assert isinstance(request, list)
            self.pass_lock(request[0])
            return answer(regions, request)

        monkeypatch.setattr(Regions, "answer", may_wait)
        monkeypatch.setattr(region_readers, "TOTAL", 60.0)  # only one that blocks ends a call, however busy the machine

    def container(self, name: str, pid: int) -> Claim:
        directory = self.proc / str(pid)
        region = directory / "root" / usage.PATH[1:]
        region.parent.mkdir(parents=True)
        region.write_bytes(usage.BEGINNING.ljust(usage.SIZE, b"\0"))
        (directory / "lock").touch()
        self.live(pid)
        return Claim(name, pid, 5, [], False, None, [], "/b", 1.0, name=f"default/{name}/main", ready=True)

    def use(self, number: int, used: int) -> None:
        """The container reports so many ns of use of CARD."""
        path = self.proc / str(100 + number) / "root" / usage.PATH[1:]
        with path.open("r+b") as stream:
            stream.seek(usage.HEADER.size)
            stream.write(usage.CARD.pack(1, limits.uuid_bytes(self.CARD)))
            stream.seek(usage.TIMES_OFFSET)
            stream.write(usage.TIME.pack(0, *[0] * 7, used, 0, 0, 0))

    def block(self, number: int, blocks: bool = True) -> None:
        if blocks:
            self.locks[number] = os.open(self.proc / str(100 + number) / "lock", os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(self.locks[number], fcntl.LOCK_EX)
        else:
            os.close(self.locks.pop(number))

    def pass_lock(self, pid: int) -> None:
        with (self.proc / str(pid) / "lock").open() as stream:
            fcntl.flock(stream, fcntl.LOCK_SH)

    def read(self) -> set[str]:
        return set(self.readers.read(self.claims, reopen=False))

    def reported(self) -> list[str]:
        return [text for text in self.conditions.present.values() if REPORTED in text]

    def rounds(self, seconds: float) -> None:
        """Run rounds of a second of the node's clock. The processes get time for each."""
        for _ in range(int(seconds)):
            self.now += 1
            self.readers.look(self.claims)
            time.sleep(0.02)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    made = Node(tmp_path, monkeypatch)
    yield made
    for number in list(made.locks):
        made.block(number, False)
    made.readers.stop()
    wait_for(lambda: all(item.gone() for item in made.readers._left))


def test_one_process_answers_for_all(node: Node) -> None:
    for _ in range(3):
        assert node.read() == {"c0", "c1", "c2", "c3"}
    assert node.readers._reader is not None
    first = node.readers._reader.pid
    assert node.read() == {"c0", "c1", "c2", "c3"}
    assert node.readers._reader.pid == first


def test_a_reader_says_only_what_is_new(node: Node) -> None:
    """vgpud asks ten times a second, and an idle container changes nothing."""
    regions = Regions(str(node.proc))

    def answer(reopen: bool = False) -> object:
        return regions.answer([100, 5, reopen])

    assert isinstance(answer(), list)
    assert [answer(), answer()] == [SAME, SAME]
    assert isinstance(answer(reopen=True), list)
    node.use(0, 7)
    assert isinstance(answer(), list)
    assert answer() is SAME
    regions.stop()


def test_the_last_report_stays_until_there_is_another(node: Node) -> None:
    def used(claims: list[Claim], reopen: bool = False) -> list[int]:
        found = node.readers.read(claims, reopen)
        return [found[claim.container].times[node.CARD][0] for claim in claims]

    for number in range(4):
        node.use(number, number)
    for _ in range(3):
        assert used(node.claims) == [0, 1, 2, 3]
    node.use(2, 9)
    assert used(node.claims) == [0, 1, 9, 3]
    assert used(node.claims[:1]) == [0], "the others are forgotten here, but not in the reader"
    assert used(node.claims) == [0, 1, 9, 3]
    reader = node.readers._reader
    assert reader is not None
    os.kill(reader.pid, signal.SIGKILL)
    assert wait_for(lambda: node.rounds(1) or len(node.read()) == 4), "the one whose reader died is probed"
    assert used(node.claims) == [0, 1, 9, 3]


def test_without_containers_there_is_no_process(node: Node) -> None:
    node.read()
    reader = node.readers._reader
    assert reader is not None
    assert node.readers.read([], reopen=False) == {}
    assert wait_for(reader.gone)
    assert len(node.read()) == 4  # another one answers


def test_a_container_that_blocks_is_held_back_and_the_others_are_read(node: Node) -> None:
    node.read()
    node.block(1)
    assert node.read() == {"c0"}
    assert node.read() == {"c0", "c2", "c3"}
    assert node.readers.holds(node.claims[1])
    node.block(2)
    node.read()
    assert node.read() == {"c0", "c3"}


def test_it_is_named_once_and_comes_back_when_it_answers(node: Node) -> None:
    node.block(1)
    node.read()
    node.rounds(1)
    assert node.reported() == []
    (text,) = wait_for(lambda: node.rounds(1) or node.reported())
    assert text.startswith("container c1 (default/c1/main) blocks the host's reads")
    assert node.log.getvalue().count(REPORTED) == 1
    assert "c1" not in node.read()
    node.block(1, False)
    wait_for(lambda: node.rounds(20) or not node.readers.holds(node.claims[1]))
    assert node.reported() == []
    assert node.read() == {"c0", "c1", "c2", "c3"}


def test_one_that_blocks_again_and_again_is_probed_ever_more_rarely(node: Node) -> None:
    pauses = []
    for _ in range(4):
        node.block(1)
        wait_for(lambda: "c1" not in node.read())
        held = node.readers._held["c1", 101, 5]
        pauses.append(held.due - node.now)
        node.block(1, False)
        wait_for(lambda: node.rounds(5) or "c1" in node.read())
    assert pauses == [0, 2, 4, 8]


def test_a_container_that_ends_is_forgotten(node: Node) -> None:
    node.block(1)
    node.read()
    wait_for(lambda: node.rounds(1) or node.reported())
    node.readers.look([claim for claim in node.claims if claim.container != "c1"])
    assert node.reported() == []
    assert not node.readers.holds(node.claims[1])


def test_work_is_called_for_each_container_that_is_not_held_back(node: Node) -> None:
    def work(claim: Claim) -> object:
        node.pass_lock(claim.pid)
        return [claim.container, os.getpid()]

    found = node.readers.call(node.claims, work)
    assert {name: answer[0] for name, answer in found.items()} == {name: name for name in ("c0", "c1", "c2", "c3")}  # type: ignore[index]
    assert {answer[1] for answer in found.values()} != {os.getpid()}  # type: ignore[index]
    node.block(1)
    assert set(node.readers.call(node.claims, work)) == {"c0"}
    assert set(node.readers.call(node.claims, work)) == {"c0", "c2", "c3"}


def test_blocked_processes_are_bounded(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(region_readers, "MAX_LEFT", 0)
    assert node.read() == set()
    assert node.readers.call(node.claims, lambda claim: 1) == {}
    node.rounds(1)
    assert "no usage region is read" in node.conditions.present[RegionReaders.TOPIC]
