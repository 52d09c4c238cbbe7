"""The attacks of tests/system/attacks: what each is called, what its runs found, and the table of them in a document.

Belongs here: the mark on a test, its record below build/security, and the table. `python tests/beds/attack_records.py`
writes the table in docs/security.md anew from all records there are; a row without a newer record stays. Not here: how
to attack.
"""

from __future__ import annotations

import ast
import datetime
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
CHECKOUT = next(folder for folder in HERE.parents if (folder / "pyproject.toml").exists())
SUITE = CHECKOUT / "tests/system/attacks"
RECORDS = Path(os.environ.get("VGPU_BUILD", CHECKOUT / "build")) / "security"
PAGE = CHECKOUT / "docs/security.md"
BEGIN, END = "<!-- table of attacks: begin -->", "<!-- table of attacks: end -->"
NOT_HELD = "NOT HELD"
HEAD = ("attack or fault", "who", "rounds", "outcome", "date")


def attack(name: str, who: str) -> Callable[[Any], Any]:
    """Mark a test as the attack `name` by `who`; the fixture `attack` reads it."""

    def mark(function: Any) -> Any:
        function.attack = (name, who)
        return function

    return mark


class Attack:
    """The record of one test of an attack. `case` names the test; `full`: whether it has the full number of rounds."""

    def __init__(self, name: str, who: str, full: bool, case: str = "") -> None:
        self.name = name
        self.case = case
        self.who = who
        self.full = full
        self.done = 0
        self.outcome = f"{NOT_HELD}: the test failed"

    def rounds(self, full: int, sample: int) -> int:
        return full if self.full else sample

    def held(self, rounds: int, outcome: str) -> None:
        """The last step of a test that found nothing."""
        self.done, self.outcome = rounds, outcome

    def record(self) -> dict[str, Any]:
        today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
        told = {"attack": self.name, "who": self.who, "rounds": self.done, "outcome": self.outcome, "date": today}
        return {**told, "case": self.case}


def save(made: Attack, file: str, folder: Path = RECORDS) -> None:
    """Put the record into `folder`/`file`.json, in the place of one of the same case with no more rounds."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{file}.json"
    before = json.loads(path.read_text()) if path.exists() else []
    record = made.record()
    mine = (made.name, made.case)
    old = next((item for item in before if (item["attack"], item.get("case", "")) == mine), None)
    if old and old["rounds"] > record["rounds"] > 0:
        return
    path.write_text(json.dumps([*(item for item in before if item is not old), record], indent=1) + "\n")


def saved(folder: Path = RECORDS) -> list[dict[str, Any]]:
    return [record for path in sorted(folder.glob("*.json")) for record in json.loads(path.read_text())]


def marked(folder: Path = SUITE) -> Iterator[tuple[str, str]]:
    """(attack, who) of every test of the suite, read from its sources."""
    for path in sorted(folder.glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for mark in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
                if isinstance(mark, ast.Call) and isinstance(mark.func, ast.Name) and mark.func.id == "attack":
                    name, who = (ast.literal_eval(word) for word in mark.args)
                    yield name, who


def rows(page: str) -> list[list[str]]:
    """The rows of the page's table, without its head."""
    lines = page.partition(BEGIN)[2].partition(END)[0].strip().splitlines()
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines[2:]]


def rendered(records: list[dict[str, Any]], before: list[list[str]]) -> str:
    """The table: attacks of the suite in its order, then other records by name; rows without a record as before."""
    known = {row[0]: row for row in before}
    for name in {record["attack"] for record in records}:
        known[name] = _row([record for record in records if record["attack"] == name])
    order = [name for name, _ in marked()]
    names = [*(name for name in order if name in known), *sorted(set(known) - set(order))]
    lines = [HEAD, ("---",) * len(HEAD), *(known[name] for name in names)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _row(cases: list[dict[str, Any]]) -> list[str]:
    """One row of all cases of an attack. One that was not held decides about the outcome."""
    told = next((case for case in cases if case["outcome"].startswith(NOT_HELD)), cases[0])
    rounds = sum(case["rounds"] for case in cases)
    return [told["attack"], told["who"], f"{rounds:,}", told["outcome"], max(case["date"] for case in cases)]


def main() -> int:
    page = PAGE.read_text(encoding="utf-8")
    head, found, rest = page.partition(BEGIN)
    if not found or END not in rest:
        print(f"{PAGE}: expected {BEGIN} and {END}, found none", file=sys.stderr)
        return 1
    table = rendered(saved(), rows(page))
    PAGE.write_text(f"{head}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
