"""The record of a round: which figure comes from where, what is summed up over time, and who is in it."""

from __future__ import annotations

import os
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from cards import GIB, card, inventory
from host import Host

from vgpu.config import limits, paths, plugin_state, records, rounds
from vgpu.config.claims import Claim
from vgpu.config.clock import since_boot
from vgpu.config.grants import Holder
from vgpu.config.limits import CardLimit
from vgpu.hook.linux import procfs, staleness
from vgpu.node.daemon.lending_policy import Observation
from vgpu.node.daemon.round_record import Parts, RoundRecorder
from vgpu.node.daemon.usage_regions import Report

UUID = limits.uuid_text(bytes(range(16)))
BOOT = staleness.boot_id()


class FakeShare:
    report = Report({UUID: (3_000_000_000, 1, 2, 3)}, {}, {UUID: (2_500_000_000, 7, 1, 2, 3, 4, 5)})

    def observe(self, now: int) -> dict[str, Observation]:
        return {UUID: Observation(3_000_000_000, now - 400, 0)}


class FakeLender:
    """Lends container `a` 60 percent, of which it uses `used`."""

    used: float | None = 40.0

    def __init__(self) -> None:
        self.shares = {"a": FakeShare()}

    def clock(self) -> int:
        return 10_000

    def figures(self) -> list[dict[str, object]]:
        return [{"container": "a", "card": UUID, "used": self.used, "lent": 60, "doubted": False}]


class FakeReaders:
    answers: dict[str, object] = {"a": {"held": {UUID: [2 * GIB, GIB]}, "pids": [os.getpid()]}}  # noqa: RUF012

    def call(self, asked: Iterable[Claim], _work: Callable[[Claim], object]) -> dict[str, object]:
        names = {claim.container for claim in asked}
        return {name: answer for name, answer in self.answers.items() if name in names}


class Fake:
    users: dict[str, list[Any]] = {}  # noqa: RUF012
    violations: dict[tuple[str, str], object] = {("a", UUID): None}  # noqa: RUF012
    found, stopped = 2, 1

    holders: dict[tuple[str, str], int] = {("a", UUID): 1000}  # noqa: RUF012

    def use(self) -> dict[str, tuple[int, int]]:
        return {UUID: (5 * GIB, 70)}

    def seen(self, _name: str, _uuid: str) -> float:
        return 33.0

    def measured(self, _name: str, _uuid: str) -> int:
        return 3 * GIB


class Node(Host):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.lender = FakeLender()
        fake: Any = Fake()
        parts = Parts(self.lender, fake, fake, fake, fake, FakeReaders(), fake)  # type: ignore[arg-type]
        self.recorder = RoundRecorder(self.settings, parts, clock=lambda: self.now, wall_clock=lambda: 5000.0)
        self.inventory = inventory([card(uuid=UUID)], "550")

    def hold(self, container: str, start_time: int, **changes: Any) -> None:
        limit = CardLimit(UUID, 4 * GIB, 30, 50)
        fields: dict[str, Any] = {
            "holder": Holder("uid-1", "main"), "name": "team/web/main", "ready": True, "created": 50.0, **changes,
        }  # fmt: skip
        self.claim(container, os.getpid(), start_time, limit, boot_id=staleness.boot_id(), **fields)

    def round(self) -> dict[str, Any]:
        self.recorder.write(self.inventory, {"more": 1})
        return rounds.read(self.run_dir)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_container_and_its_card(node: Node) -> None:
    node.hold("a", procfs.start_time(os.getpid()))
    limits.set_overheads(paths.limits(node.run_dir, "a"), {UUID: (7, 6000)})
    found = node.round()
    assert (found["node"], found["taken"], found["time"], found["more"]) == ("node", 1000.0, 5000.0, 1)
    (card,) = found["cards"]
    assert (card["memory"], card["memory_used"], card["utilization"]) == (16 * GIB, 5 * GIB, 70)
    assert (card["cores_held"], card["memory_held"], card["holders"]) == (30, 4 * GIB, 1)
    (one,) = found["containers"]
    assert (one["namespace"], one["pod"], one["container_name"], one["pod_uid"]) == ("team", "web", "main", "uid-1")
    assert found["lock_floods"] == found["violations"] == [{"container": "a", "uuid": UUID}]
    (share,) = one["cards"]
    assert (share["memory_limit"], share["cores"], share["core_limit"]) == (4 * GIB, 30, 50)
    assert (share["cores_used"], share["cores_seen"], share["lent"]) == (40.0, 33.0, 60)
    assert share["memory_driver"] == 7
    assert share["reported"]["memory"] == 2 * GIB
    assert share["reported"]["allocated"] == GIB
    assert (share["reported"]["used_ns"], share["reported"]["idle_ns"]) == (3_000_000_000, 400)
    assert (share["reported"]["throttled_ns"], share["reported"]["refusals"]) == (2_500_000_000, 7)
    assert share["reported"]["waits"] == {"bounds": [0.001, 0.01, 0.1, 1.0], "buckets": [1, 2, 3, 4, 5], "sum": 2.5}


