"""Notices of incidents and faults: their words, to whom they go, and how often."""

from __future__ import annotations

import pytest

from vgpu.config.claims import Claim
from vgpu.config.grants import Holder
from vgpu.config.incidents import (
    KINDS,
    LOCK_FLOOD,
    OUT_OF_MEMORY,
    OVER_LIMIT,
    STOPPED,
    UNCOVERED,
    UNLIMITED_PROCESS,
    Incident,
)
from vgpu.config.limits import CardLimit
from vgpu.plugin.apiserver.pod_incidents import HOUR, Notice, Repeats, of_faults, of_incidents

A, B = "GPU-a", "GPU-b"
GIB = 1 << 30
NOON = 100 * HOUR


def incident(kind: str, amount: int = 3 * GIB, at: float = NOON, **changes: str) -> Incident:
    names = {"container": "0123456789abcdef", "pod_uid": "u", "container_name": "main", "uuid": A, **changes}
    return Incident(kind, limit=2 * GIB, amount=amount, at=at, **names)


@pytest.mark.parametrize(
    ("kind", "amount", "reason", "text"),
    [
        (OVER_LIMIT, 3 * GIB, "MemoryLimitExceeded",
         "container main holds 3072 MiB of card GPU-a, and its limit is 2048 MiB: its programs go past libvcuda"),
        (STOPPED, 3 * GIB, "KilledForMemory", "container main holds 3072 MiB of card GPU-a, and its limit is 2048 MiB: "
         "vgpud has killed it (limits.enforcement: kill)"),
        (LOCK_FLOOD, 1000, "LockFlood", "container main holds 1000 locks or more on the presence file of card GPU-a: "
         "the card's other containers take no turns meanwhile"),
        (OUT_OF_MEMORY, 7, "OutOfCardMemory",
         "container main reports 7 allocations that did not fit into its 2048 MiB of memory on card GPU-a"),
        (UNLIMITED_PROCESS, 2, "LimiterBypassed", "container main: 2 processes use card GPU-a without vgpu's libcuda, "
         "so no limit holds for them; one has loaded /x/libcuda.so.1"),
        (UNCOVERED, 1, "DriverCopyNotCovered", "container main may run without its limits: /x/libcuda.so.1"),
    ],
)  # fmt: skip
def test_the_words_of_each_kind(kind: str, amount: int, reason: str, text: str) -> None:
    (notice,) = of_incidents([incident(kind, amount, detail="/x/libcuda.so.1")])
    assert notice.pod_uid == "u"
    assert notice.complaint == (reason, text)


def test_each_kind_has_words_and_a_container_without_a_pod_has_no_notice() -> None:
    assert len(list(of_incidents(map(incident, KINDS)))) == len(KINDS)
    assert list(of_incidents([incident(OVER_LIMIT, pod_uid="")])) == []


def test_a_container_whose_runtime_names_it_not_goes_by_its_id() -> None:
    (notice,) = of_incidents([incident(OVER_LIMIT, container_name="")])
    assert notice.complaint.text.startswith("container 0123456789ab holds")


def test_the_containers_on_a_faulty_card_and_no_others() -> None:
    claims = [
        Claim("c1", 1, 1, [CardLimit(A), CardLimit(B)], True, Holder("u1", "main"), [], "/b", 1.0),
        Claim("c2", 1, 1, [CardLimit(A)], False, Holder("u2", "main"), [], "/b", 1.0),
        Claim("c3", 1, 1, [CardLimit(B)], False, None, [], "/b", 1.0),
    ]
    (notice,) = of_faults(claims, {B: "card 1 (GPU-b, T4): Xid 79, fell off the bus; reset the card"}, NOON)
    assert notice.pod_uid == "u1"
    assert notice.complaint == (
        "CardFault",
        "container main uses a card that is out of order: card 1 (GPU-b, T4): Xid 79, fell off the bus; reset the card",
    )


def written(repeats: Repeats, *incidents: Incident) -> list[str]:
    """The reasons for which an event is due; they are written."""
    due = [notice for notice in of_incidents(incidents) if repeats.is_due(notice)]
    for notice in due:
        repeats.written(notice)
    return [notice.complaint.reason for notice in due]


def test_one_event_an_hour_for_each_reason_and_container() -> None:
    repeats = Repeats()
    assert written(repeats, incident(OVER_LIMIT), incident(OUT_OF_MEMORY)) == ["MemoryLimitExceeded", "OutOfCardMemory"]
    assert written(repeats, incident(OVER_LIMIT, uuid=B), incident(OUT_OF_MEMORY, 9)) == []
    assert written(repeats, incident(OVER_LIMIT, container_name="side")) == ["MemoryLimitExceeded"]
    assert written(repeats, incident(OVER_LIMIT, pod_uid="v")) == ["MemoryLimitExceeded"]
    late = [incident(OVER_LIMIT, at=NOON + minutes * 60) for minutes in range(1, 300)]
    assert len([one for one in late if written(repeats, one)]) == 4


def test_the_edge_of_an_hour_gives_no_second_event() -> None:
    repeats = Repeats()
    assert written(repeats, incident(OVER_LIMIT, at=NOON - 1)) == ["MemoryLimitExceeded"]
    assert written(repeats, incident(OVER_LIMIT, at=NOON + 1)) == []


def test_a_fault_is_one_event_until_it_is_another_an_hour_later() -> None:
    claim = Claim("c", 1, 1, [CardLimit(A)], False, Holder("u", "main"), [], "/b", 1.0)
    repeats = Repeats()
    count = 0
    for minute in range(600):
        (notice,) = of_faults([claim], {A: f"{minute // 5} uncorrected memory errors"}, NOON + 60 * minute)
        if repeats.is_due(notice):
            repeats.written(notice)
            count += 1
        repeats.forget([notice], notice.at)
    assert count == 10
    (same,) = of_faults([claim], {A: "108 uncorrected memory errors"}, NOON + 60 * 6000)
    assert not repeats.is_due(same), "the text of the last event, however long it lasts"


def test_what_is_over_is_forgotten_after_an_hour_and_not_before() -> None:
    repeats = Repeats()
    for number in range(20_000):
        written(repeats, incident(OVER_LIMIT, at=NOON + number, pod_uid=f"u{number}"))
        if number % 500 == 0:
            repeats.forget([], NOON + number)
    assert len(repeats._written) <= HOUR + 500
    notice: Notice = next(of_incidents([incident(OVER_LIMIT, at=NOON + 19_999, pod_uid="u19999")]))
    assert not repeats.is_due(notice)
