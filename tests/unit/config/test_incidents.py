"""Incidents in the record of a round, and records of any form."""

from __future__ import annotations

import pytest

from vgpu.config.incidents import KINDS, UNCOVERED, Incident, of_record


def whole(kind: str) -> dict[str, object]:
    return Incident(kind, "c", "u", "main", "GPU-a", 1 << 30, 1, 5.5, "/x" if kind == UNCOVERED else "").record()


def test_a_record_is_read_as_it_was_written() -> None:
    records = [whole(kind) for kind in KINDS]
    assert [one.record() for one in of_record({"incidents": records})] == records
    assert of_record({}) == []


@pytest.mark.parametrize("junk", [None, 1, "x", [None, 1, "x", {}, {"kind": []}], {"a": 1}])
def test_a_record_of_any_form_is_read(junk: object) -> None:
    assert of_record({"incidents": junk}) == []


@pytest.mark.parametrize("junk", [None, True, False, [], {}])
def test_a_damaged_incident_leaves_the_others(junk: object) -> None:
    good = whole(KINDS[0])
    for name in good:
        found = of_record({"incidents": [{**good, name: junk}, good]})
        assert [one.record() for one in found] == [good], name
