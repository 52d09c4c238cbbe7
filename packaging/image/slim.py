"""slim.py ROOT: makes the root file system of an image out of packages that are unpacked and not installed.

Belongs here: what goes (packages that only an installation needs, documents but licences, caches), and what a system
without maintainer scripts lacks: users, and a record of the packages for scanners, a file each in
/var/lib/dpkg/status.d. Does not belong here: which packages there are (images.toml), and what vgpu adds (build).
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import contents
from debian.debfile import DebFile

ARCHIVES = "var/cache/apt/archives"
STATUS = "var/lib/dpkg/status.d"
#: What nothing in an image reads. Licences stay: /usr/share/doc/*/copyright and /usr/share/common-licenses.
UNUSED = (
    "etc/apt", "etc/cron.daily", "etc/dpkg", "etc/fstab", "etc/hostname", "etc/logrotate.d", "etc/mime.types",
    "etc/resolv.conf", "etc/update-motd.d", "sbin/start-stop-daemon*", "usr/lib/*-linux-gnu/gconv",
    "usr/lib/*-linux-gnu/perl-base", "usr/lib/python3.11/pydoc_data", "usr/lib/python3.11/test", "usr/lib/tmpfiles.d",
    "usr/share/applications", "usr/share/bash-completion", "usr/share/binfmts", "usr/share/bug", "usr/share/doc-base",
    "usr/share/gcc", "usr/share/gdb", "usr/share/info", "usr/share/lintian", "usr/share/locale", "usr/share/man",
    "usr/share/menu", "usr/share/pixmaps", "usr/share/polkit-1", "usr/share/python3", "var/cache", "var/lib/apt",
    "var/lib/dpkg/[!s]*", "var/lib/dpkg/status", "var/log/apt",
)  # fmt: skip
ACCOUNTS = {
    "etc/passwd": "root:x:0:0:root:/:/bin/sh\nnonroot:x:65532:65532:nonroot:/:/usr/sbin/nologin\n",
    "etc/group": "root:x:0:\nnonroot:x:65532:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}


def slim(root: Path, left_out: set[str]) -> None:
    """Leave in `root` what an image has. `left_out`: the names of the packages that go."""
    status = root / STATUS
    status.mkdir(parents=True, exist_ok=True)
    packages = {str(one.debcontrol()["Package"]): one for one in archives(root)}
    kept = {path for name, one in packages.items() if name not in left_out for path in files(one)}
    for name, one in packages.items():
        if name not in left_out:
            (status / name).write_text(f"{one.debcontrol().dump().rstrip()}\nStatus: install ok installed\n")
            continue
        for path in files(one) - kept:
            remove(root / path)
    for pattern in UNUSED:
        for path in root.glob(pattern):
            remove(path)
    for path in sorted((root / "usr/share/doc").rglob("*"), reverse=True):
        if path.name != "copyright" and (path.is_symlink() or not path.is_dir()):
            remove(path)
    remove_empty(root)
    for name, text in ACCOUNTS.items():
        (root / name).write_text(text)


def archives(root: Path) -> Iterator[DebFile]:
    """The packages that apt has fetched."""
    for path in sorted((root / ARCHIVES).glob("*.deb")):
        yield DebFile(filename=str(path))


def files(package: DebFile) -> set[str]:
    """The paths of a package's files and links, relative to the root; no directories."""
    return {member.name.removeprefix("./") for member in package.data.tgz().getmembers() if not member.isdir()}


def remove(path: Path) -> None:
    """Remove a file, a link or a tree. Two patterns may name the same one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def remove_empty(root: Path) -> None:
    """Remove the directories below usr and etc that have nothing in them, the innermost first."""
    for top in ("etc", "usr"):
        for directory, _, _ in os.walk(root / top, topdown=False):
            if not os.listdir(directory):
                os.rmdir(directory)


if __name__ == "__main__":
    slim(Path(sys.argv[1]), set(contents.value(contents.EVERY, "left_out")))
