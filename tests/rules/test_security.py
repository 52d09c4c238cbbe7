"""docs/security.md: each requirement names a place and a test that exist, and each attack of the suite has its row."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import attack_records
import pytest
from attack_records import PAGE
from checkout import CHECKOUT

REQUIREMENT = re.compile(r"^\| (\d+) \| .+ \| `([^`]+)` \| `([^`]+)` \|$", re.MULTILINE)


def requirements() -> list[tuple[str, str, str]]:
    return REQUIREMENT.findall(PAGE.read_text(encoding="utf-8"))


def test_they_are_numbered_in_their_order() -> None:
    assert [int(number) for number, _, _ in requirements()] == list(range(1, len(requirements()) + 1))
    assert len(requirements()) >= 20


@pytest.mark.parametrize(("number", "place", "test"), requirements())
def test_place_and_test_exist(number: str, place: str, test: str) -> None:
    assert (CHECKOUT / place).is_file()
    file, _, name = test.partition("::")
    tree = ast.parse((CHECKOUT / file).read_text(encoding="utf-8"))
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert not name or name in names, f"requirement {number}"


def test_every_attack_has_a_row_with_its_attacker() -> None:
    rows = {row[0]: row[1] for row in attack_records.rows(PAGE.read_text(encoding="utf-8"))}
    marked = dict(attack_records.marked())
    assert len(marked) >= 25
    assert {name: rows.get(name) for name in marked} == marked


def test_rows_are_whole() -> None:
    for row in attack_records.rows(PAGE.read_text(encoding="utf-8")):
        assert len(row) == len(attack_records.HEAD), row
        assert re.fullmatch(r"[\d,]+", row[2]), row
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", row[4]), row


def test_a_record_replaces_one_of_no_more_rounds(tmp_path: Path) -> None:
    def save(rounds: int, outcome: str) -> list[tuple[int, str]]:
        made = attack_records.Attack("an attack", "image", False)
        if rounds:
            made.held(rounds, outcome)
        attack_records.save(made, "file", tmp_path)
        return [(item["rounds"], item["outcome"]) for item in attack_records.saved(tmp_path)]

    assert save(10, "held") == [(10, "held")]
    assert save(200, "held longer") == [(200, "held longer")]
    assert save(10, "held shortly") == [(200, "held longer")]
    assert save(0, "") == [(0, "NOT HELD: the test failed")]


def test_the_table_keeps_rows_without_a_newer_record() -> None:
    before = [["old", "image", "1", "held", "2026-01-01"], ["again", "pod", "1", "held", "2026-01-01"]]
    records = [{"attack": "again", "who": "pod", "rounds": 12000, "outcome": "held", "date": "2026-01-02"}]
    records.append({**records[0], "case": "other", "rounds": 3, "outcome": "NOT HELD: a reason"})
    lines = attack_records.rendered(records, before).splitlines()
    assert lines[2:] == [
        "| again | pod | 12,003 | NOT HELD: a reason | 2026-01-02 |",
        "| old | image | 1 | held | 2026-01-01 |",
    ]
