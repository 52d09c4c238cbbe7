"""The monitor of containers that hold more memory than their limit: what counts, and what vgpud does about it."""

from __future__ import annotations

import io
import os
import random
from pathlib import Path

import cards
import pytest

from vgpu.config import claims, limits, paths, records
from vgpu.config.claims import Claim
from vgpu.config.incidents import OVER_LIMIT, STOPPED
from vgpu.config.inventory import Inventory
from vgpu.config.limits import CardLimit
from vgpu.config.settings import Settings
from vgpu.hook.ledger import container_processes
from vgpu.node.daemon.memory_watch import (
    INTERVAL,
    MOST_STOPPED,
    STOPPED_WITHIN,
    TOLERANCE,
    MemoryWatch,
    allowed,
    contexts_beyond,
)
from vgpu.node.service.log import Conditions, Log

UUID = limits.uuid_text(bytes(range(16)))
LIMIT = 1 << 30
OVER = LIMIT + TOLERANCE + 1


class Watched:
    """A MemoryWatch whose containers, processes and clock the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, enforcement: str, run_dir: str) -> None:
        self.run_dir = run_dir
        self.log = io.StringIO()
        self.now = 100.0
        self.pids: dict[str, list[tuple[int, int]]] = {}
        self.claims: list[Claim] = []
        self.killed: list[str] = []
        self.settings = Settings({"limits.enforcement": enforcement, "paths.run": run_dir})
        self.conditions = Conditions(Log(self.log, False))
        self.restart()
        monkeypatch.setattr(container_processes.ContainerProcesses, "of", lambda _, claim: self.pids[claim.container])
        self.look({})  # vgpud runs before the containers

    def restart(self) -> None:
        """vgpud starts anew."""
        self.watch = MemoryWatch(
            self.settings, self.conditions, lambda *_: pytest.fail("asks"),
            clock=lambda: self.now, stop=lambda claim, _: self.killed.append(claim.container),
        )  # fmt: skip

    def lower(self, claim: Claim, memory: int) -> None:
        """As `vgpuctl set` does, with the claim on disk."""
        claim.lowered = {UUID: claim.cards[0].memory}
        claim.cards[0].memory = memory
        os.makedirs(paths.container(self.run_dir, claim.container), exist_ok=True)
        records.write(paths.claim(self.run_dir, claim.container), claim.record())

    def contains(self, name: str, *pids: tuple[int, int], init: int = 5, cgroup: str = "") -> Claim:
        """A living container with these processes."""
        made = Claim(name, init, 1, [CardLimit(UUID, LIMIT, 50, 50)], False, None, [], "/b", 1.0, f"ns/{name}/main")
        made.cgroup = cgroup or f"devices:/{name}"
        self.claims = [*(claim for claim in self.claims if claim.container != name), made]
        self.pids[name] = list(pids)
        return made

    def look(self, figures: dict[int, int], after: float = INTERVAL) -> list[str]:
        """NVML names bytes by pid. Returns the containers that are found."""
        self.now += after
        self.watch.judge({UUID: [(pid, True, memory) for pid, memory in figures.items()]}, self.claims)
        return sorted(container for container, _ in self.watch.violations)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Watched:
    return Watched(monkeypatch, "report", str(tmp_path))


@pytest.fixture
def killing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Watched:
    return Watched(monkeypatch, "kill", str(tmp_path))


@pytest.mark.parametrize("limit", [100 << 20, LIMIT, 80 << 30])
def test_64_mib_and_one_percent_are_no_violation(limit: int) -> None:
    assert allowed(limit) - limit == max(64 << 20, limit // 100)


def test_a_container_over_its_limit_in_two_looks_is_reported_once_and_not_stopped(watched: Watched) -> None:
    watched.contains("greedy", (10, 1), (11, 1))
    watched.contains("honest", (20, 1))
    assert watched.look({10: OVER - 5, 11: 5, 20: LIMIT}) == []
    assert watched.look({10: OVER - 5, 11: 5, 20: LIMIT}) == ["greedy"]
    assert watched.look({10: OVER + 5, 11: 5, 20: LIMIT}) == ["greedy"]
    line = watched.conditions.present["memory limits"]
    assert line.startswith(f"container greedy (ns/greedy/main) on {UUID}: its limit is {LIMIT} bytes")
    assert watched.log.getvalue().count("goes past libvcuda") == 1
    assert watched.watch.figures() == {
        "found": 1, "stopped": 0,
        "present": [{"container": "greedy", "card": UUID, "limit": LIMIT, "used": OVER}],
    }  # fmt: skip
    assert watched.look({10: 5, 20: LIMIT}) == []
    assert (watched.conditions.present, watched.killed) == ({}, [])


def test_what_is_within_the_tolerance_is_not_reported(watched: Watched) -> None:
    watched.contains("full", (10, 1))
    assert [watched.look({10: allowed(LIMIT)}) for _ in range(3)] == [[], [], []]


def test_looks_within_a_second_are_not_compared(watched: Watched) -> None:
    watched.contains("greedy", (10, 1))
    assert [watched.look({10: OVER}, 0.5) for _ in range(3)] == [[], [], []]
    assert watched.look({10: OVER}, 1.0) == ["greedy"]


def test_another_container_of_the_same_id_begins_anew(watched: Watched) -> None:
    watched.contains("again", (10, 1))
    watched.look({10: OVER})
    watched.contains("again", (10, 1), init=6)
    assert watched.look({10: OVER}) == []
    watched.contains("again", (10, 1), init=6, cgroup="devices:/elsewhere")
    assert watched.look({10: OVER}) == []
    assert watched.look({10: OVER}) == ["again"]


def test_a_thousand_innocents_whose_pids_come_again_are_not_found(killing: Watched) -> None:
    """Each look NVML's list is that of the moment before, so its figures are those of the pids' former processes."""
    rng = random.Random(17)
    figures: dict[int, int] = {}
    for start in range(1, 40):
        pids = rng.sample(range(10, 1500), 1000)
        for at in range(100):
            ours = pids[10 * at : 10 * at + 10]
            killing.contains(f"c{at}", *((pid, start) for pid in ours), cgroup=f"devices:/c{at}")
        assert killing.look(figures) == []
        figures = {pid: rng.choice((LIMIT // 10, OVER)) if pid % 2 else LIMIT // 10 for pid in pids}
    assert killing.killed == []


def test_what_was_held_when_the_limit_was_lowered_is_allowed_until_it_is_freed(watched: Watched) -> None:
    claim = watched.contains("lowered", (10, 1))
    watched.look({10: LIMIT})
    watched.lower(claim, LIMIT // 2)
    assert [watched.look({10: LIMIT}) for _ in range(3)] == [[], [], []]
    watched.look({10: LIMIT // 2})
    assert [watched.look({10: LIMIT}) for _ in range(3)] == [[], [], []], "NVML may have missed it in one list"
    watched.look({10: LIMIT // 2})
    watched.look({10: LIMIT // 2})
    assert claims.read(watched.run_dir, "lowered").lowered == {}
    claim.lowered = claims.read(watched.run_dir, claim.container).lowered
    watched.look({10: LIMIT})
    assert watched.look({10: LIMIT}) == ["lowered"]


def test_a_violator_of_before_vgpuds_start_is_found_and_who_was_lowered_meanwhile_is_not(watched: Watched) -> None:
    watched.contains("violator", (10, 1))
    lowered = watched.contains("lowered", (20, 1))
    watched.lower(lowered, LIMIT // 2)
    watched.restart()
    for _ in range(3):
        found = watched.look({10: OVER, 20: LIMIT})
    assert found == ["violator"]
    watched.look({10: OVER, 20: OVER})
    assert watched.look({10: OVER, 20: OVER}) == ["lowered", "violator"]


def test_a_claim_of_an_earlier_version_may_hold_what_it_held_at_vgpuds_start(watched: Watched) -> None:
    """Its limit may have been lowered while vgpud did not run, and no claim says so."""
    watched.restart()
    watched.contains("older", (10, 1)).lowered = None
    assert [watched.look({10: OVER}) for _ in range(3)] == [[], [], []]
    watched.look({10: OVER + 2 * TOLERANCE})
    assert watched.look({10: OVER + 2 * TOLERANCE}) == ["older"]


def inventory(driver: str, context: int) -> Inventory:
    return cards.inventory([cards.card(uuid=UUID, name="Tesla T4", context=context)], driver)


@pytest.mark.parametrize(("driver", "tolerant"), [("470.82", True), ("515.105.01", True), ("550.54.15", False)])
def test_with_the_hosts_pids_each_process_may_hold_its_context_beyond_the_limit(
    killing: Watched, driver: str, tolerant: bool
) -> None:
    """A program that fills its limit before vgpud has written what its contexts take, and one that goes past it."""
    context = 900 << 20
    killing.watch.spawn = lambda *_: None  # type: ignore[assignment,return-value]
    killing.watch.look(inventory(driver, 20 << 20))  # a tenant has made the known size wrong
    killing.contains("full", (10, 1), (11, 1), cgroup="devices:/full")
    killing.contains("greedy", (20, 1), cgroup="devices:/greedy")
    figures = {10: LIMIT + context, 11: context, 20: allowed(LIMIT) + (1 << 30) + 1}
    found = [killing.look(figures) for _ in range(2)][-1]
    assert found == (["greedy"] if tolerant else ["full", "greedy"])
    assert killing.killed == (["greedy"] if tolerant else ["full", "greedy"])


def test_a_driver_whose_version_cannot_be_read_counts_as_old() -> None:
    assert contexts_beyond(inventory("", 0)) == {UUID: 1 << 30}
    assert contexts_beyond(inventory("535.1", 0)) == {}


def test_cards_without_a_limit_and_whole_cards_are_left_alone(watched: Watched) -> None:
    watched.contains("whole", (10, 1)).exclusive = True
    watched.contains("unlimited", (20, 1)).cards[0].memory = limits.UNLIMITED
    assert [watched.look({10: OVER, 20: OVER}) for _ in range(3)] == [[], [], []]


def test_kill_stops_the_container_once_and_says_so_before(killing: Watched) -> None:
    killing.contains("greedy", (10, 1))
    for _ in range(4):
        killing.look({10: OVER})
    assert killing.killed == ["greedy"]
    assert killing.log.getvalue().count("stopping a container that goes past its memory limit") == 1
    assert "is not stopped: its init has not ended since it was killed" in killing.conditions.present["enforcement"]
    killing.claims = []
    killing.look({})
    assert killing.conditions.present == {}


def test_what_is_found_is_an_incident(watched: Watched) -> None:
    watched.contains("greedy", (10, 1))
    watched.look({10: OVER})
    watched.look({10: OVER})
    (found,) = watched.watch.incidents.records()
    assert (found["kind"], found["container"], found["uuid"], found["limit"]) == (OVER_LIMIT, "greedy", UUID, LIMIT)
    assert found["amount"] == OVER


def test_what_is_stopped_is_one_incident_that_outlives_the_container(killing: Watched) -> None:
    killing.contains("greedy", (10, 1))
    for _ in range(4):
        killing.look({10: OVER})
    killing.claims = []
    killing.look({})
    assert [one["kind"] for one in killing.watch.incidents.records()] == [STOPPED]


@pytest.mark.parametrize("cgroups", [("", "devices:/b"), ("devices:/a", "devices:/a")], ids=["none", "shared"])
def test_a_container_without_a_cgroup_of_its_own_is_only_reported(killing: Watched, cgroups: tuple[str, str]) -> None:
    killing.contains("greedy", (10, 1)).cgroup = cgroups[0]
    killing.contains("other", (20, 1), cgroup=cgroups[1])
    for _ in range(3):
        killing.look({10: OVER})
    assert killing.killed == []
    assert "greedy is not stopped" in killing.conditions.present["enforcement"]


def test_after_three_in_ten_minutes_vgpud_only_reports(killing: Watched) -> None:
    names = [f"greedy{number}" for number in range(MOST_STOPPED + 2)]
    for number, name in enumerate(names):
        killing.contains(name, (10 + number, 1))
    figures = {10 + number: OVER for number in range(len(names))}
    killing.look(figures)
    assert killing.look(figures) == names
    assert killing.killed == names[:MOST_STOPPED]
    killing.claims = killing.claims[MOST_STOPPED:]
    killing.look(figures, STOPPED_WITHIN)
    killing.look(figures)
    assert killing.killed == names
