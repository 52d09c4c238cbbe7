"""The rpm packages of a test: packed from the trees that the builder of the deb packages has laid out.

Belongs here: this version, a version before it, and stand-ins for the packages of a distribution. Does not belong here:
the scratch root in which they are installed (rpm_node.sh).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from checkout import BUILD, CHECKOUT

TREES = BUILD / "packages"  #: where packaging/layout has put the files
LAST_RELEASE, RELEASE = "0", "1"
GONE = "usr/lib/vgpu/python/vgpu/config/gone.py"  #: a module that only the version before has
STAND_INS = """
Name: stand-ins
Version: 1
Release: 1
Summary: Stand-ins for the packages of a distribution
License: Apache-2.0
BuildArch: noarch
{provides}
%description
Stand-ins.
%package -n other-python
Summary: A stand-in for another version of Python
AutoReqProv: no
%description -n other-python
A stand-in.
%install
install -D -m 755 /dev/null %{{buildroot}}/usr/bin/python3.14
%files
%files -n other-python
/usr/bin/python3.14
"""


def pack(trees: Path, directory: Path, release: str) -> list[Path]:
    """The packages vgpu and vgpu-device-plugin of `trees`, made in `directory`."""
    command = [CHECKOUT / "packaging/rpm/build", "--repack", trees, directory, release]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr + done.stdout
    return [Path(name) for name in done.stdout.split()]


def pack_last(directory: Path) -> list[Path]:
    """A version before this one: it has a module more, and another comment in its settings."""
    trees = directory / "trees"
    shutil.copytree(TREES / "vgpu", trees / "vgpu", symlinks=True)
    shutil.copytree(TREES / "vgpu-device-plugin", trees / "vgpu-device-plugin", symlinks=True)
    (trees / "vgpu" / GONE).write_text("REASON = 'renamed later'\n")
    with (trees / "vgpu/etc/vgpu/config.yaml").open("a") as settings:
        settings.write("# A comment of the version before.\n")
    made = pack(trees, directory, LAST_RELEASE)
    shutil.rmtree(trees)
    return made


def pack_stand_ins(packages: list[Path], directory: Path) -> Path:
    """One package that provides what `packages` require of a distribution. Beside it lies other-python.rpm."""
    names = {line.split(" ")[0].lstrip("(") for package in packages for line in query(package, "--requires")}
    wanted = sorted(name for name in names if not name.startswith(("rpmlib(", "vgpu")))
    provides = [f"Provides: {name}" + ("" if "/" in name or ")(" in name else " = 99") for name in wanted]
    spec = directory / "stand-ins.spec"
    spec.write_text(STAND_INS.format(provides="\n".join(provides)))
    options = {"_topdir": directory / "stand-ins", "_rpmdir": directory, "_rpmfilename": "%%{NAME}.rpm",
               "_dbpath": directory / "database"}  # fmt: skip
    defines = [part for name, value in options.items() for part in ("--define", f"{name} {value}")]
    subprocess.run(["rpmbuild", "-bb", "--quiet", *defines, spec], check=True, capture_output=True)
    return directory / "stand-ins.rpm"


def query(package: Path, *options: str) -> list[str]:
    command = ["rpm", "-qp", "--dbpath", package.parent / "database", *options, package]
    environment = {**os.environ, "TZ": "UTC0", "LC_ALL": "C"}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.splitlines()
