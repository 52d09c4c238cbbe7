"""What containers have held, over ends that nobody saw, restarts and reboots, beside the sum of their histories."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from cards import GIB
from host import Host

from vgpu.config import paths, records
from vgpu.config.claims import Claim
from vgpu.config.errors import VgpuError
from vgpu.config.grants import Holder
from vgpu.config.limits import UNLIMITED, CardLimit
from vgpu.hook import hooklog, stop
from vgpu.hook.linux import staleness
from vgpu.node.ctl import report
from vgpu.node.daemon.held_time import SAVE, TICKS, HeldTime

BOOT = staleness.boot_id()
SIZES = {"GPU-0": 16 * GIB, "GPU-1": 80 * GIB}
START = 1_750_000_000.0  #: when the host has started, in seconds since 1970


class Node(Host):
    """Containers by hand: what lives, what its stop hook writes, and a vgpud that may be away."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.alive: dict[str, Claim] = {}
        self.released: set[str] = set()
        Path(self.run_dir).mkdir()
        self.vgpud = self.started()

    def started(self) -> HeldTime:
        return HeldTime(self.settings, clock=lambda: self.now, wall_clock=lambda: START + self.now)

    def start(self, container: str, *cards: CardLimit, name: str = "team/web/main") -> Claim:
        holder = Holder("uid", "main") if name else None
        claim = Claim(container, 7, int(self.now * TICKS), list(cards), False, holder, [], "/b", 1.0, name, ready=True,
                      boot_id=BOOT)  # fmt: skip
        self.alive[container] = claim
        return claim

    def stop(self, container: str) -> None:
        """The container ends, and its stop hook releases it."""
        claim = self.alive.pop(container)
        held = stop.held(claim, self.now)
        state: dict[str, object] = {"id": container}
        hooklog.write(self.run_dir, hooklog.record("poststop", state, ["released"], "", claim.name, [], held))

    def round(self) -> dict[str, tuple[float, float]]:
        self.vgpud.look(list(self.alive.values()), lambda _: True, SIZES)
        return {one.pod: (one.core_seconds, one.memory_byte_seconds) for one in self.vgpud.sums}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_random_histories(node: Node, pytestconfig: pytest.Config) -> None:
    """Starts, ends and changes at random moments, and a vgpud that is away at random: kill -9, or an orderly end."""
    seed = int(os.environ.get("VGPU_SEED") or random.randrange(1 << 32))
    print("seed", seed)
    rng, starts = random.Random(seed), 10_000 if pytestconfig.getoption("--long") else 400
    names = max(starts // 200, 20)  # few, so that none is away for the hour after which its sums are dropped
    truth: dict[str, list[float]] = {}
    shown: dict[str, tuple[float, float]] = {}
    begun = 0
    while begun < starts or node.alive:
        passed = rng.choice((0.1, 0.5, 2.0, 2.0))
        node.now += passed
        for claim in node.alive.values():
            sums = truth.setdefault(claim.name.split("/")[1], [0.0, 0.0])
            for card in claim.cards:
                sums[0] += passed * card.cores / 100
                sums[1] += passed * (SIZES[card.uuid] if card.memory == UNLIMITED else card.memory)
        for container in [one for one in node.alive if rng.random() < 0.02 * passed]:
            node.stop(container)
        for claim in node.alive.values():
            if rng.random() < 0.001 and claim.cards[0].memory != UNLIMITED:
                node.round()  # the round of the change: vgpuctl has no history of amounts
                claim.cards = [CardLimit("GPU-0", rng.randrange(1, 9) * GIB, rng.randrange(1, 100), 100)]
        if begun < starts and rng.random() < 0.4:
            whole = [CardLimit(uuid, UNLIMITED, 100, 100) for uuid in SIZES][: rng.randrange(1, 3)]
            share = [CardLimit("GPU-0", rng.randrange(1, 9) * GIB, rng.randrange(1, 100), 100)]
            node.start(f"c{begun}", *rng.choice((whole, share)), name=f"team/pod{rng.randrange(names)}/main")
            begun += 1
        if rng.random() < 0.01:
            if rng.random() < 0.5:
                node.vgpud.close()
            node.vgpud = node.started()
            away = rng.random() < 0.5
        else:
            away = rng.random() < 0.2
        if not away:
            found = node.round()
            assert all(after >= before for pod, sums in found.items() for before, after in
                       zip(shown.get(pod, (0.0, 0.0)), sums))  # fmt: skip
            shown |= found
    assert begun == starts
    shown |= node.round()
    for pod, sums in truth.items():
        assert shown[pod] == pytest.approx(sums, rel=0.01), pod
    rows = report.rows(node.run_dir, node.state_dir, 0.0, START + node.now, "pod")
    assert {row[1]: [row[3], row[4]] for row in rows} == {
        pod: [pytest.approx(sums[0], rel=0.01), pytest.approx(sums[1], rel=0.01)] for pod, sums in truth.items()
    }


SHARE = CardLimit("GPU-0", 2 * GIB, 50, 50)


def test_a_reboot_takes_nothing_back_and_adds_at_most_the_time_between_two_copies(node: Node) -> None:
    node.start("a", SHARE)
    node.round()
    node.now += 2 * SAVE
    node.round()  # a copy
    node.now += SAVE - 1
    before = node.round()["web"]
    Path(paths.held_time(node.run_dir)).unlink()
    record = records.read(paths.held_time(node.state_dir))
    records.write(paths.held_time(node.state_dir), {**record, "boot_id": "another"})
    node.alive.clear()
    node.vgpud = node.started()
    after = node.round()["web"]
    assert all(one >= other for one, other in zip(after, before))
    assert after[0] == 3 * SAVE * 0.5
    (row,) = report.rows(node.run_dir, node.state_dir, 0.0, START + node.now + SAVE, "container")
    assert row[3] == after[0]
    assert report.names(node.run_dir, node.state_dir) == {"a": "team/web/main"}


def test_of_containers_with_one_budget_the_oldest_holds_it(node: Node) -> None:
    for at, name in enumerate(("second", "first")):
        claim = node.start(name, SHARE, name=f"team/{name}/main")
        claim.prepared, claim.created = ["claim-0"], 9.0 - at
    node.round()
    node.now += 10
    assert {pod: sums[0] for pod, sums in node.round().items()} == {"first": 5.0, "second": 0.0}
    node.stop("first")
    node.round()
    node.now += 10
    assert {pod: sums[0] for pod, sums in node.round().items()} == {"first": 5.0, "second": 5.0}


def test_a_container_without_a_stop_hook_ended_when_vgpud_saw_it_last(node: Node) -> None:
    """Its claim stays until the reaper removes it. A line that comes later than vgpud waits counts nothing."""
    node.start("a", SHARE)
    for _ in range(4):
        node.now += 2.0
        node.vgpud.look(list(node.alive.values()), lambda claim: node.now < 1005.0, SIZES)
    (one,) = node.vgpud.sums
    assert (one.core_seconds, one.memory_byte_seconds) == (2.0, 8 * GIB)
    node.now += 1.0
    node.stop("a")  # its container was removed long after its death
    assert node.round()["web"][0] == 3.0  # up to the first look that found it dead


def test_a_damaged_record_is_named_and_the_copy_goes_on(node: Node) -> None:
    node.start("a", SHARE)
    node.round()
    node.vgpud.close()
    node.now += 10.0
    Path(paths.held_time(node.run_dir)).write_text("{")
    node.vgpud = node.started()
    assert not node.vgpud.problem
    assert node.round()["web"][0] == 5.0
    for directory in (node.run_dir, node.state_dir):
        Path(paths.held_time(directory)).write_text('{"version": 1, "sums": [["a"]]}')
    assert "held-time.json" in node.started().problem


def test_a_report_has_the_part_of_each_time_that_is_asked_for(node: Node) -> None:
    node.start("a", SHARE)
    node.start("b", CardLimit("GPU-1", GIB, 100, 100), name="team/db/main")
    node.round()
    node.now += 100.0
    node.stop("a")
    node.now += 100.0
    node.round()
    rows = report.rows(node.run_dir, node.state_dir, START + 1050.0, START + 1150.0, "pod")
    assert [row[:5] for row in rows] == [
        ["team", "db", "", 100.0, 100 * GIB], ["team", "web", "", 25.0, 100 * GIB]
    ]  # fmt: skip
    (row,) = report.rows(node.run_dir, node.state_dir, START + 1050.0, START + 1150.0, "namespace")
    assert row[:5] == ["team", "", "", 125.0, 200 * GIB]


@pytest.mark.parametrize(
    ("text", "seconds"), [("36h", 36 * 3600.0), ("7d", 7 * 86400.0), ("0s", 0.0), ("2001-09-09T01:46:40+00:00", 1e9)]
)
def test_a_time(text: str, seconds: float) -> None:
    assert report.moment(text, 2e9) == 2e9 - seconds


@pytest.mark.parametrize("text", ["", "yesterday", "36", "-1h", "99999999d", "2026-13-01"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(VgpuError, match="2026-11-01"):
        report.moment(text, 0.0)
