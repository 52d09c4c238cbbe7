"""Programs of other suites of Debian and Ubuntu, unpacked and not installed, for tests of newer runtimes.

Belongs here: fetching a package by its name with the ordinary apt client under a configuration of its own, so the
machine's sources and package lists stay as they are. Fetched packages stay in the cache (roots.py).
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import roots

UBUNTU = ("stonking",)  #: Debian 12 has no package with Ubuntu's keys
LIBRARIES = ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu")


def unpack(suite: str, package: str) -> Path:
    """The directory with the unpacked `package` of `suite`. Fetches the package if it is missing."""
    with roots.making(path(suite, package)) as place:
        if place:
            _fetch(suite, package, place)
    return path(suite, package)


def path(suite: str, package: str) -> Path:
    return roots.CACHE / "packages" / suite / package


def with_libraries(suite: str, package: str, program: str, libraries: tuple[str, ...]) -> Path:
    """A script of the program's name that runs it with its suite's libraries: its C library may be a newer one."""
    trees = [unpack(suite, library) for library in ("libc6", *libraries)]
    places = [str(tree / place) for tree in trees for place in LIBRARIES if (tree / place).is_dir()]
    loader = trees[0] / LIBRARIES[0] / "ld-linux-x86-64.so.2"
    text = f'#!/bin/sh\nexec {loader} --library-path {":".join(places)} {unpack(suite, package) / program} "$@"\n'
    script = roots.CACHE / "scripts" / roots.key(text) / Path(program).name
    with roots.making(script) as place:
        if place:
            place.write_text(text)
            place.chmod(0o755)
    return script


def source(suite: str, package: str, directory: Path) -> None:
    """Unpack the source package `package` of `suite`, with Debian's patches, as `directory`."""
    apt = apt_get(suite, directory.parent / "apt", "deb-src")
    _run([*apt, "update", "-q"], directory.parent)
    _run([*apt, "source", "--download-only", "-q", package], directory.parent)
    (description,) = directory.parent.glob("*.dsc")
    _run(["dpkg-source", "--no-check", "-x", description.name, directory.name], directory.parent)


def _fetch(suite: str, package: str, directory: Path) -> None:
    home = roots.CACHE / "packages" / f"apt-{suite}"
    with roots.locked(home), tempfile.TemporaryDirectory() as name:
        apt = apt_get(suite, home)
        _run([*apt, "update", "-q"], Path(name))
        _run([*apt, "download", "-q", package], Path(name))
        (archive,) = Path(name).glob("*.deb")
        _run(["dpkg", "-x", str(archive), str(directory)], Path(name))


def _mirror() -> str:
    """The mirror that this machine's apt uses. It also has Debian's newer suites."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]


def apt_get(suite: str, home: Path, kind: str = "deb") -> list[str]:
    """apt-get whose lists, sources and preferences are below `home` only."""
    for name in ("lists/partial", "archives/partial"):
        (home / name).mkdir(parents=True, exist_ok=True)
    sources = home / "sources.list"
    place = f"[signed-by={roots.KEYRING}] {_mirror()}"
    if suite in UBUNTU:
        place = "[trusted=yes] http://archive.ubuntu.com/ubuntu"
    sources.write_text(f"{kind} {place} {suite} main\n")
    options = {
        "Dir::Etc::SourceList": sources, "Dir::Etc::SourceParts": "/dev/null", "Dir::State::Lists": home / "lists",
        "Dir::Cache": home, "Dir::State::status": "/dev/null", "Dir::Etc::Preferences": "/dev/null",
        "Dir::Etc::PreferencesParts": "/dev/null", "Acquire::Languages": "none", "APT::Sandbox::User": "root",
        "Acquire::Check-Valid-Until": "false",
    }  # fmt: skip
    return ["apt-get", *(f"-o{key}={value}" for key, value in options.items())]


def _run(command: list[str], directory: Path) -> None:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stdout[-500:]}{done.stderr[-1500:]}")
