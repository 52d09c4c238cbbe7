"""The lender with claims, regions and core schedules as files: it lends, takes back, and handles damaged files."""

from __future__ import annotations

import fcntl
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from descriptors import opened
from host import Host

from vgpu.config import core_schedule, limits, paths, records, usage
from vgpu.config.claims import Claim
from vgpu.config.core_schedule import CoreSchedule
from vgpu.config.limits import CardLimit
from vgpu.hook.ledger import core_schedules
from vgpu.hook.ledger.ledger import Ledger
from vgpu.hook.ledger.lock import Lock
from vgpu.node.daemon.lender import DOZE, PACE, REST, STILL, Lender
from vgpu.node.daemon.lending_policy import LEASE, MS

UUID = limits.uuid_text(bytes(range(16)))
BEGIN = 10**12
PLACE = 3


class Node(Host):
    """Containers whose inits are entries of a made-up /proc, with regions that the test writes."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.write("proc/self/mountinfo", "")
        self.now: int = BEGIN  # type: ignore[assignment]
        self.pid = 100
        self.used: dict[str, int] = {}
        self.pids: dict[str, int] = {}
        self.lender = self.started()

    def started(self) -> Lender:
        return Lender(self.settings, str(self.proc), lambda: self.now)

    def ledger(self) -> Ledger:
        return Ledger(self.settings, [], str(self.proc))

    def container(self, name: str, cores: int, limit: int, offset: int = 0) -> None:
        """Write a container's files as the hook does."""
        self.pid += 1
        self.pids[name] = self.pid
        directory = self.proc / str(self.pid)
        region = directory / "root" / usage.PATH[1:]
        region.parent.mkdir(parents=True)
        self.live(self.pid)
        region.write_bytes(usage.BEGINNING.ljust(usage.SIZE, b"\0"))
        cards = [CardLimit(UUID, 1 << 30, cores, limit)]
        claim = Claim(name, self.pid, 5, cards, False, None, [], "/b", float(self.pid), ready=True)
        os.makedirs(paths.container(self.run_dir, name))
        with Lock(self.run_dir):
            core_schedules.create(paths.container(self.run_dir, claim.container), claim, self.ledger().shares(), offset)
            records.write(paths.claim(self.run_dir, name), claim.record())
            self.ledger().reschedule([UUID])

    def region(self, name: str) -> Path:
        return self.proc / str(self.pids[name]) / "root" / usage.PATH[1:]

    def report(self, name: str, used: int = 0, wanted: int = 0, waited: int = 0, longest: int = 0) -> None:
        """Write the usage that the container's programs would write."""
        self.used[name] = self.used.get(name, 0) + used
        with self.region(name).open("r+b") as stream:
            stream.seek(usage.HEADER.size + PLACE * usage.CARD.size)
            stream.write(usage.CARD.pack(1, limits.uuid_bytes(UUID)))
            stream.seek(usage.TIMES_OFFSET + PLACE * usage.TIME.size)
            stream.write(usage.TIME.pack(0, *[0] * 7, self.used[name], wanted, waited, longest))

    def floods(self, name: str, percent: int = 100, offset: int = 0) -> None:
        now = self.now - offset
        self.report(name, int(PACE * 1e9) * percent // 100, now, now)

    def ticks(self, count: int, *flooding: str) -> None:
        for _ in range(count):
            for name in flooding:
                self.floods(name)
            self.lender.tick()
            self.now += int(PACE * 1e9)

    def page(self, name: str) -> CoreSchedule:
        (page,), _ = core_schedule.decode(Path(paths.core_schedules(self.run_dir, name)).read_bytes())
        return page

    def lent(self, name: str) -> int:
        page = self.page(name)
        return page.lent_rate if page.lent_until > self.now else 0


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.lender.stop()


@pytest.mark.parametrize("kind", [fcntl.F_RDLCK, fcntl.F_WRLCK])
def test_nobody_gets_a_lease_on_a_schedule_that_is_open_here(node: Node, kind: int) -> None:
    node.container("a", 30, 100)
    for _ in range(2):  # the second round opens the files again
        node.lender.look()
        with open(paths.core_schedules(node.run_dir, "a"), "rb") as stream, pytest.raises(BlockingIOError):
            fcntl.fcntl(stream, fcntl.F_SETLEASE, kind)


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        (usage.MARK_LOCKS_REFUSED, ("refuses the file locks of b, so", "")),
        (usage.MARK_WAITS_REFUSED, ("", "refuses the futexes of b, so")),
        (usage.MARK_COUNTS, ("", "")),
    ],
)
def test_a_container_that_says_what_a_sandbox_refuses_is_named(node: Node, mark: int, said: tuple[str, str]) -> None:
    node.container("a", 30, 30)
    node.container("b", 70, 70)
    node.lender.look()
    assert (node.lender.without_locks(), node.lender.without_waits()) == ("", "")
    with node.region("b").open("r+b") as stream:
        stream.seek(usage.MARKS_OFFSET)
        stream.write(usage.MARKS.pack(mark))
    node.lender.look()
    for part, sentence in zip(said, (node.lender.without_locks(), node.lender.without_waits())):
        assert part in sentence and bool(part) == bool(sentence)


