"""Small root file systems of three kinds, made from this machine's files, with real loaders and without a download.

debian: libraries below /usr/lib/<multiarch>; redhat: below /usr/lib64, no debian_version; musl: only its loader.
Each contains busybox. Those of glibc contain a working ldconfig and a cache that it wrote.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

MULTIARCH = f"{os.uname().machine}-linux-gnu"
APPLETS = (
    "sh", "ls", "cat", "sleep", "echo", "env", "test", "true", "id", "stat", "head", "mount", "readlink", "kill",
    "mknod",
)  # fmt: skip
DIRECTORIES = (
    "dev", "proc", "sys", "tmp", "etc", "root", "run", "usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "usr/local",
    "var", "run/vgpu-sim",
)  # fmt: skip
GLIBC = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1")
KINDS = ("debian", "redhat", "musl")


def make(kind: str, root: Path, programs: dict[str, Path] | None = None) -> Path:
    """Make a root file system of `kind` at `root`. `programs` are copied to /usr/bin under their names."""
    for directory in DIRECTORIES:
        (root / directory).mkdir(parents=True, exist_ok=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        if not (root / name).exists():
            (root / name).symlink_to(f"usr/{name}")
    _busybox(root)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    {"debian": _debian, "redhat": _redhat, "musl": _musl}[kind](root)
    for name, source in (programs or {}).items():
        shutil.copy2(source, root / "usr/bin" / name)
    return root


def _busybox(root: Path) -> None:
    busybox = shutil.which("busybox") or "/bin/busybox"
    shutil.copy2(busybox, root / "usr/bin/busybox")
    for name in APPLETS:
        (root / "usr/bin" / name).symlink_to("busybox")


def _debian(root: Path) -> None:
    (root / "etc/debian_version").write_text("12.0\n")
    _glibc(root, root / "usr/lib" / MULTIARCH)
    (root / "etc/ld.so.conf").write_text(f"/usr/lib/{MULTIARCH}\n")
    _ldconfig(root)


def _redhat(root: Path) -> None:
    (root / "etc/redhat-release").write_text("Red Hat Enterprise Linux release 9.0\n")
    _glibc(root, root / "usr/lib64")
    (root / "etc/ld.so.conf").write_text("/usr/lib64\n")
    _ldconfig(root)


def _musl(root: Path) -> None:
    machine = os.uname().machine
    shutil.copy2(f"/lib/ld-musl-{machine}.so.1", root / f"usr/lib/ld-musl-{machine}.so.1")


def _glibc(root: Path, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name in GLIBC:
        shutil.copy2(f"/lib/{MULTIARCH}/{name}", directory / name)
    loader = Path("/lib64/ld-linux-x86-64.so.2")
    if not loader.exists():
        loader = Path("/lib/ld-linux-aarch64.so.1")
    shutil.copy2(loader, root / str(loader.parent).lstrip("/") / loader.name)


def _ldconfig(root: Path) -> None:
    for name in ("ldconfig", "ldconfig.real"):  # Ubuntu's ldconfig is a script around the other
        if Path("/sbin", name).exists():
            shutil.copy2(f"/sbin/{name}", root / "usr/sbin" / name)
    subprocess.run(["chroot", str(root), "/sbin/ldconfig"], check=True)
