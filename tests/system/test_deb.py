"""The package on this machine's Debian: built, installed without a checkout, used for the main job, purged."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import bundles
import nodes
import pytest
from checkout import CHECKOUT

pytestmark = pytest.mark.root

SCRIPT = CHECKOUT / "tests/beds/installed_node.sh"


def test_the_installed_hook_does_the_main_job(
    deb: Path, tmp_path: Path, rootfs: Callable[..., Path], node: nodes.SimulatedNode
) -> None:
    share = bundles.Bundle(tmp_path / "bundle", rootfs(), {"vgpu.io/cores": "30", "vgpu.io/memory": "2Gi"})
    share.simulated(node).command("sh", "-c", "cudaprobe info; cudaprobe alloc 512 9")
    for stage in ("prestart", "poststop"):
        hook = {"path": "/usr/bin/vgpu-hook", "args": ["vgpu-hook", stage], "env": ["PATH=/usr/bin"]}
        share.config.setdefault("hooks", {})[stage] = [hook]
    upper = tmp_path / "overlay"
    upper.mkdir()
    command = ["unshare", "-m", "sh", SCRIPT, deb, upper, node.driver, node.sim, share.write()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    parts = dict(part.split("\n", 1) for part in done.stdout.split("## ")[1:])
    assert int(parts["files"].split("\n")[0]) > 30
    assert f"card0.total {2 << 30}" in parts["run"]
    assert "refused 2" in parts["run"]
    assert '"containers": []' in parts["status"]
    assert "gone" in parts, parts["purge"]


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
    units = (tmp_path / "usr/lib/systemd/system").iterdir()
    named = {
        path for unit in units for path in re.findall(r"^Documentation=file://(.*)", unit.read_text(), re.MULTILINE)
    }
    assert named
    assert not {path for path in named if not (tmp_path / path.lstrip("/")).is_file()}


def test_the_package_carries_no_simulator_and_edits_no_runtime(deb: Path) -> None:
    listing = subprocess.run(["dpkg-deb", "-c", deb], capture_output=True, text=True, check=True).stdout
    paths = {line.split()[5] for line in listing.splitlines()}
    assert not [path for path in paths if "/sim" in path or "simctl" in path]
    assert not [path for path in paths if path.startswith(("./etc/containerd", "./etc/docker", "./etc/containers"))]
    assert not [path for path in paths if path.startswith("./usr/share/containers")]
    scripts = subprocess.run(["dpkg-deb", "-I", deb, "postinst"], capture_output=True, text=True, check=True).stdout
    assert "|| true" not in scripts
