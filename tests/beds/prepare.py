"""Makes what the system tests need and what takes long, before they run: prepare.py [long], by `make test`.

Belongs here: the list of these things. Each is made once for this machine or this build directory. A test that runs
without this program makes its own, in silence: pytest keeps its output.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import fresh_machine
import kubernetes_programs
import suites
import systemd_bed
from checkout import BUILD, CHECKOUT

PROGRESS = CHECKOUT / "packaging/setup/progress"
ROOTS = ("bullseye", "sid")
PACKAGES = {"trixie": ("containerd", "docker.io", "docker-cli", "kubectl"), "sid": ("containerd",)}


def todo(long: bool) -> dict[str, str]:
    """The call that makes each thing that is missing, by what a reader sees of it. `long`: for the long tests, too."""
    missing = {}
    for suite in ROOTS:
        if not systemd_bed.is_made(suite):
            missing[f"making a Debian {suite} to boot (0.3 GB, a minute)"] = f"systemd_bed.debootstrapped({suite!r})"
    for suite, packages in PACKAGES.items():
        for package in packages:
            if not (suites.CACHE / suite / package).is_dir():
                missing[f"fetching {package} of Debian {suite}"] = f"suites.unpack({suite!r}, {package!r})"
    missing.update(_fresh_roots(fresh_machine.SAMPLE))
    return {**missing, **(_todo_long() if long else {})}


def _fresh_roots(names: tuple[str, ...]) -> dict[str, str]:
    missing = {}
    for suite in names:
        if not fresh_machine.is_made(suite):
            missing[f"making a fresh {suite} (0.3 GB, a minute)"] = f"fresh_machine.made_root({suite!r})"
    return missing


def _todo_long() -> dict[str, str]:
    missing = _fresh_roots((*fresh_machine.SUPPORTED, fresh_machine.TOO_OLD))
    names = [*kubernetes_programs.SERVERS, "kubelet"]
    if not all((suites.CACHE / kubernetes_programs.SUITE / name).exists() for name in names):
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
