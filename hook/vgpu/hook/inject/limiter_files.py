"""Which files of libvcuda a share gets: the copies for this driver, or the packaged libraries.

Belongs here: one look at the status of each file. Not here: making the copies (vgpu.node.driver.library_copies). The
hook hashes nothing, and a copy is never changed in place. Between an upgrade of the package and the next inventory a
container gets what those before it got: the packaged library would show it names that the driver lacks.
"""

from __future__ import annotations

import os

from vgpu.config.inventory import DO, Inventory, LimiterCopy, identity


def choose(inventory: Inventory, libvcuda_dir: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """(the host's path of each library whose copy is to be used, by SONAME; a line for each that is not)."""
    chosen: dict[str, str] = {}
    notes = [] if inventory.copies else [f"the inventory has no copy of libvcuda for this driver; {DO}"]
    for copy in inventory.copies:
        problem = copy.reason or (_problem(copy.path) if copy.path else "")
        if problem:
            notes.append(f"{copy.name}: programs see names that driver {inventory.driver_version} lacks: {problem}")
        elif copy.path:
            chosen[copy.name] = copy.path
            notes += _age(copy, f"{libvcuda_dir}/{copy.name}")
    return chosen, tuple(notes)


def inode(path: str) -> int:
    """The number of the file at `path`, by which vgpud knows it in what processes map; 0 when it is gone, or none."""
    try:
        return os.stat(path).st_ino if path else 0
    except OSError:
        return 0


def _problem(path: str) -> str:
    """Why the copy cannot be used, or ""."""
    try:
        os.stat(path)
    except OSError as error:
        return f"{error.filename}: {error.strerror}; {DO}"
    return ""


def _age(copy: LimiterCopy, packaged: str) -> list[str]:
    """A line if the copy is of another package than is installed."""
    try:
        if identity(os.stat(packaged)) == copy.packaged:
            return []
    except OSError as error:
        return [f"{copy.name}: the copy stays in use: {error.filename}: {error.strerror}"]
    return [f"{copy.name}: the copy stays in use: {packaged} is another one than when the inventory was taken; {DO}"]
