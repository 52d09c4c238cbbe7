"""`vgpuctl runtime` on what `containerd config default` prints, with containerds of three versions.

Belongs here: whether containerd reads the edited file as meant, and the undo to the byte. tests/unit has the texts that
are written, tests/system the containers that then run.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import containerd_bed
import pytest

from vgpu.node.runtimes import containerd, registry, toml_text
from vgpu.node.runtimes.registration import BASE_SPEC, DEFAULT, HANDLER, Wish

PATTERNS = ["vgpu.io/*"]


@pytest.fixture
def config(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with the default configuration of that containerd, which is the first in PATH."""
    monkeypatch.setenv("PATH", f"{containerd_bed.programs(version)}:{os.environ['PATH']}")
    path = tmp_path / "etc/config.toml"
    path.parent.mkdir()
    path.write_text(output("containerd", "config", "default"))
    return path


@pytest.fixture
def wish(config: Path, tmp_path: Path) -> Wish:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("vgpu-hook", "vgpu-runtime"):
        (programs / name).touch(0o755)
    (tmp_path / "state/runtimes").mkdir(parents=True)
    return Wish(str(config), programs=str(programs), state_dir=str(tmp_path / "state"))


def output(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def understood(config: Path) -> containerd.Cri:
    """The handlers, as containerd reads its files."""
    dump = output("containerd", "--config", str(config), "config", "dump")
    return containerd.of_document(toml_text.parse(dump, "config dump"))


def configured(wish: Wish, mode: str) -> None:
    """Configure, and see that a second time changes nothing."""
    wish = replace(wish, mode=mode)
    registry.configure("containerd", wish).execute()
    assert not registry.configure("containerd", wish).changes()


@pytest.mark.parametrize("mode", [HANDLER, DEFAULT])
@pytest.mark.parametrize("version", containerd_bed.SUITES)
def test_a_handler_beside_the_default_ones(config: Path, wish: Wish, mode: str) -> None:
    text, before = config.read_text(), understood(config)
    configured(wish, mode)
    after = understood(config)
    handlers = dict(after.handlers)
    added = handlers.pop("vgpu")
    assert handlers == before.handlers
    assert after.default == (before.default if mode == HANDLER else "vgpu")
    assert added["runtime_type"] == before.handlers["runc"]["runtime_type"]
    assert added["options"]["BinaryName"] == f"{wish.programs}/vgpu-runtime"
    assert added["pod_annotations"] == added["container_annotations"] == PATTERNS
    assert added.get("sandbox_mode") == before.handlers["runc"].get("sandbox_mode")
    registry.unconfigure("containerd", wish.state_dir).execute()
    assert config.read_text() == text


@pytest.mark.parametrize("version", containerd_bed.SUITES)
def test_a_base_specification_of_the_default_handler(config: Path, wish: Wish) -> None:
    text, before = config.read_text(), understood(config)
    configured(wish, BASE_SPEC)
    after = understood(config)
    changed = dict(after.handlers["runc"])
    assert after.default == before.default == "runc"
    spec = json.loads(Path(changed["base_runtime_spec"]).read_text())
    assert [hook["path"] for hook in spec["hooks"]["createRuntime"]] == [f"{wish.programs}/vgpu-hook"]
    assert set(json.loads(output("ctr", "oci", "spec"))) < set(spec)
    assert changed["pod_annotations"] == changed["container_annotations"] == PATTERNS
    ours = ("base_runtime_spec", "pod_annotations", "container_annotations")
    assert {**changed, **{key: before.handlers["runc"][key] for key in ours}} == before.handlers["runc"]
    registry.unconfigure("containerd", wish.state_dir).execute()
    assert config.read_text() == text
    assert not Path(wish.config).with_name("vgpu-base.json").exists()
