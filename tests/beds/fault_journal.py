"""What each fault of the table did in the full counts, one line a fault below build/security, so that runs add up.

Belongs here: which faults are still to do, and the row of the table that all of them make. A run may take a part of
them (VGPU_TEST_PERCENT) or be interrupted; the next one goes on while the code is the same. Not here: the faults.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import attack_records
from fault_bed import Fault, Outcome

Done = dict[str, Outcome]
HOLDS = "nothing left over, the next start got its share"


class Journal:
    """The outcomes by fault. `sample`: no full counts, but so many faults, of which no line stays."""

    def __init__(
        self, name: str, sample: int, folder: Path = attack_records.RECORDS, percent: int = 100, code: str = ""
    ) -> None:
        self.name = name
        self.sample = sample
        self.folder = folder
        self.percent = percent
        self.code = code
        self.done: Done = {} if sample else dict(self._read())

    def _read(self) -> list[tuple[str, Outcome]]:
        if not self.path.exists():
            return []
        lines = map(json.loads, self.path.read_text().splitlines())
        return [
            (line["fault"], Outcome(line["what"], line["line"], line["problems"]))
            for line in lines
            if line["code"] == self.code
        ]

    @property
    def path(self) -> Path:
        return self.folder / f"{self.name}.jsonl"

    def to_do(self, faults: Sequence[Fault]) -> list[Fault]:
        """A random sample; or those of the faults that were not done yet or had a finding, a part of them."""
        if self.sample:
            chance = random.Random(f"{os.environ.get('VGPU_SAMPLE')} {self.name}")
            return chance.sample(faults, min(self.sample, len(faults)))
        told = {fault.describe() for fault in faults}
        self.done = {fault: outcome for fault, outcome in self.done.items() if fault in told}
        left = [f for f in faults if f.describe() not in self.done or self.done[f.describe()].problems]
        return left[: max(1, len(faults) * self.percent // 100)]

    def run(self, faults: Sequence[Fault], made: Callable[[Fault], Outcome]) -> Done:
        """Outcomes of the faults to do, and of those done before."""
        for fault in self.to_do(faults):
            self._note(fault.describe(), made(fault))
        return self.done

    def _note(self, fault: str, outcome: Outcome) -> None:
        self.done[fault] = outcome
        if not self.sample:
            self.folder.mkdir(parents=True, exist_ok=True)
            told = {"what": outcome.what, "line": outcome.line, "problems": outcome.problems}
            with self.path.open("a") as stream:
                stream.write(json.dumps({"code": self.code, "fault": fault, **told}) + "\n")

    def judge(self, attack: str, of: int, sites: int, holds: str = HOLDS) -> None:
        """Write the table's row; fail with what went wrong. `of`: how many faults there are, at so many `sites`."""
        counts = Counter(outcome.what for outcome in self.done.values())
        told = ", ".join(f"{number} {what}" for what, number in sorted(counts.items()))
        bad = [f"{fault}: {it.what} {it.line}: {it.problems}" for fault, it in self.done.items() if it.problems]
        outcome = f"of {of:,} faults at {sites} sites: {told}; {holds}"
        if bad:
            outcome = f"{attack_records.NOT_HELD}: {len(bad)} failed"
        record = attack_records.row(attack, "the node", len(self.done), outcome)
        attack_records.save(record if self.sample else {**record, "code": self.code}, self.name, self.folder)
        print(f"{attack}: {len(self.done)} rounds: {outcome}")
        assert not bad, "\n".join(line[:1000] for line in bad[:10])
