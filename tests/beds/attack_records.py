"""The attacks of tests/system/attacks: what each is called, what its runs found, and the table of them in a document.

Belongs here: the mark on a test, its record below build/security, and the table. `python tests/beds/attack_records.py`
writes the table in docs/security.md anew from all records there are; a row without a newer record stays. With
VGPU_TEST_PERCENT=10 a run with --long makes a tenth of the full number of rounds. Their rounds add up as long as the
code is the same. Not here: how to attack.
"""

from __future__ import annotations

import ast
import datetime
import functools
import hashlib
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
Record = dict[str, Any]
HEAD = ("attack or fault", "who", "rounds", "outcome", "date")


def attack(name: str, who: str) -> Callable[[Any], Any]:
    """Mark a test as the attack `name` by `who`; the fixture `attack` reads it."""

    def mark(function: Any) -> Any:
        function.attack = (name, who)
        return function

    return mark


class Attack:
    """The record of one test of an attack. `case` names the test; `full`: whether it has the full number of rounds.

    `percent` of them are made now; those of the record `before` are done already.
    """

    def __init__(
        self, name: str, who: str, full: bool, case: str = "", percent: int = 100,
        before: Record | None = None, code: str = "",
    ) -> None:  # fmt: skip
        self.name = name
        self.case = case
        self.who = who
        self.full = full
        self.code = code
        self.before = before if full and before and _goes_on(before, code) else None
        self.from_percent = int(self.before["percent"]) if self.before else 0
        self.to_percent = min(100, self.from_percent + percent)
        self.done = 0
        self.outcome = f"{NOT_HELD}: the test failed"

    def rounds(self, full: int, sample: int) -> int:
        """How many rounds to make now; a part is no less than the sample."""
        made = (full * self.from_percent // 100, full * self.to_percent // 100)
        return max(sample, made[1] - made[0]) if self.full else sample

    def amount(self, full: int, sample: int) -> int:
        """What is no number of rounds, such as a size or a time."""
        return full if self.full else sample

    def held(self, rounds: int, outcome: str) -> None:
        """The last step of a test that found nothing."""
        self.done, self.outcome = rounds, outcome

    def record(self) -> Record:
        rounds = self.done + (int(self.before["rounds"]) if self.before and self.done else 0)
        told = {**row(self.name, self.who, rounds, self.outcome), "case": self.case}
        return {**told, "percent": self.to_percent, "code": self.code} if self.full else told


def _goes_on(before: Record, code: str) -> bool:
    """Whether a record is of a part of the rounds, without a finding, with this code."""
    return before["rounds"] > 0 and before.get("percent", 100) < 100 and before.get("code") == code


def row(name: str, who: str, rounds: int, outcome: str) -> Record:
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    return {"attack": name, "who": who, "rounds": rounds, "outcome": outcome, "date": today}


@functools.lru_cache(maxsize=1)
def code_of_now() -> str:
    """A digest of the sources that the attacks aim at."""
    found = hashlib.sha256()
    for top in ("config", "hook", "plugin"):
        for path in sorted((CHECKOUT / top).rglob("*")):
            if path.suffix in (".py", ".c", ".h"):
                found.update(f"{path.relative_to(CHECKOUT)}\0".encode() + path.read_bytes())
    return found.hexdigest()[:16]


def percent_of_now() -> int:
    return int(os.environ.get("VGPU_TEST_PERCENT", "100"))


def last(file: str, name: str, case: str = "", folder: Path = RECORDS) -> Record | None:
    """The record of this case in `folder`/`file`.json."""
    path = folder / f"{file}.json"
    records = json.loads(path.read_text()) if path.exists() else []
    return next((item for item in records if (item["attack"], item.get("case", "")) == (name, case)), None)


def save(record: Record, file: str, folder: Path = RECORDS) -> None:
    """Put the record into `folder`/`file`.json, in the place of the last of its case.

    A record with more rounds stays, unless this one comes from full counts of other code, or has a finding.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{file}.json"
    before = json.loads(path.read_text()) if path.exists() else []
    old = last(file, record["attack"], record.get("case", ""), folder)
    newer = "code" in record and bool(old) and old.get("code") != record["code"]
    if old and old["rounds"] > record["rounds"] > 0 and not newer:
        return
    path.write_text(json.dumps([*(item for item in before if item != old), record], indent=1) + "\n")


def saved(folder: Path = RECORDS) -> list[Record]:
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


def rendered(records: list[Record], before: list[list[str]]) -> str:
    """The table: attacks of the suite in its order, then other records by name; rows without a record as before."""
    known = {row[0]: row for row in before}
    for name in {record["attack"] for record in records}:
        known[name] = _row([record for record in records if record["attack"] == name])
    order = [name for name, _ in marked()]
    names = [*(name for name in order if name in known), *sorted(set(known) - set(order))]
    lines = [HEAD, ("---",) * len(HEAD), *(known[name] for name in names)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _row(cases: list[Record]) -> list[str]:
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
