"""The two languages in which faults are planted: where, how many in which area, and what is run for one.

Belongs here: what differs between Python and C. Not the operators, and not the map of tests.
"""

from __future__ import annotations

import ast
import collections
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import c_operators
import coverage
import killers
import python_operators
import sites
from planting import Tests, Tree


class Language:
    areas: ClassVar[dict[str, Sequence[str]]]
    count: ClassVar[int]

    def __init__(self, tree: Tree) -> None:
        self.tree, self.tests = tree, Tests(tree)

    def parse(self, source: str) -> Iterator[sites.Site]:
        raise NotImplementedError

    def ready(self) -> None:
        """What must be there before the first fault is planted."""
        raise NotImplementedError

    def stages(self, file: str, site: sites.Site) -> killers.Stages:
        """The tests that may find the fault: those that cost little, and those that are run where they find nothing."""
        raise NotImplementedError

    def run(self, file: str, site: sites.Site, tests: Sequence[str]) -> dict[str, Any]:
        """Which of the tests finds the fault."""
        raise NotImplementedError

    def sample(self, chance: random.Random, count: int) -> list[sites.Identity]:
        """`count` faults in equal parts of the areas. Each line of code is as likely as any other of its area."""
        found = []
        for number, patterns in enumerate(self.areas.values()):
            found += self._draw(self.tree.sources(patterns), chance, (count + number) // len(self.areas))
        chance.shuffle(found)  # a run that is stopped early has some of each area
        return found

    def _draw(self, sources: dict[str, str], chance: random.Random, count: int) -> list[sites.Identity]:
        by_file = {file: list(self.parse(source)) for file, source in sources.items()}
        by_line = collections.defaultdict(list)
        for file, found in by_file.items():
            for site in found:
                by_line[file, site.line].append(site)
        lines = chance.sample(sorted(by_line), min(count, len(by_line)))
        drawn = [(place[0], chance.choice(by_line[place])) for place in lines]
        return [sites.describe(site, by_file[file], sources[file].splitlines(), file) for file, site in drawn]

    def find(self, identity: sites.Identity) -> sites.Place | None:
        sources = self.tree.sources([pattern for patterns in self.areas.values() for pattern in patterns])
        return sites.find(identity, sources, lambda file: list(self.parse(sources[file])))


class Python(Language):
    areas: ClassVar = {"product": ("config/vgpu/**/*.py", "hook/vgpu/**/*.py", "plugin/vgpu/**/*.py")}
    count = 300

    def parse(self, source: str) -> Iterator[sites.Site]:
        return python_operators.sites(source)

    def ready(self) -> None:
        sys.path[:0] = [str(self.tree.root / "tests" / folder) for folder in ("rules", "beds")]
        from test_tiers import ELSEWHERE

        self.elsewhere, data = ELSEWHERE, self.tree.build / "mutants.coverage"
        os.environ["COVERAGE_FILE"] = str(data)
        parts = [f"--cov={self.tree.root / part}" for part in ("config", "hook", "plugin")]
        self.tests.look_at(["unit"], *parts, "--cov-context=test", "--cov-report=")
        self.covered = coverage.CoverageData(str(data))
        self.covered.read()

    def stages(self, file: str, site: sites.Site) -> killers.Stages:
        unit, processes = killers.of_python(file, self.tree.root / "tests", self.elsewhere)
        return list(dict.fromkeys([*unit, *self._unit_tests(file, site.line + 1)])), processes

    def run(self, file: str, site: sites.Site, tests: Sequence[str]) -> dict[str, Any]:
        self.tests.look_at([name for name in tests if not name.startswith("unit/")])
        with self.tree.planted(file, site.mutated()):
            return self.tests.find(tests)

    def _unit_tests(self, file: str, line: int) -> list[str]:
        """The files of unit tests that run the line's statement; where an import runs it, all that run the module."""
        by_line = self.covered.contexts_by_lineno(str(self.tree.root / file))
        statement = _statement((self.tree.root / file).read_text(), line)
        names = {name for at in statement for name in by_line.get(at, ())}
        if "" in names:
            names = {name for found in by_line.values() for name in found}
        return sorted({name.partition("::")[0].removeprefix("tests/") for name in names if name})


def _statement(source: str, line: int) -> range:
    """The lines of the innermost statement around `line`, of a compound one those of its head."""
    best = range(line, line + 1)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            end = max(node.lineno, body[0].lineno - 1) if body else node.end_lineno or node.lineno
            if node.lineno <= line <= end:
                best = range(node.lineno, end + 1)
    return best


class C(Language):
    areas: ClassVar = {
        "memory": ("libvcuda/src/memory/*.c",),
        "compute": ("libvcuda/src/compute/*.c",),
        "others": tuple(f"libvcuda/src/{folder}/*.c" for folder in ("hooks", "shared", "driver", "base")),
    }
    count = 120

    def parse(self, source: str) -> Iterator[sites.Site]:
        return c_operators.sites(source)

    def ready(self) -> None:
        """A build without warnings as errors, so that a fault that leaves something unused can be tried."""
        configure = ["cmake", "-S", str(self.tree.root), "-B", str(self.tree.build), "-DVGPU_WERROR=OFF"]
        for command in (configure, ["cmake", "--build", str(self.tree.build)]):
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def stages(self, file: str, site: sites.Site) -> killers.Stages:
        return killers.of_c(file, self.tree.root / "tests")

    def run(self, file: str, site: sites.Site, tests: Sequence[str]) -> dict[str, Any]:
        if not self.tests.looked.issuperset(tests) and self.tree.compiles():
            self.tests.look_at(tests)
        with self.tree.planted(file, site.mutated()):
            return self.tests.find(tests) if self.tree.compiles() else {"outcome": "not compiled"}
