"""Makes what the system tests need and what takes long, before they run: prepare.py [long], by `make test`.

Belongs here: the list of these things. Each is made once for this machine (roots.py). A test that runs without this
program makes its own, in silence: pytest keeps its output.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import fresh_machine
import helm
import kubernetes_go
import kubernetes_programs
import roots
import suites
from checkout import BUILD, CHECKOUT

PROGRESS = CHECKOUT / "packaging/setup/progress"
ROOTS = (("node", "bookworm"), ("repository", "bookworm"), ("booted", "bullseye"), ("booted", "sid"))
PACKAGES = {
    "trixie": ("containerd", "docker.io", "docker-cli", "kubectl"),
    "sid": ("containerd",),
    "stonking": ("containerd",),
}


def todo(long: bool) -> dict[str, str]:
    """The call that makes each thing that is missing, by what a reader sees of it. `long`: for the long tests, too."""
    missing = {}
    fresh = (*fresh_machine.SUPPORTED, fresh_machine.TOO_OLD) if long else (fresh_machine.SAMPLE,)
    for use, suite in (*ROOTS, *(("fresh", suite) for suite in fresh)):
        if not roots.path(use, suite).exists():
            missing[f"making a {use} {suite} (0.3 GB, a minute)"] = f"roots.made({use!r}, {suite!r})"
    for suite, packages in PACKAGES.items():
        for package in packages:
            if not suites.path(suite, package).exists():
                missing[f"fetching {package} of {suite}"] = f"suites.unpack({suite!r}, {package!r})"
    if not helm.path().exists():
        missing["fetching Helm (40 MB)"] = "helm.program()"
    if not kubernetes_go.path().exists():
        missing["compiling programs with Kubernetes' code (two minutes)"] = "kubernetes_go.made()"
    names = [*kubernetes_programs.SERVERS, "kubelet"]
    if long and not all(kubernetes_programs.path(name).exists() for name in names):
        missing["compiling Kubernetes' own programs (minutes)"] = f"kubernetes_programs.build(*{names!r})"
    return missing


def main() -> None:
    for title, call in todo("long" in sys.argv[1:]).items():
        module = call.split(".", 1)[0]
        program = [sys.executable, "-u", "-c", f"import {module}; {call}"]
        log = BUILD / "setup/beds.log"
        done = subprocess.run([PROGRESS, title, log, *program], cwd=Path(__file__).parent, check=False)
        if done.returncode != 0:
            sys.exit(done.returncode)


if __name__ == "__main__":
    main()
