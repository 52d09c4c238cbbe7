"""The checks of `vgpuctl doctor` for device nodes, which need mknod."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from doctor_tree import Tree, look, only

from vgpu.node.doctor import node
from vgpu.node.doctor.findings import FAILURE


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    made = Tree(tmp_path)
    made.write("proc/self/mountinfo", "30 20 0:27 / /cgroup rw - cgroup2 cgroup2 rw\n")
    (tmp_path / "cgroup").mkdir()
    return made


@pytest.mark.root  # mknod
def test_nodes(tree: Tree) -> None:
    tree.inventory()
    assert [status for status, _ in look(node.nodes, tree.context)] == [FAILURE, FAILURE]
    for minor in range(2):
        os.mknod(tree.path / f"dev/nvidia{minor}", stat.S_IFCHR | 0o666, os.makedev(195, minor))
    assert only(node.nodes, tree.context).found == "2 nodes"
    (tree.path / "dev/nvidia1").unlink()
    os.mknod(tree.path / "dev/nvidia1", stat.S_IFCHR | 0o666, os.makedev(195, 7))
    assert "number 195:7" in only(node.nodes, tree.context).found