def test_what_changes_cost_is_taken_from_all_shares_as_it_was_measured(node: Node) -> None:
    def expected(lost: int) -> list[object]:
        part = 1 - 2 * lost / node.page("a").period
        return [pytest.approx(share * part, rel=1e-4) for share in (300_000, 700_000)]

    node.container("a", 30, 30)
    node.container("b", 70, 70)
    node.lender.look()
    assert [node.page(name).share for name in "ab"] == expected(core_schedule.CHANGE_NS)
    for name in "ab":
        node.report(name)
        with node.region(name).open("r+b") as stream:
            stream.seek(usage.CHANGE_OFFSET)
            stream.write(usage.MARKS.pack(300_000 << usage.CHANGE_SHIFT | PLACE))
    node.lender.look()  # reads them
    node.lender.look()  # and writes the schedules
    assert [node.page(name).share for name in "ab"] == expected(600_000)


def test_idle_time_is_lent_while_it_is_wanted(node: Node) -> None:
    node.container("a", 30, 100)
    node.container("b", 70, 70)
    node.lender.look()
    node.ticks(10, "a")
    assert (node.lent("a"), node.lent("b")) == (100, 0)
    assert node.lender.figures()[0]["lent"] == 100
    for _ in range(10):
        node.ticks(1)
    assert node.lent("a") == 0
    assert node.lender.figures()[0]["lent"] == 0


def test_an_owner_that_comes_back_has_its_share_within_200_ms(node: Node) -> None:
    node.container("a", 30, 100)
    node.container("b", 70, 70)
    plain = node.page("a")
    node.lender.look()
    node.ticks(20, "a")
    assert node.lent("a") == 100
    node.ticks(10, "a", "b")
    assert (node.lent("a"), node.lent("b")) == (0, 0)
    assert node.page("a").key() == plain.key()


def test_it_ticks_only_while_somebody_may_borrow(node: Node) -> None:
    assert node.lender.due() is None
    node.container("hard", 30, 30)
    node.lender.look()
    assert node.lender.due() is None
    node.container("soft", 30, 60)
    node.lender.look()
    assert node.lender.due() == 0
    node.lender.tick()
    assert node.lender.due() == pytest.approx(DOZE)
    node.now += int(DOZE * 1e9)
    node.floods("soft")
    node.lender.tick()
    assert node.lender.due() == pytest.approx(PACE)


def test_it_looks_less_often_when_no_container_has_wanted_time_for_a_while(node: Node) -> None:
    node.container("soft", 30, 60)
    node.lender.look()
    pauses = []
    for _ in range(100):
        node.lender.tick()
        pauses.append(node.lender.due())
        node.now += int((pauses[-1] or 0) * 1e9) + 1000
    calm = int(STILL / DOZE)
    assert pauses[: calm - 1] == pytest.approx([DOZE] * (calm - 1))
    assert pauses[calm + 1 :] == pytest.approx([REST] * (99 - calm))
    node.floods("soft")
    node.lender.tick()
    assert node.lender.due() == pytest.approx(PACE)
    node.now += int(STILL / 2 * 1e9)
    node.lender.tick()
    assert node.lender.due() == pytest.approx(DOZE), "the time begins anew"


def test_the_first_look_after_a_rest_lends(node: Node) -> None:
    node.container("a", 30, 100)
    node.container("b", 70, 70)
    node.lender.look()
    for _ in range(100):
        node.lender.tick()
        node.now += int((node.lender.due() or 0) * 1e9) + 1000
    assert node.lender.due() == 0
    node.report("a", int(REST * 1e9), node.now, node.now)
    node.lender.tick()
    assert node.lent("a") == 100


def test_a_new_container_is_noticed_at_once_by_the_changed_schedules(node: Node) -> None:
    node.container("a", 30, 100)
    node.lender.look()
    node.ticks(10, "a")
    assert node.lent("a") == 100
    node.container("b", 70, 70)
    assert node.lent("a") == 0, "the hook's pages end every loan on the card"
    node.floods("b")
    node.ticks(1, "a", "b")
    assert set(node.lender.shares) == {"a", "b"}
    assert node.lent("a") == 0


