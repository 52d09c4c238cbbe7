"""Machines on which nobody has installed anything: overlays over roots that debootstrap made once for this machine.

Belongs here: making these roots, and running commands on one of them in a copy of the checkout. fresh_root.sh mounts.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import systemd_bed
from checkout import CHECKOUT

SCRIPT = Path(__file__).with_name("fresh_root.sh")
CACHE = systemd_bed.CACHE / "fresh"
SUPPORTED = ("bullseye", "bookworm", "trixie", "sid", "jammy", "noble")
SAMPLE = ("noble",)  #: of `make test`, which has a clone on Debian 12 elsewhere; the others are for `make test-long`
TOO_OLD = "focal"
USER, GROUP = "nobody", "nogroup"  #: the user without rights
UBUNTU = ("focal", "jammy", "noble")
#: Debian 12 has no package with Ubuntu's keys, and its debootstrap has no script by the name of the newer suites.
UBUNTU_OPTIONS = ("--no-check-gpg", "--components=main,universe")
UBUNTU_MIRROR = ("http://archive.ubuntu.com/ubuntu", "/usr/share/debootstrap/scripts/gutsy")


class Result(NamedTuple):
    """The exit status and output of a machine's steps."""

    status: int
    output: str

    def figures(self) -> str:
        return "; ".join(re.findall(r"^## (.*)", self.output, re.MULTILINE))


def made_root(suite: str) -> Path:
    """The root of `suite` with make and certificates, made once for this machine."""
    root = CACHE / suite
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_made(suite):
            shutil.rmtree(root, ignore_errors=True)
            ubuntu = suite in UBUNTU
            command = ["debootstrap", "--variant=minbase", "--include=ca-certificates,make"]
            command += [*(UBUNTU_OPTIONS if ubuntu else ()), suite, str(root)]
            command += UBUNTU_MIRROR if ubuntu else ()
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
            (root / ".complete").touch()
    return root


def is_made(suite: str) -> bool:
    return (CACHE / suite / ".complete").exists()


def run(suite: str, directory: Path, commands: str) -> Result:
    """Run `commands` on a fresh machine of `suite`, in a copy of this checkout as a clone would have it."""
    root = made_root(suite)
    sources, script = pack_sources(directory / "sources.tar"), directory / "steps"
    script.write_text(commands)
    (directory / "machine").mkdir()
    command = ["unshare", "-m", "sh", SCRIPT, root, directory / "machine", CACHE / "cache"]
    with (directory / "output").open("w+") as output:
        done = subprocess.run(
            [*command, sources, script], stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False
        )
        output.seek(0)
        text = output.read()
    shutil.rmtree(directory / "machine")
    return Result(done.returncode, text)


def pack_sources(archive: Path) -> Path:
    """A tar of this checkout as a clone would have it."""
    files = subprocess.run(
        ["git", "-C", CHECKOUT, "ls-files", "-co", "--exclude-standard", "-z"], capture_output=True, check=True
    ).stdout
    pack = ["tar", "-C", CHECKOUT, "--null", "--ignore-failed-read", "-T", "-", "-cf", archive]
    subprocess.run(pack, input=files, check=True)
    return archive


def make_in_clone(target: str, directory: Path) -> Path:
    """Call `make target` in a fresh clone below `directory`, as a user without rights, with its own environment."""
    clone = directory / "another-folder"
    clone.mkdir()
    subprocess.run(["tar", "-x", "-C", clone, "-f", pack_sources(directory / "sources.tar")], check=True)
    subprocess.run(["chown", "-R", f"{USER}:{GROUP}", directory], check=True)
    command = ["setpriv", f"--reuid={USER}", f"--regid={GROUP}", "--clear-groups", "make", "-C", clone, target]
    passed = {key: value for key, value in os.environ.items() if key.startswith("PIP_") or key.endswith("_proxy")}
    environment = {**passed, "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(directory), "TZ": "Asia/Tokyo"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    return clone
