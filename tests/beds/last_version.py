"""Packages of the version before this one and of a later one, for the tests of upgrades.

The version before has the layout of 0.1.0: one package with the device plugin in it, and that version's own maintainer
scripts. Its files are this version's with two names changed.

It has no key for requests outside Kubernetes: plain annotations count, and its compiled settings name no such setting.

A module has another name, so an upgrade removes a file. A class that many modules import, from a module that both
versions have, has another name, so a hook with modules of both versions cannot start.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from checkout import DATA

VERSION = "0.1.0"
MODULE = ("vgpu.config.errors", "vgpu.config.failures")  #: its name in this version and in the one before
CLASS = ("Settings", "NodeSettings")  #: likewise, in vgpu.config.settings
#: Texts of vgpu.config.settings in this version and in the one before.
KEYLESS = (
    ('"standalone.requests": "key"', '"standalone.requests": "annotations"'),
    (
        '"settings": dict(self._values)',
        '"settings": {name: self._values[name] for name in self._values if name not in BEFORE}',
    ),
)
PYTHON = "usr/lib/vgpu/python"
SCRIPTS = DATA / "deb-0.1.0"  #: the maintainer scripts as 0.1.0 had them
DROPPED = ("Recommends: ", "Breaks: ", "Replaces: ")


def make(debs: list[Path], directory: Path) -> Path:
    """Make the package of the version before that of `debs`, vgpu and the device plugin's, in `directory`."""
    tree = directory / "tree"
    subprocess.run(["dpkg-deb", "-R", debs[0], tree], check=True)
    subprocess.run(["dpkg-deb", "-x", debs[1], tree], check=True)
    (tree / "DEBIAN/md5sums").unlink()
    for script in SCRIPTS.iterdir():
        shutil.copy(script, tree / "DEBIAN" / script.name)
    here, there = (tree / PYTHON / f"{name.replace('.', '/')}.py" for name in MODULE)
    here.rename(there)
    sources = list((tree / PYTHON / "vgpu").rglob("*.py"))
    for names in (MODULE, CLASS):
        changed = [path for path in sources if _rename(path, *names)]
        assert len(changed) > 5, f"{names[0]}: another name of the hook is in more of its modules"
    settings = tree / PYTHON / "vgpu/config/settings.py"
    for text, before in KEYLESS:
        assert settings.read_text().count(text) == 1, text
        settings.write_text(settings.read_text().replace(text, before))
    control = tree / "DEBIAN/control"
    lines = control.read_text().splitlines()
    lines = [f"Version: {VERSION}" if line.startswith("Version: ") else line for line in lines]
    lines = [line for line in lines if not line.startswith(DROPPED)]
    control.write_text("\n".join(lines) + "\n")
    made = directory / "last.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "--build", tree, made], check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(tree)
    return made


def later(debs: list[Path], directory: Path) -> list[Path]:
    """The packages `debs` with a later version number and nothing else changed."""
    version = debs[0].name.split("_")[1]
    directory.mkdir()
    for deb in debs:
        tree = directory / "tree"
        subprocess.run(["dpkg-deb", "-R", deb, tree], check=True)
        control = (tree / "DEBIAN/control").read_text()
        (tree / "DEBIAN/control").write_text(control.replace(f" {version}", f" {version}later"))
        build = ["dpkg-deb", "--root-owner-group", "--build", tree, directory / deb.name]
        subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
        shutil.rmtree(tree)
    return [directory / deb.name for deb in debs]


def _rename(source: Path, here: str, there: str) -> bool:
    text = source.read_text()
    renamed = re.sub(rf"\b{re.escape(here)}\b", there, text)
    source.write_text(renamed)
    return renamed != text
