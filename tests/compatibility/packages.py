"""The drivers that docs/compatibility.md is about: packages of Debian and Ubuntu by version and SHA-256.

Belongs here: the fixed list, and unpacking it. apt fetches the packages from the distributions' archives, with a state
of its own, so the machine's own apt stays as it is. Only the user-space libraries and nvidia-smi are taken.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

DEBIAN = "http://deb.debian.org/debian {suite} non-free"
UBUNTU = "http://archive.ubuntu.com/ubuntu {suite} restricted multiverse"
KEPT = ("libcuda.so.", "libnvidia-ml.so.", "libnvidia-ptxjitcompiler.so.")


class Package(NamedTuple):
    """A package of a suite, and the SHA-256 of its file."""

    archive: str
    suite: str
    name: str
    version: str
    sha256: str


def _debian(suite: str, version: str, cuda: str, nvml: str, compiler: str, smi: str) -> list[Package]:
    names = ("libcuda1", "libnvidia-ml1", "libnvidia-ptxjitcompiler1", "nvidia-smi")
    return [Package(DEBIAN, suite, name, version, digest) for name, digest in zip(names, (cuda, nvml, compiler, smi))]


def _ubuntu(suite: str, release: str, version: str, compute: str, utils: str) -> list[Package]:
    return [
        Package(UBUNTU, suite, f"libnvidia-compute-{release}", version, compute),
        Package(UBUNTU, suite, f"nvidia-utils-{release}", version, utils),
    ]


#: Release -> its packages. The versions are those of recorded_drivers.RELEASES.
DRIVERS = {
    "470": _debian(
        "bullseye",
        "470.256.02-2",
        "4a6d2dcd33042c215bd1ae4754504e487c39f56e8b7395f9c879b3e127e23de7",
        "535cef1384d34cdb32360c07275d55740905de78ebe8d3b2ef01caae2a37d3f4",
        "e1b90d4d0ae96445744a6a756e82b8782229d68786f5b44213055f0f31820ad3",
        "1fcb7d4a66c4219803293935dbbd519dac73c8f2cd015cb0f195812fce0d35a3",
    ),
    "535": _debian(
        "bookworm",
        "535.261.03-1",
        "de1e9ca34164a5983b3f752e6699cf1ad924790f1a843b7d582bab6f99206e1e",
        "c729da6ab729309dc3f481fe4d38f04ea03b0793154b0962b60117d2f37d082e",
        "4e03bb994324a81d1a39d1e3eb0fed3f7f3c31a2b606a6e9110300de4f4fa1a0",
        "9b4392fa97957603d96f3cf1141fe78d871f5bcdd2e6bf810bce278cc14cb6d4",
    ),
    "550": _debian(
        "trixie",
        "550.163.01-2",
        "8feff97aac61d6f27ded96a3c25b9e68025a680476e6072ff7eaf10623509135",
        "01c1b67d511d7f52c6aa60e14ed56a8eb725d5dc85784a08214d6cb0f4fd1f89",
        "73ce8da87e13d0cd5a7f5ec3e0b5822f91fe1cc72977542cd9a8354c25d810f4",
        "547978bd189284911beace21d83834866026e4d5b2026d8bcb74f6cd147c8be9",
    ),
    "580": _ubuntu(
        "resolute",
        "580",
        "580.142-0ubuntu3",
        "9a7380e0e8486df133493a18f6187fa5fc5a6fdcd45d986e45fcc3c7e59d206c",
        "20719368086106c202ab501b3c98dfa940555f88e08d87ce32907b448b5c72fd",
    ),
    "615": _ubuntu(
        "noble-updates",
        "615",
        "615.71.09-0ubuntu0.24.04.2",
        "074a52d44bd79ab420d4c3cae089255d8bf4011c775eaf464d8ccaafd02079de",
        "44c5ffa3544dd0c5038b6b683679ec124430c77e37d69810f6eaff4a71dedfb5",
    ),
}


def unpacked(release: str, cache: Path) -> Path:
    """A directory with the release's libraries, their SONAME links, and nvidia-smi; made once."""
    target = cache / release
    if (target / "nvidia-smi").exists():
        return target
    tree = cache / f"{release}.tree"
    shutil.rmtree(tree, ignore_errors=True)
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for package in DRIVERS[release]:
        file = _fetched(package, cache / "apt")
        subprocess.run(["dpkg", "-x", file, tree], check=True)
    for path in sorted(tree.rglob("*")):
        wanted = path.name.startswith(KEPT) and not path.name.endswith(".so.1") and "i386" not in str(path)
        if path.is_file() and not path.is_symlink() and wanted:
            shutil.copy(path, target)
            (target / (path.name.partition(".so.")[0] + ".so.1")).symlink_to(path.name)
    program = next(path for path in tree.rglob("nvidia-smi") if path.is_file() and path.stat().st_size > 100_000)
    shutil.copy(program, target)
    shutil.rmtree(tree)
    return target


def _fetched(package: Package, directory: Path) -> Path:
    for folder in ("lists/partial", "cache/archives/partial"):
        (directory / package.suite / folder).mkdir(parents=True, exist_ok=True)
    state = directory / package.suite
    sources = state / "sources.list"
    # Debian 12 has no package with Ubuntu's keys. The digest below decides.
    line = f"deb [arch=amd64 trusted=yes] {package.archive.format(suite=package.suite)}\n"
    options = ["-o", f"Dir::Etc::SourceList={sources}", "-o", "Dir::Etc::SourceParts=/dev/null"]
    options += [
        "-o",
        f"Dir::State::Lists={state}/lists",
        "-o",
        f"Dir::Cache={state}/cache",
        "-o",
        "APT::Architecture=amd64",
    ]
    if not sources.exists():
        sources.write_text(line)
        subprocess.run(["apt-get", "-qq", *options, "update"], check=True)
    subprocess.run(["apt-get", "-qq", *options, "download", f"{package.name}={package.version}"], cwd=state, check=True)
    file = next(state.glob(f"{package.name}_*.deb"))
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    if digest != package.sha256:
        raise SystemExit(f"{file}: expected SHA-256 {package.sha256}, found {digest}")
    return file
