"""The packages on this machine's Debian: what they contain, and both installed without a checkout, used and purged."""

from __future__ import annotations

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
from checkout import CHECKOUT

pytestmark = pytest.mark.root


def test_the_installed_hook_does_the_main_job(
    debs: list[Path], tmp_path: Path, rootfs: Callable[..., Path], node: nodes.SimulatedNode
) -> None:
    installed_node.check(installed_node.run(debs, tmp_path, rootfs, node))


def test_the_package_keeps_the_tree_of_the_documents(deb: Path, tmp_path: Path, repository: Path) -> None:
    subprocess.run(["dpkg-deb", "-x", deb, tmp_path], check=True)
    shipped = tmp_path / "usr/share/doc/vgpu"
    sources = {path.relative_to(repository) for path in (repository / "docs").rglob("*.md")}
    assert {path.relative_to(shipped) for path in (shipped / "docs").rglob("*")} >= sources
    broken = {
        f"{page.relative_to(shipped)}: {link}"
        for page in shipped.rglob("*.md")
        for link in re.findall(r"\]\(([^)#:\s]+)(?:#[\w-]*)?\)", page.read_text(encoding="utf-8"))
        if not (page.parent / link).exists() and "libvcuda/" not in link  # the simulator's page stays with the sources
    }
    assert not broken


def test_the_units_name_pages_of_the_package(debs: list[Path], tmp_path: Path) -> None:
    for deb in debs:
        subprocess.run(["dpkg-deb", "-x", deb, tmp_path], check=True)
    units = (tmp_path / "usr/lib/systemd/system").iterdir()
    named = {
        path for unit in units for path in re.findall(r"^Documentation=file://(.*)", unit.read_text(), re.MULTILINE)
    }
    assert named
    assert not {path for path in named if not (tmp_path / path.lstrip("/")).is_file()}


def test_the_packages_carry_no_simulator_and_edit_no_runtime(debs: list[Path]) -> None:
    for deb in debs:
        paths = {line[-1] for line in listing(deb)}
        assert not [path for path in paths if "/sim" in path or "simctl" in path]
        assert not [path for path in paths if path.startswith(("./etc/containerd", "./etc/docker", "./etc/containers"))]
        assert not [path for path in paths if path.startswith("./usr/share/containers")]
    scripts = [path for path in (CHECKOUT / "packaging/deb").glob("*/p*") if path.suffix == ""]
    assert len(scripts) == 6
    assert not [path for path in scripts if "|| true" in path.read_text() or "|| :" in path.read_text()]


def listing(deb: Path) -> list[list[str]]:
    """mode, owner, size, date, time and path of each file."""
    command = ["dpkg-deb", "-c", deb]
    text = subprocess.run(command, capture_output=True, text=True, check=True, env={"PATH": "/usr/bin", "TZ": "UTC0"})
    return [line.split(" -> ")[0].split() for line in text.stdout.splitlines()]


def test_nothing_of_the_build_machine_is_in_the_packages(debs: list[Path], tmp_path: Path) -> None:
    """Two builds in two folders give the same bytes: the long test below compares them."""
    for deb in debs:
        lines = listing(deb)
        assert {line[1] for line in lines} == {"root/root"}
        assert {line[0] for line in lines} <= {"drwxr-xr-x", "-rw-r--r--", "-rwxr-xr-x", "lrwxrwxrwx"}
        assert len({(line[3], line[4]) for line in lines}) == 1  # the changelog's time
        assert not [line for line in lines if line[-1].endswith(("direct_url.json", "RECORD", ".pyc"))]
        members = subprocess.run(["ar", "t", deb], capture_output=True, text=True, check=True).stdout.split()
        assert members == ["debian-binary", "control.tar.xz", "data.tar.xz"]  # Debian 11's dpkg has no zstd
        subprocess.run(["dpkg-deb", "-R", deb, tmp_path / deb.stem], check=True)
    found = [path for path in tmp_path.rglob("*") if path.is_file() and str(CHECKOUT).encode() in path.read_bytes()]
    assert found == []


def test_the_package_needs_a_python_and_the_c_library(debs: list[Path], tmp_path: Path) -> None:
    """It carries all else, for every Python, and their licences. The plugin has gRPC of the distribution."""
    depends, of_plugin = (
        subprocess.run(["dpkg-deb", "-f", deb, "Depends"], capture_output=True, text=True, check=True).stdout
        for deb in debs
    )
    assert re.fullmatch(r"libc6 \(>= 2\.17\), python3 \(>= 3\.9\)( \| python3\.\d+){6}\n", depends)
    for deb in debs:
        subprocess.run(["dpkg-deb", "-x", deb, tmp_path], check=True)
    python = tmp_path / "usr/lib/vgpu/python"
    assert [path.name for path in python.rglob("*.so*")] == ["_psutil_linux.abi3.so"]
    carried = {path.name.split("-")[0] for path in python.glob("*.dist-info")} - {"vgpu"}
    text = (CHECKOUT / "packaging/deb/copyright").read_text()
    assert all(f"usr/lib/vgpu/python/{path.name}" in text or f"usr/lib/vgpu/python/{path.name}/*" in text
               for path in python.iterdir() if not path.name.startswith("vgpu") and "-" not in path.name)  # fmt: skip
    assert all(f"usr/lib/vgpu/python/{name}-" in text for name in carried)
    project = (CHECKOUT / "pyproject.toml").read_text()
    wanted = re.findall(r'^    "([\w-]+)>=', project.split("\ndependencies = [")[1].split("\n]")[0], re.MULTILINE)
    missing = {name for name in wanted if name.replace("-", "_") not in carried}
    assert missing == {"grpcio", "protobuf"} == {name for name in wanted if f"python3-{name}" in of_plugin}


def test_every_program_has_a_manual_page(debs: list[Path], tmp_path: Path) -> None:
    for deb in debs:
        subprocess.run(["dpkg-deb", "-x", deb, tmp_path], check=True)
    programs = {path.name for path in (tmp_path / "usr/bin").iterdir()}
    pages = {path.name.rsplit(".", 2)[0]: path for path in (tmp_path / "usr/share/man").rglob("*.gz")}
    assert {"vgpu-hook", "vgpu-runtime", "vgpuctl", "vgpud", "vgpu-device-plugin"} <= programs <= set(pages)
    assert {"vgpuctl-doctor", "vgpuctl-config-apply", "vgpu-config.yaml"} <= set(pages)
    assert not [page for page in pages.values() if not page.exists()]


def test_lintian_finds_nothing(debs: list[Path]) -> None:
    script = """
    mount -t proc proc $0/proc; mount -t tmpfs tmpfs $0/tmp; cp "$@" $0/tmp
    exec chroot $0 sh -c 'cd /tmp && exec lintian --fail-on error,warning *.deb'"""
    command = ["unshare", "-m", "sh", "-ec", script, roots.node(), *debs]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_two_builds_in_two_folders_give_the_same_bytes(debs: list[Path]) -> None:
    """The second one is `make deb` in a fresh clone, by a user without rights, with its own virtual environment."""
    with tempfile.TemporaryDirectory(prefix="vgpu-test-") as name:
        clone = fresh_machine.make_in_clone("deb", Path(name))
        again = sorted((clone / "build").glob("*.deb"))
        assert [path.name for path in again] == sorted(path.name for path in debs)
        assert {path.name: path.read_bytes() for path in again} == {path.name: path.read_bytes() for path in debs}
        assert {path.owner() for path in again} == {fresh_machine.USER}
        assert not list((clone / ".venv/bin").glob("pytest"))