@pytest.mark.parametrize(
    ("of_vgpud", "of_plugin", "expected"), [("", "", "node"), ("", "gpu-7", "gpu-7"), ("gpu-8", "gpu-7", "gpu-8")]
)
def test_the_node_has_the_name_that_kubernetes_knows(
    node: Node, monkeypatch: pytest.MonkeyPatch, of_vgpud: str, of_plugin: str, expected: str
) -> None:
    """NODE_NAME, which vgpud's environment or the device plugin's has, comes before the name in the settings."""
    monkeypatch.setenv("NODE_NAME", of_vgpud)
    os.makedirs(node.run_dir, exist_ok=True)
    state: plugin_state.State = {"alive": True, "ready": True, "health_known": True, "warnings": [], "node": of_plugin}
    plugin_state.write(node.run_dir, state, BOOT, since_boot())
    assert node.round()["node"] == expected


def test_of_containers_with_one_budget_one_counts(node: Node) -> None:
    for name, created in (("b", 9.0), ("a", 8.0), ("c", 10.0)):
        node.hold(name, procfs.start_time(os.getpid()), created=created)
    for path in (paths.claim(node.run_dir, name) for name in "ab"):
        records.write(path, {**records.read(path), "prepared": ["claim-0"]})
    assert [one["container"] for one in node.round()["containers"] if one["counted"]] == ["a", "c"]


def test_refusals_that_a_container_reports_are_an_incident(node: Node) -> None:
    assert node.round()["incidents"] == []
    node.hold("a", procfs.start_time(os.getpid()))
    (found,) = node.round()["incidents"]
    assert found == {
        "kind": "out-of-memory", "container": "a", "pod_uid": "uid-1", "container_name": "main", "uuid": UUID,
        "limit": 4 * GIB, "amount": 7, "at": 5000.0,
    }  # fmt: skip


def test_an_earlier_libvcuda_counts_no_waits(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeShare, "report", Report({UUID: (3_000_000_000, 1, 2, 3)}, {}, {}))
    node.hold("a", procfs.start_time(os.getpid()))
    reported = node.round()["containers"][0]["cards"][0]["reported"]
    assert reported["used_ns"] == 3_000_000_000
    assert not {"throttled_ns", "refusals", "waits"} & set(reported)


def test_the_hosts_figure_counts_only_while_it_counts_in_the_container(node: Node) -> None:
    node.hold("a", procfs.start_time(os.getpid()))
    limits.set_overheads(paths.limits(node.run_dir, "a"), {UUID: (7, 5000)})
    assert node.round()["containers"][0]["cards"][0]["memory_driver"] == 0


def test_the_dead_are_not_in_it_and_a_container_outside_kubernetes_has_its_id(node: Node) -> None:
    node.hold("a", procfs.start_time(os.getpid()), holder=None, name="")
    node.hold("dead", 1)
    (one,) = node.round()["containers"]
    assert (one["container"], one["namespace"], one["pod"], one["container_name"]) == ("a", "", "", "a")


def test_a_container_that_does_not_answer_reports_nothing(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeReaders, "answers", {})
    node.hold("a", procfs.start_time(os.getpid()))
    share = node.round()["containers"][0]["cards"][0]
    assert share["reported"] is None
    assert share["memory_limit"] == 4 * GIB


def test_time_lent_and_borrowed_is_summed_up_and_ends_with_the_container(node: Node) -> None:
    node.hold("a", procfs.start_time(os.getpid()))
    for _ in range(2):
        node.now += 10
        found = node.round()
    share = found["containers"][0]["cards"][0]
    assert share["lent_ns"] == 6_000_000_000, "20 s at 30 percent beyond its share"
    assert share["borrowed_ns"] == 2_000_000_000, "it used 10 of these 30 percent"
    assert found["cards"][0]["lent_ns"] == 6_000_000_000
    node.now += 3600
    assert node.round()["containers"][0]["cards"][0]["lent_ns"] == 24_000_000_000, "a gap counts for a minute at most"
    records.write(paths.claim(node.run_dir, "a"), {**records.read(paths.claim(node.run_dir, "a")), "start_time": 1})
    node.now += 10
    assert node.round()["containers"] == []
    assert node.recorder._lent == {}


def test_why_a_card_is_ill_stands_beside_it(node: Node) -> None:
    ill = types.SimpleNamespace(reasons=lambda: {UUID: "fell off the bus"})
    node.recorder.parts.card_health = ill  # type: ignore[assignment]
    assert node.round()["cards"][0]["fault"] == "fell off the bus"


def test_the_record_goes_with_vgpud(node: Node) -> None:
    node.round()
    node.recorder.remove()
    assert not os.path.exists(paths.round_record(node.run_dir))
