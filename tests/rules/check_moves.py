"""`check_moves.py [TABLE]`: whether git follows each move of docs/decisions/names.md from the new name to the old.

The table's rows are `| old path | new path |`; rows of merged and split files stand under a heading of their own and
are not asked. Needs the whole history, so it is a program and no test. Exit status 1 when a move is lost.
"""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CHECKOUT = next(parent for parent in Path(__file__).resolve().parents if (parent / "pyproject.toml").exists())
TABLE = CHECKOUT / "docs/decisions/names.md"
HEADING = "## Moved one to one"
ROW = re.compile(r"^\| `([^`]+)` \| `([^`]+)` \|$", re.MULTILINE)


def moves(text: str) -> list[tuple[str, str]]:
    """(old path, new path) of the rows below HEADING, up to the next heading."""
    section = text.split(HEADING, 1)[1].split("\n## ", 1)[0]
    return ROW.findall(section)


def names_of(path: str) -> set[str]:
    """Every name that `git log --follow` finds for the file at `path`."""
    command = ["git", "log", "--follow", "--format=", "--name-status", "--diff-filter=R", "--", path]
    listed = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout
    return {name for line in listed.splitlines() for name in line.split("\t")[1:]}


def main(arguments: list[str]) -> int:
    table = Path(arguments[0]) if arguments else TABLE
    rows = moves(table.read_text(encoding="utf-8"))
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(names_of, [new for _, new in rows]))
    lost = [f"{new}: does not lead to {old}" for (old, new), names in zip(rows, found) if old not in names]
    print("\n".join([*lost, f"{len(rows) - len(lost)} of {len(rows)} moves are followed"]))
    return 1 if lost or not rows else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
