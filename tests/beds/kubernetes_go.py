"""Programs with the Go code of Kubernetes 1.36: its strict decoder (resource.go), its admission policies (policies.go).

Belongs here: fetching Debian's packages of that code and of Go, the build of all programs from one tree, once for this
machine, and a call of one. The beds' API server (kubernetes_programs.py) is older than both.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import roots
import suites
from checkout import DATA

SUITE, LIBRARY, GO = "sid", "golang-k8s-apiserver-dev", "golang-1.27"
SOURCES = {name: DATA / f"kubernetes/{name}.go" for name in ("policies", "resource")}
_RECURSE = ("--recurse", *(f"--no-{kind}" for kind in ("recommends", "suggests", "conflicts", "breaks", "replaces",
                                                       "enhances")))  # fmt: skip


def run(program: str, *words: str, given: str = "") -> str:
    """What `program` says to `given`. Compiles all programs if they are missing."""
    done = subprocess.run([made() / program, *words], input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def path() -> Path:
    return roots.CACHE / f"kubernetes-go-{roots.key(GO, *(source.read_bytes() for source in SOURCES.values()))}"


def made() -> Path:
    """The directory of the programs."""
    with roots.making(path()) as new:
        if new:
            new.mkdir(parents=True)
            with tempfile.TemporaryDirectory(dir=roots.CACHE) as name:
                _compile(Path(name), new)
    return path()


def _compile(work: Path, place: Path) -> None:
    tree = work / "tree"
    _fetch(work, tree)
    (root,) = (tree / "usr/lib").glob("go-*")
    (work / "path").mkdir()
    (work / "path/src").symlink_to(tree / "usr/share/gocode/src")
    environment = {
        "GOROOT": str(root), "GOPATH": str(work / "path"), "GOCACHE": str(work / "cache"), "GO111MODULE": "off",
        "GOPROXY": "off", "CGO_ENABLED": "0", "GOTMPDIR": str(work), "PATH": f"{root}/bin:{os.environ['PATH']}",
    }  # fmt: skip
    for name, source in SOURCES.items():
        build = ["nice", root / "bin/go", "build", "-p", "2", "-ldflags", "-s -w", "-o", place / name, source]
        done = subprocess.run(build, cwd=work, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]


def _fetch(work: Path, tree: Path) -> None:
    """Unpack the library, all libraries of Go that it needs, and Go."""
    apt = suites.apt_get(SUITE, work / "apt")
    _run([*apt, "update", "-q"], work)
    text = _run(["apt-cache", *apt[1:], "depends", *_RECURSE, LIBRARY], work)
    names = sorted({line for line in text.splitlines() if line.startswith("golang-") and line.endswith("-dev")})
    _run([*apt, "download", "-q", *names, f"{GO}-go", f"{GO}-src"], work)
    for archive in work.glob("*.deb"):
        _run(["dpkg-deb", "-x", archive.name, str(tree)], work)


def _run(command: list[str], directory: Path) -> str:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command[:3]}: {done.stderr[-1500:]}"
    return done.stdout
