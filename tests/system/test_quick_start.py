"""The README's quick start without Kubernetes: its commands, typed on a machine of their own.

Belongs here: what a newcomer types. `make deb` is the fixture's, the driver is simulated, and IMAGE is a root file
system, because no registry can be reached. Everything else runs as it is printed.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import cgroup_trees
import nodes
import pytest
from checkout import CHECKOUT

pytestmark = pytest.mark.root

SCRIPT = CHECKOUT / "tests/beds/quick_start_node.sh"
DRIVER = "cat /root/simulated-driver.yaml >>/etc/vgpu/config.yaml && vgpuctl config apply"
PARENT = "/libpod_parent"
HEADING = "## Quick start without Kubernetes"


def commands() -> list[str]:
    """The indented lines below the heading, up to the next heading."""
    section = (CHECKOUT / "README.md").read_text(encoding="utf-8").split(HEADING, 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^ {4}(.*)", section, re.MULTILINE)


@pytest.fixture
def podmans_cgroup() -> Iterator[None]:
    """podman's parent of all containers goes again, unless another podman had made it before."""
    existed = any(Path("/sys/fs/cgroup").glob(f"*{PARENT}"))
    yield
    if not existed:
        cgroup_trees.remove(PARENT)


@pytest.mark.usefixtures("podmans_cgroup")
def test_the_quick_start_ends_with_a_share_of_a_card(
    deb: Path, tmp_path: Path, rootfs: Callable[..., Path], node: nodes.SimulatedNode
) -> None:
    install, *others = commands()
    assert install.startswith("make deb && ")
    typed = "\n".join([install.removeprefix("make deb && "), DRIVER, *others]).replace(
        "IMAGE", f"--volume {node.sim}:/run/vgpu-sim --rootfs {rootfs()}"
    )
    path = tmp_path / "commands"
    path.write_text(typed + "\n")
    upper = tmp_path / "overlay"
    upper.mkdir()
    command = ["unshare", "-m", "sh", SCRIPT, deb, upper, node.driver, node.sim, path]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    shown = done.stdout.rpartition("NVIDIA-SMI")[2]
    assert re.search(r"0MiB / +8192MiB", shown), done.stdout
