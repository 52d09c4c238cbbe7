"""`vgpuctl doctor --fix` on a simulated node: what it mends, what it leaves alone, and what it says."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import nodes
import pytest

from vgpu.config import inventory as inventories
from vgpu.config import paths, records
from vgpu.node.driver import device_nodes, discover

pytestmark = pytest.mark.root


class Mended:
    """A run of the verb: its findings by check, and stderr."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.errors = done.stderr
        self.findings: dict[str, list[dict[str, Any]]] = {}
        for item in json.loads(done.stdout):
            self.findings.setdefault(item["check"], []).append(item)

    def only(self, check: str) -> dict[str, Any]:
        (found,) = self.findings[check]
        return found


def fix(node: nodes.SimulatedNode, *more: str) -> Mended:
    words = [*node.vgpuctl_command(), "doctor", "--hook", str(node.hook), "--output", "json", *more]
    return Mended(subprocess.run(words, env=node.environment(), capture_output=True, text=True, check=False))


@pytest.fixture
def node(tmp_path: Path) -> nodes.SimulatedNode:
    made = nodes.SimulatedNode(tmp_path)
    made.take_inventory()
    return made


def uvm(node: nodes.SimulatedNode) -> Path:
    return Path(discover.dev_dir(node.settings)) / "nvidia-uvm"


def test_missing_nodes_of_uvm_are_made(node: nodes.SimulatedNode) -> None:
    number = uvm(node).stat().st_rdev
    uvm(node).unlink()
    before = fix(node)
    assert before.only("uvm")["status"] == "failure"
    assert before.errors == "" and not uvm(node).exists(), "without --fix nothing changes"
    after = fix(node, "--fix")
    assert after.only("uvm")["status"] == "ok"
    assert after.only("uvm")["mended"].startswith(f"made {uvm(node)} ({os.major(number)}:{os.minor(number)})")
    assert f"mended: uvm: made {uvm(node)}" in after.errors
    made = uvm(node).stat()
    assert stat.S_ISCHR(made.st_mode) and made.st_rdev == number
    assert made.st_mode & 0o777 == device_nodes.parameters(node.settings.text("driver.proc_root")).mode


def test_a_node_with_a_wrong_number_stays(node: nodes.SimulatedNode) -> None:
    uvm(node).unlink()
    os.mknod(uvm(node), stat.S_IFCHR | 0o600, os.makedev(1, 3))
    after = fix(node, "--fix")
    assert after.only("uvm")["status"] == "failure"
    assert after.only("uvm")["mended"] == ""
    assert uvm(node).stat().st_rdev == os.makedev(1, 3)


def test_a_stale_inventory_is_taken_again(node: nodes.SimulatedNode) -> None:
    path = paths.inventory(node.settings.run_dir)
    good = inventories.read(node.settings.run_dir)
    records.write(path, {**good.record(), "driver_version": "390.1"})
    assert fix(node).only("inventory")["status"] == "failure"
    after = fix(node, "--fix")
    assert after.only("inventory")["status"] == "ok"
    assert f"took the inventory again: driver {good.driver_version}, {len(good.cards)} cards" in after.errors
    assert inventories.read(node.settings.run_dir).driver_version == good.driver_version


def test_what_it_cannot_mend_it_says(node: nodes.SimulatedNode) -> None:
    """Without the kernel module nothing is tried: what is missing follows from that."""
    version = Path(node.settings.text("driver.proc_root"), "driver/nvidia/version")
    version.unlink()
    uvm(node).unlink()
    after = fix(node, "--fix")
    assert after.only("driver")["status"] == "failure"
    assert after.only("uvm")["cause"] == "driver"
    assert after.errors == "nothing to mend by itself\n"
    assert not uvm(node).exists()


def test_an_unregistered_hook_is_left_to_the_administrator(node: nodes.SimulatedNode) -> None:
    after = fix(node, "--fix")
    (found,) = after.findings["registration"]
    assert found["status"] != "ok" and "vgpuctl runtime configure" in found["do"]
