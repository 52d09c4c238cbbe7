"""`vgpuctl config upgrade`: an upgrade changes nothing unasked, and the administrator sees what it kept."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from vgpu.config import compiled, compiler, records, settings
from vgpu.config.errors import VgpuError
from vgpu.config.settings import DEFAULTS
from vgpu.node.ctl import upgrade

NAME = "standalone.requests"
BEFORE = {name: value for name, value in DEFAULTS.items() if name not in (NAME, "standalone.key")}


class Node:
    def __init__(self, path: Path, values: dict[str, Any] | None) -> None:
        self.source, self.compiled = path / "config.yaml", str(path / "config.json")
        if values is not None:
            records.write(self.compiled, {"version": 1, "node": "n", "source": "x", "settings": values})

    def keep(self) -> str:
        return upgrade.keep(str(self.source), self.compiled, "n")

    def in_force(self) -> str:
        """The setting after the package's two steps."""
        compiled.apply(str(self.source), self.compiled, "n")
        return settings.read(self.compiled).text(NAME)


SOURCES = [
    None,
    "",
    "# only a comment",
    "paths: {run: /run/vgpu}\n",
    "standalone:\n  enabled: true\n",
    "standalone:\n    # of us\n    enabled: true # yes\nscaling: {cores: 2}\n",
    "standalone: {enabled: true}\n",
    "standalone: {}\n",
    "standalone:\n",
    "standalone: ~\nscaling:\n  cores: 2\n",
    "{standalone: {enabled: true}, scaling: {cores: 2}}\n",
    "{scaling: {cores: 2}}",
    "---\nscaling:\n  cores: 2",
    "nodes:\n  other:\n    standalone: {requests: key}\n",
]


@pytest.mark.parametrize("text", SOURCES)
def test_plain_annotations_go_on_counting_after_an_upgrade(tmp_path: Path, text: str | None) -> None:
    node = Node(tmp_path, BEFORE)
    if text is not None:
        node.source.write_text(text)
        node.source.chmod(0o640)
    before = compiler.compile_source(str(node.source), "n").settings
    assert f"{NAME}: annotations, as before" in node.keep()
    changed = node.source.read_text()
    for line in (text or "").splitlines():
        assert line.removesuffix("~") in changed or "{" in line
    after = compiler.compile_source(str(node.source), "n").settings
    assert {name for name in DEFAULTS if before[name] != after[name]} == {NAME}
    assert node.source.stat().st_mode & 0o777 == (0o644 if text is None else 0o640)
    assert node.in_force() == "annotations"
    assert node.keep() == ""
    assert node.source.read_text() == changed


@pytest.mark.parametrize("text", ["standalone: {requests: key}", "nodes: {n: {standalone: {requests: key}}}"])
def test_what_the_administrator_wrote_counts(tmp_path: Path, text: str) -> None:
    node = Node(tmp_path, BEFORE)
    node.source.write_text(text)
    assert node.keep() == ""
    assert node.source.read_text() == text
    assert node.in_force() == "key"


@pytest.mark.parametrize("values", [None, {**BEFORE, "standalone.enabled": False}, DEFAULTS])
def test_a_new_installation_and_a_closed_node_need_the_key(tmp_path: Path, values: dict[str, Any] | None) -> None:
    node = Node(tmp_path, values)
    assert node.keep() == ""
    assert not node.source.exists()
    assert node.in_force() == "key"


def test_a_wrong_configuration_stays_as_it_is_and_so_do_the_settings_in_force(tmp_path: Path) -> None:
    node = Node(tmp_path, BEFORE)
    node.source.write_text("standalone: 7\n")
    with pytest.raises(VgpuError):
        node.keep()
    assert node.source.read_text() == "standalone: 7\n"
    assert settings.read(node.compiled).text(NAME) == "annotations"


def test_a_link_and_the_owner_of_its_target_stay(tmp_path: Path) -> None:
    node, target = Node(tmp_path, BEFORE), tmp_path / "managed.yaml"
    target.write_text("scaling: {cores: 2}\n")
    owner = (12, 34) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    os.chown(target, *owner)
    node.source.symlink_to(target)
    assert node.keep()
    assert node.source.is_symlink() and "requests: annotations" in target.read_text()
    assert (target.stat().st_uid, target.stat().st_gid) == owner
