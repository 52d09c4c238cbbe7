"""release.py ROOT VERSION: writes the list of the files that a release on a host has, usr/share/vgpu/release.json.

Belongs here: which files of the node's image those are. images.toml names them, but for the shared libraries: those
follow from what the named files are linked with. Does not belong here: copying them to a host.

The list is {"version": 1, "release": VERSION, "files": [...]}, and a file is {"path", "mode", "sha256"}, or for a link
{"path", "target"}. Paths are relative to the root of image and release, modes are numbers as in stat(2). A release is
complete without the image: a link or a library that leads out of it is an error.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path

import contents

from vgpu.config.errors import VgpuError
from vgpu.hook.formats import elf

IMAGE = "node"
PLACE = "usr/share/vgpu/release.json"
LIBRARIES = ("lib/*-linux-gnu", "usr/lib/*-linux-gnu")  #: as the gate gives them to the loader (hook/gate/release.c)


def record(root: Path, version: str) -> dict[str, object]:
    wanted = matching(root, contents.value(IMAGE, "release")) - matching(root, contents.value(IMAGE, "release_without"))
    wanted |= linked(root, wanted)
    return {"version": 1, "release": version, "files": [entry(root, path) for path in sorted(wanted)]}


def matching(root: Path, patterns: Iterable[str]) -> set[Path]:
    """Files and links, and all of them below the directories; byte code goes with its source. Each pattern matches."""
    found: set[Path] = set()
    for pattern in patterns:
        matches = list(root.glob(pattern))
        if not matches:
            sys.exit(f"release.py: {pattern}: expected a file of the image, found none; correct images.toml")
        for path in matches:
            below = path.rglob("*") if path.is_dir() and not path.is_symlink() else [path]
            found |= {one for one in below if one.is_symlink() or not one.is_dir()}
    return found | {code for path in found for code in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc")}


def linked(root: Path, paths: Iterable[Path]) -> set[Path]:
    """The shared libraries that these files need, and those that they need, with the links by which they are found."""
    folders = [folder for pattern in LIBRARIES for folder in root.glob(pattern)]
    found: set[Path] = set()
    waiting = [path for path in paths if path.is_file() and not path.is_symlink()]
    while waiting:
        for name in needed(waiting.pop()):
            library = next((folder / name for folder in folders if (folder / name).exists()), None)
            if library is None:
                sys.exit(f"release.py: {name}: expected it in {' or '.join(LIBRARIES)}, found none")
            new = {library, library.resolve()} - found
            found |= new
            waiting += [path for path in new if not path.is_symlink()]
    return found


def needed(path: Path) -> list[str]:
    """The names of the libraries that a file is linked with. What libvcuda names by a path is a container's."""
    try:
        return [name for name in elf.read(str(path)).needed if "/" not in name]
    except VgpuError:
        return []


def entry(root: Path, path: Path) -> dict[str, object]:
    name = str(path.relative_to(root))
    if path.is_symlink():
        target = os.readlink(path)
        if target.startswith("/") or not path.exists():
            sys.exit(f"release.py: {name}: expected a link within the release, found one to {target}")
        return {"path": name, "target": target}
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return {"path": name, "mode": path.stat().st_mode & 0o7777, "sha256": digest}


if __name__ == "__main__":
    root = Path(sys.argv[1]).resolve()
    text = json.dumps(record(root, sys.argv[2]), indent=0) + "\n"
    (root / PLACE).parent.mkdir(parents=True, exist_ok=True)
    (root / PLACE).write_text(text, encoding="utf-8")
