"""Packages of a version before this one and of a later one, for the tests of upgrades: this version's files, changed.

The version before has no key for requests outside Kubernetes: plain annotations count, and its compiled settings name
no such setting. Its settings are a conffile, with another comment. The later ones have yet other comments.

A module has another name, so an upgrade removes a file. A class that many modules import, from a module that both
versions have, has another name, so a hook with modules of both versions cannot start.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

VERSION = "0.1.0~before"
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
SETTINGS = "usr/share/vgpu/config.yaml"


def make(debs: list[Path], directory: Path) -> list[Path]:
    """Make the packages of the version before that of `debs`, vgpu and the device plugin's, in `directory`."""
    version = debs[0].name.split("_")[1]
    made, changed = [], dict.fromkeys((MODULE, CLASS), 0)
    for deb in debs:
        tree = _unpacked(deb, directory / "tree")
        for name, before in changed:
            changed[name, before] += sum(
                _replace(source, rf"\b{re.escape(name)}\b", before) for source in (tree / PYTHON).parent.rglob("*.py")
            )
        _replace(tree / "DEBIAN/control", rf"(?<= ){re.escape(version)}(?=$|\))", VERSION)
        if (tree / PYTHON / "vgpu/config").exists():
            _without_key(tree)
            _with_conffile(tree)
            here, there = (tree / PYTHON / f"{name.replace('.', '/')}.py" for name in MODULE)
            here.rename(there)
        made.append(_packed(tree, directory / f"last-{deb.name}"))
    assert min(changed.values()) > 5, f"another name of the hook is in more of its modules: {changed}"
    return made


def _without_key(tree: Path) -> None:
    settings, script = tree / PYTHON / "vgpu/config/settings.py", tree / "DEBIAN/postinst"
    for file, text, before in (*((settings, *texts) for texts in KEYLESS), (script, "\tmake_key\n", "")):
        assert file.read_text().count(text) == 1, text
        file.write_text(file.read_text().replace(text, before))


def _with_conffile(tree: Path) -> None:
    text = (tree / SETTINGS).read_text() + "# A comment of the version before.\n"
    (tree / "etc/vgpu").mkdir(parents=True, exist_ok=True)
    (tree / "etc/vgpu/config.yaml").write_text(text)
    (tree / "DEBIAN/conffiles").write_text("/etc/vgpu/config.yaml\n")


def later(debs: list[Path], directory: Path, number: str = "") -> list[Path]:
    """The packages `debs` with a later version number, and another comment in the settings."""
    return renumbered(debs, directory, f"later{number}")


def renumbered(debs: list[Path], directory: Path, suffix: str) -> list[Path]:
    """The packages `debs` with a longer version number, and another comment in the settings."""
    version = debs[0].name.split("_")[1]
    directory.mkdir()
    made = []
    for deb in debs:
        tree = _unpacked(deb, directory / "tree")
        _replace(tree / "DEBIAN/control", re.escape(f" {version}"), f" {version}{suffix}")
        for file in tree.rglob("vgpu/config.yaml"):
            file.write_text(f"# A comment of version {suffix}.\n{file.read_text()}")
        made.append(_packed(tree, directory / deb.name.replace(version, f"{version}{suffix}")))
    return made


def _unpacked(deb: Path, tree: Path) -> Path:
    subprocess.run(["dpkg-deb", "-R", deb, tree], check=True)
    (tree / "DEBIAN/md5sums").unlink()
    return tree


def _packed(tree: Path, deb: Path) -> Path:
    # Nobody keeps it: to compress it takes longer than all else here.
    build = ["dpkg-deb", "--root-owner-group", "-Znone", "--build", tree, deb]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(tree)
    return deb


def _replace(file: Path, pattern: str, text: str) -> bool:
    """Whether the pattern was found."""
    before = file.read_text()
    file.write_text(re.sub(pattern, text, before, flags=re.MULTILINE))
    return re.search(pattern, before, re.MULTILINE) is not None
