"""What vgpud remembers of containers: refusals that are new, violations, and for how long."""

from __future__ import annotations

import pytest

from vgpu.config import incidents as records
from vgpu.config.claims import Claim
from vgpu.config.grants import Holder
from vgpu.config.incidents import OVER_LIMIT
from vgpu.config.limits import CardLimit
from vgpu.node.daemon.incidents import KEPT, MOST, Incidents

A, B = "GPU-a", "GPU-b"
GIB = 1 << 30


def claim(name: str, start_time: int = 1) -> Claim:
    cards = [CardLimit(A, GIB, 50, 50), CardLimit(B, 2 * GIB, 50, 50)]
    return Claim(name, 5, start_time, cards, False, Holder(f"uid-{name}", "main"), [], "/b", 1.0)


class Node:
    """vgpud's incidents, and the refusals that its containers report."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.claims: list[Claim] = []
        self.reports: dict[str, dict[str, int] | None] = {}
        self.incidents = Incidents(lambda: self.now)

    def report(self, container: str, start_time: int = 1, **refusals: int) -> None:
        self.claims = [*(one for one in self.claims if one.container != container), claim(container, start_time)]
        self.reports[container] = {f"GPU-{card}": count for card, count in refusals.items()}

    def round(self) -> list[tuple[str, str, int, float]]:
        self.now += 2
        self.incidents.look_at_refusals(self.claims, self.reports.get)
        found = records.of_record({"incidents": self.incidents.records()})
        return [(one.container, one.uuid, one.amount, one.at) for one in found]


@pytest.fixture
def node() -> Node:
    return Node()


def test_refusals_are_an_incident_when_their_count_grows(node: Node) -> None:
    assert node.round() == []
    node.report("c", a=0, b=0)
    assert node.round() == []
    node.report("c", a=0, b=3)
    assert node.round() == [("c", B, 3, 1006.0)]
    assert node.round() == [("c", B, 3, 1006.0)]
    node.report("c", a=0, b=4)
    assert node.round() == [("c", B, 4, 1010.0)]


def test_a_new_container_whose_first_report_has_refusals_is_one(node: Node) -> None:
    node.round()
    node.report("c", a=2)
    assert node.round() == [("c", A, 2, 1004.0)]


def test_what_was_refused_before_vgpuds_start_is_none_even_if_it_is_read_later(node: Node) -> None:
    node.report("c", a=2)
    node.reports["c"] = None
    assert node.round() == []
    node.report("c", a=2)
    assert node.round() == []
    node.report("c", a=3)
    assert node.round() == [("c", A, 3, 1006.0)]


def test_a_report_that_is_not_known_in_between_loses_nothing(node: Node) -> None:
    node.round()
    node.report("c", a=0)
    node.round()
    node.reports["c"] = None
    assert node.round() == []
    node.report("c", a=1)
    assert [found[2] for found in node.round()] == [1]


def test_a_count_that_falls_is_none_and_the_next_life_of_an_id_begins_anew(node: Node) -> None:
    node.round()
    node.report("c", a=5)
    node.round()
    node.report("c", a=1)
    assert [found[2] for found in node.round()] == [5]
    node.report("c", start_time=2, a=1)
    assert [found[2] for found in node.round()] == [1]


def test_an_incident_outlives_its_container_for_ten_minutes(node: Node) -> None:
    node.incidents.note(OVER_LIMIT, claim("c"), B, 3 * GIB)
    (one,) = records.of_record({"incidents": node.incidents.records()})
    assert (one.kind, one.pod_uid, one.container_name, one.uuid) == (OVER_LIMIT, "uid-c", "main", B)
    assert (one.limit, one.amount, one.at) == (2 * GIB, 3 * GIB, 1000.0)
    node.now += KEPT
    assert len(node.incidents.records()) == 1
    node.now += 1
    assert node.incidents.records() == []


def test_twenty_thousand_containers_leave_the_newest(node: Node) -> None:
    node.round()
    for number in range(20_000):
        node.incidents.note(OVER_LIMIT, claim(f"c{number}"), A, 1)
        if number % 100 == 0:
            assert len(node.incidents.records()) <= MOST
            node.incidents.look_at_refusals([claim(f"c{number}")], lambda _: {A: 1})
    found = [str(one["container"]) for one in node.incidents.records()]
    assert len(found) == MOST
    assert found[-1] == "c19999"
    assert len(node.incidents._refusals) == 1
