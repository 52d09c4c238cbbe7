"""The owners and modes of the files that vgpu writes, as docs/files.md lists them.

Belongs here: reading the table, and comparing a listing with it. `LISTING` is the command that lists a node. Does not
belong here: making a node that has these files.
"""

from __future__ import annotations

import fnmatch
from pathlib import Path

from checkout import CHECKOUT

PAGE = CHECKOUT / "docs/files.md"
LISTING = "find /etc/vgpu /run/vgpu /var/lib/vgpu -printf '%y %m %u:%g %p\\n'"
TYPES = {"directory": "d", "file": "f", "socket": "s"}


def table(page: Path = PAGE) -> dict[str, str]:
    """Type, mode and owner, as LISTING prints them, by pattern of paths."""
    found = {}
    for line in page.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        if line.startswith("| `/"):
            path, kind, owner, mode, why = cells
            assert why, f"{path}: no reason"
            found[path] = f"{TYPES[kind]} {mode} {owner}"
    return found


def wrong(listing: str) -> list[str]:
    """The lines of a listing that differ from the table, each with what the table has."""
    rows = table()
    found = []
    for line in listing.splitlines():
        kind, mode, owner, path = line.split(" ", 3)
        wanted = next(
            (row for pattern, row in rows.items() if _matches(path, pattern)), "nothing: add it with its reason"
        )
        if wanted != f"{kind} {mode} {owner}":
            found.append(f"{line}: {PAGE.name} has {wanted}")
    return found


def _matches(path: str, pattern: str) -> bool:
    """As fnmatch, but `*` is one name."""
    return path.count("/") == pattern.count("/") and fnmatch.fnmatchcase(path, pattern)
