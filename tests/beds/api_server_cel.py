"""Admission policies evaluated by the API server's own code: a program of api_server_cel/main.go, compiled once for
this machine from Debian's packages of that code (golang-k8s-apiserver) and of Go. Compiling it takes some minutes.

Belongs here: fetching the packages, the build, and the call. The beds' API server (kubernetes_programs.py) is too old
for policies.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import roots
import suites

SUITE, LIBRARY, GO = "sid", "golang-k8s-apiserver-dev", "golang-1.27"
SOURCE = Path(__file__).with_name("api_server_cel") / "main.go"
_RECURSE = ("--recurse", *(f"--no-{kind}" for kind in ("recommends", "suggests", "conflicts", "breaks", "replaces",
                                                       "enhances")))  # fmt: skip


def program() -> Path:
    """The program. Compiles it if it is missing."""
    with roots.making(roots.CACHE / f"api-server-cel-{roots.key(SOURCE.read_bytes(), GO)}") as new:
        if new:
            new.mkdir(parents=True)
            with tempfile.TemporaryDirectory(dir=roots.CACHE) as name:
                _compile(Path(name), new)
    return roots.CACHE / f"api-server-cel-{roots.key(SOURCE.read_bytes(), GO)}" / "evaluate"


def evaluated(policies: dict[str, Any], cases: list[dict[str, Any]]) -> list[str]:
    """For each case the message of its refusal, "" where it is admitted. `policies`: name -> spec; see main.go."""
    given = json.dumps({"policies": policies, "cases": cases})
    done = subprocess.run([program()], input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


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
    command = ["nice", f"{root}/bin/go", "build", "-p", "2", "-ldflags", "-s -w", "-o", str(place / "evaluate"), SOURCE]
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=False)
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
