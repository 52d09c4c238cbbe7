"""A package of the version before this one, for the tests of upgrades: this version's files with two names changed.

A module has another name, so an upgrade removes a file. A class that many modules import, from a module that both
versions have, has another name, so a hook with modules of both versions cannot start.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

VERSION = "0.0.9"
MODULE = ("vgpu.config.errors", "vgpu.config.failures")  #: its name in this version and in the one before
CLASS = ("Settings", "NodeSettings")  #: likewise, in vgpu.config.settings
PYTHON = "usr/lib/vgpu/python"


def make(deb: Path, directory: Path) -> Path:
    """Make the package of the version before `deb`'s, in `directory`."""
    tree = directory / "tree"
    subprocess.run(["dpkg-deb", "-R", deb, tree], check=True)
    here, there = (tree / PYTHON / f"{name.replace('.', '/')}.py" for name in MODULE)
    here.rename(there)
    sources = list((tree / PYTHON / "vgpu").rglob("*.py"))
    for names in (MODULE, CLASS):
        changed = [path for path in sources if _rename(path, *names)]
        assert len(changed) > 5, f"{names[0]}: another name of the hook is in more of its modules"
    control = tree / "DEBIAN/control"
    lines = control.read_text().splitlines()
    lines = [f"Version: {VERSION}" if line.startswith("Version: ") else line for line in lines]
    control.write_text("\n".join(lines) + "\n")
    made = directory / "last.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "--build", tree, made], check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(tree)
    return made


def _rename(source: Path, here: str, there: str) -> bool:
    text = source.read_text()
    renamed = re.sub(rf"\b{re.escape(here)}\b", there, text)
    source.write_text(renamed)
    return renamed != text
