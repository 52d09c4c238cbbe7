"""Machines on which nobody has installed anything: overlays over roots of distributions (roots.py).

Belongs here: running commands on one of them in a copy of the checkout. fresh_root.sh mounts.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import cgroup_trees
import roots
from checkout import BUILD, CHECKOUT

SCRIPT = Path(__file__).with_name("fresh_root.sh")
CACHE = roots.CACHE / "downloads"  #: what apt and pip fetch there
SUPPORTED = ("bullseye", "bookworm", "trixie", "sid", "jammy", "noble")
SAMPLE = "noble"  #: of `make test`, which has a clone on Debian 12 elsewhere; the others are for `make test-long`
TOO_OLD = "focal"
USER, GROUP = "nobody", "nogroup"  #: the user without rights


class Result(NamedTuple):
    """The exit status and output of a machine's steps."""

    status: int
    output: str

    def figures(self) -> str:
        return "; ".join(re.findall(r"^## (.*)", self.output, re.MULTILINE))


def run(suite: str, directory: Path, commands: str, *, compiled: bool = False) -> Result:
    """Run `commands` on a fresh machine of `suite`, in a copy of this checkout as a clone would have it.

    With `compiled` the clone has the programs and libraries of this checkout's build, for `make -o build`.
    """
    root = roots.made("fresh", suite)
    sources, script = pack_sources(directory / "sources.tar"), directory / "steps"
    if compiled:
        add = ["tar", "-C", BUILD, "--transform=s,^,build/,S", "-rf", sources, "bin", "lib"]
        subprocess.run(add, check=True)
    script.write_text(commands)
    (directory / "machine").mkdir()
    command = ["unshare", "-m", "sh", SCRIPT, root, directory / "machine", CACHE]
    with (directory / "output").open("w+") as output, cgroup_trees.own() as enter:
        done = subprocess.run(
            [*enter, *command, sources, script], stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False
        )
        output.seek(0)
        text = output.read()
    shutil.rmtree(directory / "machine")
    return Result(done.returncode, text)


def pack_sources(archive: Path) -> Path:
    """A tar of this checkout's files: those of git, and those that it does not know yet and does not ignore."""
    listed = ["git", "-C", CHECKOUT, "ls-files", "-co", "--exclude-standard", "-z"]
    names = subprocess.run(listed, capture_output=True, check=True).stdout.rstrip(b"\0")
    pack = ["tar", "-C", CHECKOUT, "--null", "--ignore-failed-read", "-T", "-", "-cf", archive]
    subprocess.run(pack, input=names, check=True)
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
