"""docs/security.md: each requirement names a place and a test that exist, and each attack of the suite has its row; a
row counts no round that was not made.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import attack_records
import pytest
from attack_records import PAGE
from checkout import CHECKOUT
from fault_bed import Fault, Outcome
from fault_journal import Journal

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
        attack_records.save(made.record(), "file", tmp_path)
        return [(item["rounds"], item["outcome"]) for item in attack_records.saved(tmp_path)]

    assert save(10, "held") == [(10, "held")]
    assert save(200, "held longer") == [(200, "held longer")]
    assert save(10, "held shortly") == [(200, "held longer")]
    assert save(0, "") == [(0, "NOT HELD: the test failed")]


def test_parts_of_the_full_rounds_add_up_while_the_code_is_the_same(tmp_path: Path) -> None:
    def part(percent: int, code: str, finding: bool = False) -> int:
        before = attack_records.last("file", "an attack", "a case", tmp_path)
        made = attack_records.Attack("an attack", "image", True, "a case", percent, before, code)
        count = made.rounds(1000, 1)
        if not finding:
            made.held(count, "held")
        attack_records.save(made.record(), "file", tmp_path)
        return count

    def rounds() -> list[int]:
        return [record["rounds"] for record in attack_records.saved(tmp_path)]

    assert (part(40, "one"), rounds()) == (400, [400])
    assert (part(40, "one"), rounds()) == (400, [800])
    assert (part(40, "one"), rounds()) == (200, [1000])
    assert (part(40, "one"), rounds()) == (400, [1000]), "a whole count stays; another begins"
    assert (part(40, "two"), rounds()) == (400, [400]), "other code"
    assert (part(40, "two", finding=True), rounds()) == (400, [0])
    assert (part(40, "two"), rounds()) == (400, [400]), "after a finding none of the rounds before counts"


def test_the_faults_of_several_runs_add_up_while_the_code_is_the_same(tmp_path: Path) -> None:
    faults = [Fault(f"write < {number}", 1, "EIO") for number in range(10)]
    made: list[str] = []

    def run(percent: int, code: str, problems: tuple[str, ...] = ()) -> Journal:
        made.clear()
        journal = Journal("faults", 0, tmp_path, percent, code)
        journal.run(faults, lambda fault: made.append(fault.site) or Outcome("refused", "", list(problems)))
        return journal

    run(60, "one").judge("a fault", 10, 10)
    assert made == [fault.site for fault in faults[:6]]
    run(60, "one").judge("a fault", 10, 10)
    assert made == [fault.site for fault in faults[6:]]
    assert [record["rounds"] for record in attack_records.saved(tmp_path)] == [10]
    with pytest.raises(AssertionError, match="not as before"):
        run(30, "two", ("not as before",)).judge("a fault", 10, 10)
    assert [record["outcome"] for record in attack_records.saved(tmp_path)] == ["NOT HELD: 3 failed"]
    run(30, "two").judge("a fault", 10, 10)
    assert made == [fault.site for fault in faults[:3]], "a fault with a finding is made again"


def test_a_sample_of_the_faults_is_another_in_each_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = [Fault(str(number)) for number in range(10)]
    drawn = set()
    for seed in "123":
        monkeypatch.setenv("VGPU_SAMPLE", seed)
        first, again = (tuple(Journal("faults", 3, tmp_path).to_do(faults)) for _ in range(2))
        assert first == again and len(set(first)) == 3
        drawn.add(first)
    assert len(drawn) > 1


def test_the_table_keeps_rows_without_a_newer_record() -> None:
    before = [["old", "image", "1", "held", "2026-01-01"], ["again", "pod", "1", "held", "2026-01-01"]]
    records = [{"attack": "again", "who": "pod", "rounds": 12000, "outcome": "held", "date": "2026-01-02"}]
    records.append({**records[0], "case": "other", "rounds": 3, "outcome": "NOT HELD: a reason"})
    lines = attack_records.rendered(records, before).splitlines()
    assert lines[2:] == [
        "| again | pod | 12,003 | NOT HELD: a reason | 2026-01-02 |",
        "| old | image | 1 | held | 2026-01-01 |",
    ]
