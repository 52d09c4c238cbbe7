"""`vgpuctl cdi` through click: what it prints, what it refuses, and its exit status."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from vgpu.config import cdi_device as device
from vgpu.config import records
from vgpu.config.settings import Settings
from vgpu.node.ctl.cdi import cdi
from vgpu.node.runtimes import places


class Node:
    """A node whose programs, settings and CDI specifications are below one directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings = str(path / "config.json")
        records.write(self.settings, Settings({"paths.state": str(path / "state")}).record())
        (path / "bin").mkdir()
        self.hook = path / "bin/vgpu-hook"
        self.hook.touch(0o755)
        self.file = path / "cdi/vgpu.json"

    def generate(self, *arguments: str) -> Result:
        places = ["--directory", str(self.file.parent), "--programs", str(self.path / "bin")]
        return CliRunner().invoke(cdi, ["generate", *places, *arguments], obj=self.settings)

    def remove(self, *arguments: str) -> Result:
        return CliRunner().invoke(cdi, ["remove", *arguments], obj=self.settings)


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The registrations in the files of kubelet's runtimes, in the place of this machine's."""
    found: list[tuple[str, str]] = []
    monkeypatch.setattr(places, "of_kubelet", lambda _: found)
    return found


@pytest.fixture
def node(tmp_path: Path, others: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return Node(tmp_path)


def test_generate_writes_the_device_and_says_to_what_it_applies(node: Node) -> None:
    done = node.generate()
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[0] == f"written: {node.file}"
    assert device.DEVICE in lines[1]
    (one,) = json.loads(node.file.read_text())["devices"]
    hooks = one["containerEdits"]["hooks"]
    assert {hook["path"] for hook in hooks} == {str(node.hook)}
    assert hooks[0]["args"] == ["vgpu-hook", "--config", node.settings, "createRuntime"]
    assert "now run" not in done.output, "the runtime reads the directory by itself"
    assert node.generate().output.splitlines()[0] == "cdi: configured already; nothing changed"


def test_remove_takes_back_what_generate_wrote(node: Node) -> None:
    node.generate()
    assert node.remove().output == f"removed: {node.file}\n"
    assert not node.file.parent.exists()
    assert node.remove().output == "cdi: not configured; nothing changed\n"


def test_a_dry_run_writes_nothing(node: Node) -> None:
    assert node.generate("--dry-run").output.startswith(f"--- /dev/null\n+++ {node.file}\n@@ ")
    assert not node.file.exists()


def test_output_for_programs(node: Node) -> None:
    made = json.loads(node.generate("--output", "json").output)
    assert (made["changed"], made["files"]) == (True, [{"path": str(node.file), "action": "written"}])


def test_a_second_registration_is_refused(node: Node, others: list[tuple[str, str]]) -> None:
    """Or its containers would start the hook twice."""
    others.append(("containerd (/etc/containerd/config.toml: BinaryName)", "/usr/bin/vgpu-runtime"))
    refused = node.generate()
    assert refused.exit_code == 1
    assert "no other registration of the hook, found containerd (/etc/" in str(refused.exception)
    assert not node.file.exists()
    assert node.generate("--beside-others").exit_code == 0
    assert node.file.exists()


def test_without_the_hook_nothing_is_written(node: Node) -> None:
    node.hook.unlink()
    assert str(node.hook) in str(node.generate().exception)
    assert not node.file.exists()


def test_only_root(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for done in (node.generate(), node.remove()):
        assert str(done.exception) == "vgpuctl cdi: expected root, found uid 1000; run as root"
