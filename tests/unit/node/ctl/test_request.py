"""`vgpuctl request` through click: what it prints is what the hook reads, and who can read the key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from vgpu.config import records, standalone
from vgpu.config.settings import Settings
from vgpu.node.ctl import request as verb

KEY = "0123456789abcdef" * 2


class Node:
    def __init__(self, path: Path) -> None:
        self.key = path / "etc/standalone.key"
        self.config = str(path / "config.json")
        records.write(self.config, Settings({"standalone.key": str(self.key)}).record())

    def call(self, *arguments: str) -> Result:
        return CliRunner().invoke(verb.request, arguments, obj=self.config)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path)
    assert made.call("--make-key").exit_code == 0
    return made


def test_every_part_has_an_option() -> None:
    assert {name for name, _ in verb._PARTS} == set(standalone.PARTS)


@pytest.mark.parametrize(
    ("options", "value"),
    [
        (["--cores", "30", "--memory", "8Gi"], "cores=30+memory=8Gi"),
        (["--gpus", "2", "--policy", "spread"], "gpus=2+policy=spread"),
        (["--gpus", "1", "--use-gpuuuid", "GPU-a", "--use-gpuuuid", "GPU-b"],
         "gpus=1+use-gpuuuid=GPU-a+use-gpuuuid=GPU-b"),
        (["--cores", "9", "--memory", "1Gi", "--core-limit", "50", "--numa-bind", "true"],
         "cores=9+memory=1Gi+core-limit=50+numa-bind=true"),
    ],
)  # fmt: skip
def test_it_prints_the_annotation(node: Node, options: list[str], value: str) -> None:
    key = node.key.read_text().strip()
    assert node.call(*options).output == f"vgpu.io/request-{key}={value}\n"
    assert json.loads(node.call(*options, "--output", "json").output) == {f"vgpu.io/request-{key}": value}
    assert standalone.with_key({f"vgpu.io/request-{key}": value}, key) == value
    standalone.parse(value, {})


def test_a_memory_that_runs_nothing_is_doubted(node: Node) -> None:
    doubt = node.call("--cores", "9", "--memory", "8").stderr
    assert "8 MiB, less than any CUDA context takes; for GiB write 8Gi" in doubt
    for memory in ("8Gi", "800", "8Mi"):
        assert node.call("--cores", "9", "--memory", memory).stderr == ""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "--cores and --memory, or --gpus"),
        (["--cores", "30"], "expected memory beside cores=30"),
        (["--cores", "x", "--memory", "1Gi"], "--cores: expected a whole number"),
        (["--gpus", "1", "--policy", "mutex"], "--policy: expected binpack or spread"),
    ],
)
def test_a_wrong_request_is_refused_before_anything_is_printed(node: Node, options: list[str], words: str) -> None:
    done = node.call(*options)
    assert done.exit_code == 1
    assert words in str(done.exception)
    assert node.key.read_text().strip() not in done.output


def test_a_key_is_made_once_and_rotated_on_demand(node: Node) -> None:
    first = node.key.read_text()
    assert node.key.stat().st_mode & 0o777 == 0o600
    assert node.call("--make-key").output == ""
    assert node.key.read_text() == first
    assert node.call("--rotate-key").output == ""
    assert node.key.read_text() != first
    assert standalone.is_key(node.key.read_text().strip())


def test_a_damaged_key_is_not_replaced_unasked(node: Node) -> None:
    node.key.write_text("x")
    assert "32 hexadecimal digits" in str(node.call("--make-key").exception)
    assert node.key.read_text() == "x"
    assert node.call("--rotate-key").exit_code == 0


def test_without_settings_the_key_lies_in_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(verb, "_make", lambda path, anew: made.append(path))
    assert CliRunner().invoke(verb.request, ["--make-key"], obj=str(tmp_path / "none")).exit_code == 0
    assert made == ["/etc/vgpu/standalone.key"]
