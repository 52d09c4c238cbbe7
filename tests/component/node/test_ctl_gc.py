"""`vgpuctl gc`: what it removes on a node without vgpud, what it keeps, and what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import nodes
import pytest

from vgpu.config import paths
from vgpu.config.inventory import read as read_inventory
from vgpu.config.request import Request
from vgpu.hook.ledger.ledger import Ledger, Start
from vgpu.hook.linux.procfs import start_time
from vgpu.node.daemon.reaper import DAMAGED_AGE, TEMPORARY_AGE

pytestmark = pytest.mark.root

OLD = max(DAMAGED_AGE, TEMPORARY_AGE) + 60


@pytest.fixture
def node(tmp_path: Path) -> nodes.SimulatedNode:
    made = nodes.SimulatedNode(tmp_path)
    made.take_inventory()
    return made


def claim(node: nodes.SimulatedNode, container: str, pid: int, ready: bool = True) -> None:
    ledger = Ledger(node.settings, read_inventory(node.settings.run_dir).cards)
    start = Start(container, pid, start_time(pid), "/b", None, "", time.time())
    assert ledger.claim(start, Request(1, 10, 1 << 30))
    if ready:
        ledger.confirm(start)


def dead_claim(node: nodes.SimulatedNode, container: str, ready: bool = True) -> None:
    init = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    claim(node, container, init.pid, ready)
    init.communicate(b"\n")


def aged(path: Path) -> Path:
    """`path`, last changed long ago, with everything in it."""
    then = time.time() - OLD
    for item in (*path.rglob("*"), path):
        os.utime(item, (then, then))
    return path


def gc(node: nodes.SimulatedNode, *more: str) -> dict[str, Any]:
    words = [*node.vgpuctl_command(), "gc", "--output", "json", *more]
    done = subprocess.run(words, env=node.environment(), capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def named(items: list[dict[str, str]]) -> set[tuple[str, str]]:
    return {(item["kind"], item["what"]) for item in items}


def leave(node: nodes.SimulatedNode) -> set[tuple[str, str]]:
    """One of each kind."""
    dead_claim(node, "dead")
    run, state = Path(node.settings.run_dir), Path(node.settings.state_dir)
    broken = Path(paths.container(str(run), "broken"))
    broken.mkdir()
    aged(broken)
    temporary = run / ".inventory.json.4711.tmp"
    temporary.write_text("{")
    aged(temporary)
    copy = Path(paths.all_limiter_copies(str(state)), "390.1-abcdef")
    copy.mkdir(parents=True)
    return {
        ("claim", "dead"), ("damaged claim", "broken"), ("temporary file", str(temporary)),
        ("copy of libvcuda", str(copy)),
    }  # fmt: skip


def test_it_removes_one_of_each_kind(node: nodes.SimulatedNode) -> None:
    left = leave(node)
    before = {path: path.stat().st_mtime_ns for path in node.directory.rglob("*")}
    listed = gc(node, "--dry-run")
    assert {path: path.stat().st_mtime_ns for path in node.directory.rglob("*")} == before
    copies = {item for item in left if item[0] == "copy of libvcuda"}
    assert named(listed["removed"]) == left - copies
    assert named(listed["kept"]) == copies, "the damaged record may be of a container that has the copy"
    assert named(gc(node)["removed"]) == left
    assert gc(node) == {"dry_run": False, "removed": [], "kept": []}
    assert not [path for kind, path in left if kind in ("temporary file", "copy of libvcuda") and Path(path).exists()]
    assert os.listdir(paths.containers(node.settings.run_dir)) == []


def test_a_living_container_keeps_everything(node: nodes.SimulatedNode) -> None:
    claim(node, "living", os.getpid())
    copy = Path(paths.all_limiter_copies(node.settings.state_dir), "390.1-abcdef")
    copy.mkdir(parents=True)
    found = gc(node)
    assert found["removed"] == []
    assert named(found["kept"]) == {("copy of libvcuda", str(copy))}
    assert Path(paths.claim(node.settings.run_dir, "living")).exists()


def test_a_claim_whose_hook_may_still_run_stays(node: nodes.SimulatedNode) -> None:
    dead_claim(node, "starting", ready=False)
    found = gc(node)
    assert found["removed"] == []
    assert "its hook may still run" in found["kept"][0]["why"]
    assert Path(paths.claim(node.settings.run_dir, "starting")).exists()


def test_a_clean_node_says_so(node: nodes.SimulatedNode) -> None:
    done = subprocess.run(
        [*node.vgpuctl_command(), "gc"], env=node.environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout == "nothing removed\n"
