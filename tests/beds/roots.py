"""What tests download, unpack and compile once, kept by its content; above all root file systems of distributions.

Belongs here: where it lies, the key in an entry's name (other inputs make another entry), and making one while other
processes may want the same. All checkouts of this machine share the cache. A test works on an overlay over a root, so a
root never changes, and nothing of this machine's own packages, package lists and loader cache is in it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from checkout import BUILD

_SHARED = Path("/var/cache/vgpu-tests")
CACHE = _SHARED if os.access(_SHARED if _SHARED.exists() else _SHARED.parent, os.W_OK) else BUILD / "cache"

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
#: By use, what a root has beside the base system.
_BOOTED = "systemd,systemd-sysv,dbus,runc,crun,python3-minimal,libpython3-stdlib"
#: The node's root has what vgpu's packages depend on, the runtimes, and what readers of the documents type.
_NODE = f"{_BOOTED},containerd,podman,curl,man-db,lintian,python3-grpcio,python3-protobuf"
#: The repository's has what publishes and what installs, and what vgpu's packages depend on.
_REPOSITORY = (
    "apt-utils,ca-certificates,createrepo-c,curl,dnf,gpg,gpg-agent,make,python3-grpcio,python3-protobuf,rpm,zypper"
)
_PACKAGES = {"booted": _BOOTED, "node": _NODE, "fresh": "ca-certificates,make", "repository": _REPOSITORY}
_MIRROR = "http://deb.debian.org/debian"
_UBUNTU = ("focal", "jammy", "noble")
#: Debian 12 has no package with Ubuntu's keys, and its debootstrap has no script by the name of the newer suites.
_UBUNTU_OPTIONS = ("--no-check-gpg", "--components=main,universe")
_UBUNTU_MIRROR = ("http://archive.ubuntu.com/ubuntu", "/usr/share/debootstrap/scripts/gutsy")


def node() -> Path:
    """The root of a node that has the runtimes and no vgpu."""
    return made("node", "bookworm")


def made(use: str, suite: str) -> Path:
    """The root of `suite` for `use`, of which _PACKAGES has the names. The first time it takes a minute or more."""
    root = path(use, suite)
    with making(root) as place:
        if place:
            subprocess.run(_command(use, suite, place), check=True, stdin=subprocess.DEVNULL)
            for archive in (place / "var/cache/apt/archives").glob("*.deb"):
                archive.unlink()
    return root


def path(use: str, suite: str) -> Path:
    return CACHE / f"{use}-{suite}-{key(*_command(use, suite, CACHE))}"


def _command(use: str, suite: str, place: Path) -> list[str]:
    """debootstrap, or for virtual packages among the dependencies mmdebstrap, which asks apt."""
    program, mirror = ["debootstrap"], ()
    if suite in _UBUNTU:
        program, mirror = ["debootstrap", *_UBUNTU_OPTIONS], _UBUNTU_MIRROR
    elif use in ("node", "repository"):
        program, mirror = ["mmdebstrap", f"--keyring={KEYRING}", "--dpkgopt=force-unsafe-io"], (_MIRROR,)
    return [*program, "--variant=minbase", f"--include={_PACKAGES[use]}", suite, str(place), *mirror]


def key(*inputs: str | bytes) -> str:
    """What stands for `inputs` in an entry's name."""
    digest = hashlib.sha256()
    for each in inputs:
        digest.update(each if isinstance(each, bytes) else each.encode())
        digest.update(b"\0")
    return digest.hexdigest()[:12]


@contextmanager
def locked(entry: Path) -> Iterator[None]:
    """One process at a time."""
    entry.parent.mkdir(parents=True, exist_ok=True)
    with entry.with_name(f".{entry.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def making(entry: Path) -> Iterator[Path | None]:
    """Where to make `entry`, or None if it is there. It gets its name at the end, so a half-made one never has it."""
    with locked(entry):
        if entry.exists():
            yield None
            return
        place = entry.with_name(f".{entry.name}.new")
        shutil.rmtree(place, ignore_errors=True)
        yield place
        place.rename(entry)


@contextmanager
def wheels(hashes: Mapping[str, str]) -> Iterator[list[zipfile.ZipFile]]:
    """The wheels of these packages of PyPI, `hashes` by `name==version`."""
    with tempfile.TemporaryDirectory() as name:
        wanted = Path(name) / "wanted"
        wanted.write_text("".join(f"{package} --hash={hash}\n" for package, hash in hashes.items()))
        pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--only-binary", ":all:", "--require-hashes", "-r", wanted, "-d", name], check=True)
        yield [zipfile.ZipFile(path) for path in Path(name).glob("*.whl")]
