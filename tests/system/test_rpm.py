"""The rpm packages: what they contain, and both installed in a scratch root, used, upgraded and erased.

The packages are packed from the trees that were laid out for the deb packages, so they take seconds.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import fresh_machine
import installed_node
import nodes
import pytest
import roots
import rpm_packages
from checkout import CHECKOUT

pytestmark = pytest.mark.root

SCRIPT = CHECKOUT / "tests/beds/rpm_node.sh"
TIMEOUT = 1200
#: What RHEL 9, Amazon Linux 2023, Leap 15 and others must have: a python3 that is new enough, or another beside it.
PYTHON = f"(python3 >= 3.9{''.join(f' or /usr/bin/python3.{minor}' for minor in range(14, 8, -1))})"


@pytest.fixture(scope="module")
def rpms(debs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    assert len(debs) == 2, "their builder has laid out the trees"
    return rpm_packages.pack(rpm_packages.TREES, tmp_path_factory.mktemp("rpms"), rpm_packages.RELEASE)


def test_the_contents_are_those_of_the_deb_packages(debs: list[Path], rpms: list[Path]) -> None:
    for deb, rpm in zip(debs, rpms):
        command = ["dpkg-deb", "--fsys-tarfile", deb]
        listing = subprocess.run(command, capture_output=True, check=True).stdout
        names = subprocess.run(["tar", "-t"], input=listing, capture_output=True, check=True).stdout.decode().split()
        files = {name[1:] for name in names if not name.endswith("/")}
        packed = {line.replace("site-functions", "vendor-completions") for line in rpm_packages.query(rpm, "-l")}
        only_deb = re.compile(r"/usr/share/(lintian/|doc/[^/]+/(copyright|changelog\.Debian\.gz)$)")
        assert {name for name in files - packed if not only_deb.match(name)} == set()
        tree = rpm_packages.TREES / rpm_packages.query(rpm, "--queryformat", "%{NAME}")[0]
        only_rpm = {name for name in packed - files if not os.path.isdir(f"{tree}{name}")}
        assert {name for name in only_rpm if not name.startswith("/usr/share/licenses/")} <= {
            "/etc/vgpu/config.yaml",
            "/usr/lib/systemd/system-preset/80-vgpu.preset",
            "/usr/lib/vgpu/hook.bytecode",
            "/usr/lib/vgpu/python3",
            "/usr/share/selinux",
            "/usr/share/selinux/packages",
            "/usr/share/selinux/packages/vgpu.cil",
        }


def test_the_package_requires_a_python_and_the_c_library(rpms: list[Path]) -> None:
    """And coreutils and findutils, which the scriptlets call."""
    wanted = {line for line in rpm_packages.query(rpms[0], "--requires") if not line.startswith(("rpmlib(", "config("))}
    assert wanted == {PYTHON, "libc.so.6(GLIBC_2.17)(64bit)", "/bin/sh", "coreutils", "findutils"}


def test_nothing_of_the_build_machine_is_in_the_packages(debs: list[Path], rpms: list[Path], tmp_path: Path) -> None:
    """Another build of the same trees in another folder gives the same bytes. A long test builds from a clone."""
    again = rpm_packages.pack(rpm_packages.TREES, tmp_path, rpm_packages.RELEASE)
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in rpms]
    for rpm in rpms:
        assert rpm_packages.query(rpm, "--queryformat", "%{BUILDHOST}") == ["localhost"]
        assert set(rpm_packages.query(rpm, "--queryformat", "[%{FILEUSERNAME} %{FILEGROUPNAME}\n]")) == {"root root"}
        times = rpm_packages.query(rpm, "--queryformat", "[%{FILEMTIMES}\n]%{BUILDTIME}\n")
        assert len(set(times)) == 1, "the changelog's"
        assert not [line for line in rpm_packages.query(rpm, "--provides") if "libcuda" in line or "libnvidia" in line]


def test_only_the_settings_are_configuration(debs: list[Path], rpms: list[Path]) -> None:
    assert [rpm_packages.query(rpm, "-c") for rpm in rpms] == [["/etc/vgpu/config.yaml"], []]


@pytest.mark.program("rpmlint")
def test_rpmlint_finds_nothing(rpms: list[Path]) -> None:
    command = ["rpmlint", "--strict", "-c", CHECKOUT / "packaging/rpm/rpmlint.toml", *rpms]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 errors, 0 warnings" in done.stdout


def test_installed_in_a_scratch_root_used_upgraded_and_erased(
    rpms: list[Path], tmp_path: Path, rootfs: Callable[..., Path], node: nodes.SimulatedNode
) -> None:
    last = tmp_path / "last"
    last.mkdir()
    rpm_packages.pack_stand_ins(rpm_packages.pack_last(last), last)
    made = installed_node.make_bundles(tmp_path / "bundles", rootfs, node)
    overlay = tmp_path / "overlay"
    overlay.mkdir()
    done = subprocess.run(
        ["unshare", "-m", "sh", SCRIPT, last, rpms[0].parent, overlay, node.driver, node.sim, made, roots.node()],
        capture_output=True, text=True, check=False, timeout=TIMEOUT, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    check(installed_node.by_heading(done.stdout))


def check(parts: dict[str, str]) -> None:
    assert f"{PYTHON} is needed by vgpu-" in parts["requires"]
    assert "python3dist(grpcio) >= 1.30 is needed by vgpu-device-plugin-" in parts["requires"]
    assert installed_node.NEXT in parts["install"]
    assert "systemctl enable --now vgpu-device-plugin.service" in parts["install"]
    assert parts["verify"] == "nothing differs\n"
    assert parts["gone"] == "1\n"
    assert "vgpu-device-plugin" in parts["plugin"]
    for run in ("share", "again"):
        assert installed_node.limits(parts[run]) == [f"card0.total {2 << 30}"]
        assert "refused 2" in parts[run]
    check_upgrade(parts)
    assert "/etc/containers/oci/hooks.d/vgpu.json" in parts["erase"]
    assert "config.yaml saved as /etc/vgpu/config.yaml.rpmsave" in parts["erase"]
    assert parts["selinux"].splitlines() == [
        "-X 200 -i /usr/share/selinux/packages/vgpu.cil vgpu.cil",
        "-X 200 -r vgpu ",
        "-lfull ",
    ], "loaded while the file is there, removed when it is gone; a root without semodule was installed in before"
    assert parts["left"].split()[:3] == ["etc/vgpu", "var/lib/vgpu", "config.json"]
    assert set(parts["left"].split()[3:]) >= {"config.yaml.rpmsave", "config.yaml.rpmnew", "standalone.key"}


def check_upgrade(parts: dict[str, str]) -> None:
    """The administrator's settings stay, and of the module that is gone nothing stays."""
    assert "/etc/vgpu/config.yaml created as /etc/vgpu/config.yaml.rpmnew" in parts["upgrade"]
    assert [line.split(".")[2] for line in parts["upgrade"].splitlines()[-2:]] == ["0-1", "0-1"]
    assert "vgpuctl doctor" not in parts["upgrade"], "the next step is for a first installation"
    assert parts["changed"].splitlines()[0].endswith("c /etc/vgpu/config.yaml")
    assert sorted(parts["changed"].split()[2:]) == sorted(
        ["/etc/vgpu/config.yaml", "config.yaml", "config.yaml.rpmnew", "standalone.key"]
    )
    assert parts["removed"] == "0\n"
    assert parts["unattended"] == "same\n" * 4, "settings and key"
    assert parts["bytecode"] == "same\n"
    assert parts["exchanged"] == "/usr/bin/python3\n" * 2


@pytest.mark.long
def test_make_rpm_in_a_clone_gives_the_same_bytes(rpms: list[Path]) -> None:
    """A user without rights calls `make rpm` in another folder, with a virtual environment of its own."""
    with tempfile.TemporaryDirectory(prefix="vgpu-test-") as name:
        clone = fresh_machine.make_in_clone("rpm", Path(name))
        again = sorted((clone / "build").glob("*.rpm"))
        assert {path.name: path.read_bytes() for path in again} == {path.name: path.read_bytes() for path in rpms}
        assert {path.owner() for path in again} == {fresh_machine.USER}
