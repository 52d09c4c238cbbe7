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
from checkout import CHECKOUT

SCRIPT = Path(__file__).with_name("fresh_root.sh")
CACHE = roots.CACHE / "downloads"  #: what apt and pip fetch there
SUPPORTED = ("bullseye", "bookworm", "trixie", "sid", "jammy", "noble")
SAMPLE = ("noble",)  #: of `make test`, which has a clone on Debian 12 elsewhere; the others are for `make test-long`
TOO_OLD = "focal"
#: Of the checkout, what decides what a compiler makes of it, and how it is called.
COMPILED_FROM = re.compile(r".*\.[chS]|.*CMakeLists\.txt|libvcuda/.*|packaging/(setup/.*|[a-z]*)|Makefile")
COMPILED = (
    "build/CMake* build/*.cmake build/Makefile build/bin build/hook build/lib build/libvcuda build/packages/cmake"
)
#: A machine begins with what another one of its suite has compiled of the same sources. Where none has, it keeps its
#: own for the next ones, if all its commands succeed, in the place of what older sources gave.
KEPT = """kept=/root/compiled/{suite}
[ ! -f $kept-{key}.tar ] || tar -x -f $kept-{key}.tar
{commands}
cd /root/vgpu
if [ ! -f $kept-{key}.tar ]; then
	tar -c -f $kept.$$ {compiled}
	rm -f $kept-*.tar
	mv $kept.$$ $kept-{key}.tar
fi
"""
USER, GROUP = "nobody", "nogroup"  #: the user without rights


class Result(NamedTuple):
    """The exit status and output of a machine's steps."""

    status: int
    output: str

    def figures(self) -> str:
        return "; ".join(re.findall(r"^## (.*)", self.output, re.MULTILINE))


def run(suite: str, directory: Path, commands: str, *, kept: bool = False) -> Result:
    """Run `commands` on a fresh machine of `suite`, in a copy of this checkout as a clone would have it.

    With `kept`, what a machine has compiled serves the next ones: the clone begins with it.
    """
    root = roots.made("fresh", suite)
    sources, script = pack_sources(directory / "sources.tar"), directory / "steps"
    if kept:
        commands = KEPT.format(suite=suite, key=_key_of_compiled(), commands=commands, compiled=COMPILED)
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
    """A tar of this checkout as a clone would have it. All files are older than what was ever compiled of them."""
    pack = ["tar", "-C", CHECKOUT, "--null", "--ignore-failed-read", "--mtime=2020-01-01", "-T", "-", "-cf", archive]
    subprocess.run(pack, input="\0".join(_files()), text=True, check=True)
    return archive


def _files() -> list[str]:
    """The files of git, and those that it does not know yet and does not ignore."""
    command = ["git", "-C", CHECKOUT, "ls-files", "-co", "--exclude-standard", "-z"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.rstrip("\0").split("\0")


def _key_of_compiled() -> str:
    names = [name for name in _files() if COMPILED_FROM.fullmatch(name) and (CHECKOUT / name).is_file()]
    return roots.key(*(part for name in names for part in (name, (CHECKOUT / name).read_bytes())))


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