def test_a_container_that_ends_is_forgotten_and_no_file_stays_open(node: Node) -> None:
    before = opened()
    for name in ("a", "b", "c"):
        node.container(name, 20, 100)
    node.lender.look()
    node.ticks(5, "a")
    (node.proc / str(node.pids["b"]) / "stat").unlink()
    with Lock(node.run_dir):
        node.ledger()._end("b")
    node.ticks(2, "a")
    assert set(node.lender.shares) == {"a", "c"}
    node.lender.stop()
    assert opened() <= before


def test_another_lender_continues_after_the_last_one_died(node: Node) -> None:
    node.container("a", 30, 100)
    node.lender.look()
    node.ticks(10, "a")
    until = node.page("a").lent_until
    node.now = until + 1
    assert node.lent("a") == 0
    node.lender.stop()
    node.lender = node.started()
    node.lender.look()
    assert node.page("a").lent_until == 0
    node.ticks(10, "a")
    assert node.lent("a") == 100


def test_while_a_hook_holds_the_lock_nothing_is_written_and_loans_end(node: Node) -> None:
    node.container("a", 30, 100)
    node.lender.look()
    node.ticks(10, "a")
    with Lock(node.run_dir):
        node.ticks(LEASE // int(PACE * 1e9) + 1, "a")
        assert node.lent("a") == 0
    node.ticks(3, "a")
    assert node.lent("a") == 100


def test_a_time_namespaces_clock_is_taken_into_account(node: Node) -> None:
    node.container("a", 30, 100, offset=10**11)
    node.lender.look()
    for _ in range(10):
        node.floods("a", offset=10**11)
        node.ticks(1)
    assert node.lent("a") == 100


def test_what_a_hook_could_not_write_is_put_right(node: Node) -> None:
    node.container("a", 50, 50)
    node.container("b", 50, 50)
    right = node.page("a").key()
    core_schedule.update(paths.core_schedules(node.run_dir, "a"), CoreSchedule(UUID, tenants=1))
    node.lender.look()
    assert node.page("a").key() == right


def test_use_is_reported_as_a_percentage_of_the_time_between_two_rounds(node: Node) -> None:
    node.container("a", 30, 30)
    node.report("a", 1000 * MS, node.now)
    node.lender.look()
    assert node.lender.figures()[0]["used"] is None
    node.now += 2000 * MS
    node.report("a", 500 * MS, node.now)
    node.lender.look()
    assert node.lender.figures()[0]["used"] == pytest.approx(25)


@pytest.mark.parametrize("content", [b"", b"garbage", bytes(usage.SIZE), usage.BEGINNING, b"\xff" * usage.SIZE])
def test_a_region_that_is_none_lends_nobody_that_containers_share(node: Node, content: bytes) -> None:
    node.container("a", 30, 100)
    node.container("b", 70, 70)
    node.region("b").write_bytes(content)
    node.lender.look()
    node.ticks(10, "a")
    assert node.lent("a") == 0


def test_garbage_in_a_region_is_survived(node: Node) -> None:
    noise = random.Random(6)
    node.container("a", 30, 100)
    node.container("b", 70, 100)
    node.lender.look()
    for _ in range(60):
        data = noise.randbytes(usage.SIZE - usage.TIMES_OFFSET)
        for name in ("a", "b"):
            node.report(name)
            with node.region(name).open("r+b") as stream:
                stream.seek(usage.TIMES_OFFSET)
                stream.write(data[: usage.FLIGHTS_OFFSET - usage.TIMES_OFFSET])
        node.ticks(1)
        node.lender.look()
        for name in ("a", "b"):
            page = node.page(name)
            assert page.lent_until <= node.now + LEASE
            assert page.lent_rate <= 100
    assert {row["container"] for row in node.lender.figures()} == {"a", "b"}


def test_a_region_and_schedules_that_vanish_affect_no_other(node: Node) -> None:
    node.container("a", 30, 100)
    node.container("b", 30, 100)
    node.region("a").unlink()
    Path(paths.core_schedules(node.run_dir, "a")).unlink()
    node.lender.look()
    node.ticks(10, "b")
    assert node.lent("b") > 30
    Path(paths.core_schedules(node.run_dir, "b")).write_bytes(b"x")
    node.ticks(10, "b")
    node.lender.look()


def test_a_penalized_container_is_lent_nothing(node: Node) -> None:
    node.container("a", 50, 100)
    node.container("b", 50, 50)
    fair = node.page("a").share
    node.lender.penalize({"a": 0.8})
    node.lender.look()
    node.ticks(10, "a")
    assert node.lent("a") == 0
    assert node.page("a").share == int(fair * 0.8)
    node.lender.penalize({})
    node.lender.look()
    assert node.page("a").share == fair
