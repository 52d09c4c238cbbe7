"""Plants small faults in the product, one at a time, and records by which test each is found.

Belongs here: the command, the record and the comparison with an earlier one. A fault is written into the source
itself, so that processes that a test starts have it too, and is taken out before the next one. A record has one line of
JSON for each fault, with what finds its place again after code has moved (sites.py).
"""

from __future__ import annotations

import argparse
import collections
import fcntl
import json
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from languages import C, Language, Python
from planting import Tree

Record = dict[str, Any]
CHECKOUT = Path(__file__).resolve().parents[2]
LANGUAGES: dict[str, type[Language]] = {"python": Python, "c": C}
FOUND = ("killed", "timeout")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", help="of the sample; the time's if it is not given")
    parser.add_argument("--count", type=int, help="faults for each language")
    parser.add_argument("--only", choices=LANGUAGES, help="one language")
    parser.add_argument("--record", type=Path, help="tries the faults of this record again, and compares")
    parser.add_argument("--out", type=Path, help="the new record; faults that it has already are not tried again")
    parser.add_argument("--tree", type=Path, default=CHECKOUT, help="the checkout in which the faults are planted")
    parser.add_argument("--build", type=Path, help="its build, which is changed; with Python's faults it is only used")
    return parser.parse_args()


def read(path: Path) -> list[Record]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def as_line(record: Record) -> str:
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n"


def identity(record: Record) -> tuple[Any, ...]:
    return tuple(record[name] for name in ("file", "function", "operator", "line", "before", "after", "occurrence"))


def bare(record: Record) -> Record:
    """A recorded fault without its results, but for the test that found it."""
    return {name: value for name, value in record.items() if name not in ("outcome", "ran", "seconds", "stage")}


def language_of(record: Record) -> str:
    return "python" if record["file"].endswith(".py") else "c"


def attempt(language: Language, wanted: Record, stage: int) -> Record:
    began, place = time.monotonic(), language.find(wanted)
    if not place:
        return {**wanted, "outcome": "gone"}
    tests = language.stages(*place)[stage]
    found = language.run(*place, [wanted["by"]]) if "by" in wanted else {"outcome": "survived"}
    if found["outcome"] == "survived":
        found = language.run(*place, tests)
    ran = [*wanted.get("ran", ()), *found.pop("ran", ())]
    known = {name: value for name, value in wanted.items() if name not in ("by", "ran")}
    found |= {"ran": ran} if found["outcome"] == "survived" else {}
    return {**known, **found, "stage": stage, "seconds": wanted.get("seconds", 0) + round(time.monotonic() - began)}


def attempts(language: Language, wanted: Sequence[Record], out: Path) -> list[Record]:
    """Tries all faults on the first stage, then on the second those that no test found. Each result is written at once;
    a later line of `out` replaces an earlier one, and what is there already is not tried again.
    """
    have = {identity(record): record for record in read(out)}
    language.ready()
    for stage in (0, 1):
        for record in wanted:
            last = have.get(identity(record), record if stage == 0 else None)
            if last and (last is record or (last["outcome"] == "survived" and last["stage"] < stage)):
                have[identity(record)] = attempt(language, last, stage)
                with out.open("a") as file:
                    file.write(as_line(have[identity(record)]))
                show(have[identity(record)])
    out.write_text("".join(map(as_line, have.values())))
    return [have[identity(record)] for record in wanted]


def show(record: Record) -> None:
    place = f"{record['file']} {record['function']}: {record['line']}"
    print(f"{record['outcome']}: {place}  ->  {record['becomes']}  {record.get('by', '')}", flush=True)


def main() -> int:
    given = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the fault is taken out
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, and so would pytest
    one_run = (given.tree / "Makefile").open()
    fcntl.flock(one_run, fcntl.LOCK_EX)  # another run's fault would be read as the source
    seed = given.seed or str(int(time.time()))
    before = read(given.record) if given.record else []
    found: list[Record] = []
    out = given.out or given.tree / "build/mutants.jsonl"
    if not given.out:
        out.unlink(missing_ok=True)
    for name in [given.only] if given.only else LANGUAGES:
        build = given.build or given.tree / ("build" if name == "python" else "build/mutants")
        language = LANGUAGES[name](Tree(given.tree, build))
        wanted = [bare(record) for record in before if language_of(record) == name]
        if not given.record:
            wanted = language.sample(random.Random(seed), given.count or language.count)
        found += attempts(language, wanted, out)
    print(f"seed {seed}:", dict(collections.Counter(record["outcome"] for record in found)), f"in {out}")
    return lost(before, found)


def lost(before: Sequence[Record], now: Sequence[Record]) -> int:
    """The status: 1 if a fault that a test found before is found no longer."""
    were = {identity(record) for record in before if record["outcome"] in FOUND}
    missed = [record for record in now if identity(record) in were and record["outcome"] not in FOUND]
    for record in missed:
        print(f"found before, not now ({record['outcome']}): {record['file']} {record['function']}: {record['line']}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
