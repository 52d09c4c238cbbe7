"""The doctor's checks of settings that need no program: whose requests count outside Kubernetes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from doctor_tree import Tree, only

from vgpu.config import paths, records, standalone
from vgpu.config.settings import Settings
from vgpu.node.doctor import node
from vgpu.node.doctor.findings import OK, WARNING


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def with_settings(tree: Tree, **values: object) -> Tree:
    record = {**tree.settings.record()["settings"], **values}  # type: ignore[dict-item]
    tree.context = replace(tree.context, settings=Settings(record))
    return tree


def test_requests_by_key(tree: Tree) -> None:
    found = only(node.requests, tree.context)
    assert (found.status, found.do) == (WARNING, "run: vgpuctl request --make-key")
    standalone.write_key(tree.settings.text("standalone.key"), "a" * 32)
    assert only(node.requests, tree.context).status == OK
    (tree.path / "standalone.key").chmod(0o644)
    assert "mode 0600" in only(node.requests, tree.context).expected


def test_an_open_node_is_a_warning(tree: Tree) -> None:
    standalone.write_key(tree.settings.text("standalone.key"), "a" * 32)
    found = only(node.requests, with_settings(tree, **{"standalone.requests": "annotations"}).context)
    assert (found.status, found.found.partition(":")[0]) == (WARNING, "standalone.requests")
    assert "vgpuctl request" in found.do


def test_an_open_registration_is_a_warning(tree: Tree) -> None:
    standalone.write_key(tree.settings.text("standalone.key"), "a" * 32)
    directory = Path(paths.runtimes(tree.settings.state_dir))
    directory.mkdir(parents=True)
    records.write(str(directory / "podman.json"), {"files": [], "options": {"standalone": "any"}})
    found = only(node.requests, tree.context)
    assert found.status == WARNING
    assert "vgpuctl runtime configure --runtime podman --standalone any" in found.found


def test_a_node_without_such_requests(tree: Tree) -> None:
    assert only(node.requests, with_settings(tree, **{"standalone.enabled": False}).context).status == OK
