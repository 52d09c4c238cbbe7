"""The monitor of containers that use more than they report: NVML's samples, their containers, and penalties."""

from __future__ import annotations

import io

import pytest
from cards import inventory

from vgpu.config import limits
from vgpu.config.claims import Claim
from vgpu.config.limits import CardLimit
from vgpu.config.settings import Settings
from vgpu.hook.ledger import container_processes
from vgpu.node.daemon import usage_monitor
from vgpu.node.daemon.lending_policy import Observation
from vgpu.node.daemon.usage_audit import LAG, LOOKS
from vgpu.node.daemon.usage_monitor import UsageMonitor
from vgpu.node.service.log import Conditions, Log

UUID = limits.uuid_text(bytes(range(16)))
SECOND = 10**9


class FakeShare:
    def __init__(self, name: str, used: list[int]) -> None:
        cards = [CardLimit(UUID, 1 << 30, 50, 50)]
        self.claim = Claim(name, 5, 1, cards, False, None, [], "/b", 1.0, f"ns/{name}/main")
        self.used = used

    def observe(self, now: int) -> dict[str, Observation]:
        return {UUID: Observation(self.used[0], now, 0)}


class FakeLender:
    def __init__(self) -> None:
        self.now = 0
        self.shares = {name: FakeShare(name, [0]) for name in ("honest", "liar")}
        self.parts: dict[str, float] = {}

    def clock(self) -> int:
        return self.now

    def penalize(self, parts: dict[str, float]) -> None:
        self.parts = parts


class Watched:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log = io.StringIO()
        self.lender = FakeLender()
        self.conditions = Conditions(Log(self.log, False))
        settings = Settings({})
        self.watch = UsageMonitor(settings, self.conditions, lambda *_: pytest.fail("asks"), self.lender)  # type: ignore[arg-type]
        self.living = [share.claim for share in self.lender.shares.values()]
        pids = {"honest": [(10, 1)], "liar": [(20, 1), (21, 1)], "second": [(30, 1)]}
        monkeypatch.setattr(container_processes.ContainerProcesses, "of", lambda _self, claim: pids[claim.container])

    def look(self, said: dict[str, int], seen: dict[int, int]) -> None:
        """Five seconds in which containers report some percentages, and NVML reports others by pid."""
        self.lender.now += 5 * SECOND
        for name, percent in said.items():
            self.lender.shares[name].used[0] += 5 * SECOND * percent // 100
        self.watch.judge({UUID: [(pid, percent, 1) for pid, percent in seen.items()]}, self.living)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


def test_a_false_report_is_logged_and_the_container_lent_nothing_until_it_is_honest(watched: Watched) -> None:
    for _ in range(LOOKS + LAG + 1):
        watched.look({"honest": 50, "liar": 5}, {10: 50, 20: 40, 21: 40, 99: 100})
    assert set(watched.watch.caught) == {("liar", UUID)}
    assert watched.lender.parts == {"liar": 0.8}
    condition = watched.conditions.present["core shares"]
    assert condition.startswith(f"container liar (ns/liar/main) on {UUID}: reports")
    assert watched.watch.seen("liar", UUID) == 80
    for _ in range(LOOKS + LAG):
        watched.look({"honest": 50, "liar": 50}, {10: 50, 20: 25, 21: 25})
    assert watched.lender.parts == {}
    assert "core shares" not in watched.conditions.present
    assert len(watched.log.getvalue().splitlines()) == 2, "logged once, and its end"


def test_a_region_without_use_counts_as_a_report(watched: Watched) -> None:
    for _ in range(LOOKS + LAG + 1):
        watched.look({}, {10: 5, 20: 60})
    assert set(watched.lender.parts) == {"liar"}


def test_the_report_of_a_budget_is_compared_with_all_its_containers(watched: Watched) -> None:
    """The lender has the oldest only."""
    watched.living.append(FakeShare("second", []).claim)
    for claim in watched.living[1:]:
        claim.prepared = ["claim-0"]
    for _ in range(LOOKS + LAG + 1):
        watched.look({"liar": 5}, {20: 5, 30: 60})
    assert set(watched.lender.parts) == {"liar"}


def test_nvml_is_not_queried_where_no_container_has_a_share(watched: Watched) -> None:
    watched.lender.shares = {}
    watched.watch.look(inventory())


def test_only_the_newest_sample_of_a_process_counts_and_garbage_is_bounded() -> None:
    rows = {UUID: [[7, 50, 1], [7, 30, 9], [7, 60, 3], [8, 4_000_000, 2], [9, -5, 2]]}
    assert usage_monitor.rows_of({"cards": rows}) == {UUID: [(7, 30, 9), (8, 100, 2), (9, 0, 2)]}
    assert usage_monitor.rows_of({}) == {}
