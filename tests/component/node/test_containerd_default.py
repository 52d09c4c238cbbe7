"""`vgpuctl runtime` on containerd's default configuration and on random ones, with containerds of four versions.

Belongs here: whether containerd reads the edited file as meant, and the undo to the byte. tests/unit has the texts that
are written, tests/system the containers that then run.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import containerd_bed
import pytest
from checkout import DATA
from containerd_files import RUNC, Files, Maker

from vgpu.config.errors import VgpuError
from vgpu.node.runtimes import containerd, registry, toml_text
from vgpu.node.runtimes.registration import BASE_SPEC, DEFAULT, HANDLER, MODES, Wish

PATTERNS = ["vgpu.io/*"]
RECORDED = DATA / "runtimes"
VERSIONS = [*containerd_bed.SUITES, *containerd_bed.NEWEST]
SEED = int(os.environ.get("VGPU_SEED") or random.randrange(1 << 30))


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


@pytest.mark.parametrize("version", VERSIONS)
def test_the_recorded_settings_are_those_of_the_default_configuration(config: Path, version: str) -> None:
    recorded = toml_text.parse((RECORDED / f"containerd-{version}.toml").read_text(), version)
    found = toml_text.parse(config.read_text(), "config default")
    assert containerd.of_document(recorded).handlers == containerd.of_document(found).handlers


@pytest.mark.parametrize("version", VERSIONS)
def test_random_files(config: Path, wish: Wish, version: str, pytestconfig: pytest.Config) -> None:
    """The new handler has every setting of the default one, or the command refuses and the files are as before.

    Nothing else that containerd reads changes, and after the undo no byte is another. The first file, in all modes, is
    containerd's own, the others are random. The long run has 200 of them.
    """
    whole = config.read_text()
    made = 0
    for number in range(70 if pytestconfig.getoption("--long") else 8):
        rng = random.Random(f"{SEED} {version} {number}")
        files = Files(whole) if number < len(MODES) else maker(rng, version, config).make()
        shown = f"VGPU_SEED={SEED}: file {number}"
        before = written(config, files)
        mode = MODES[number] if number < len(MODES) else rng.choice([DEFAULT, *MODES])
        cri = understood(config)
        default = cri.unnamed or cri.handlers.get(cri.default, {})
        named = not cri.unnamed or mode == HANDLER
        possible = not files.odd and named and default and (mode != DEFAULT or default["runtime_type"] == RUNC)
        try:
            registry.configure("containerd", replace(wish, mode=mode)).execute()
        except VgpuError as error:
            assert not possible, f"{shown}: {error}"
            assert here(config) == before, shown
            continue
        made += 1
        lines = iter(config.read_text().splitlines())
        edited = re.compile("imports|default_runtime_name|_annotations|base_runtime_spec")
        assert all(line in lines for line in files.text.splitlines() if not edited.search(line)), shown
        assert not registry.configure("containerd", replace(wish, mode=mode)).changes(), shown
        ours = cri.default if mode == BASE_SPEC else "vgpu"
        after = understood(config)
        assert after.default == ("vgpu" if mode == DEFAULT else cri.default), shown
        assert others(after, ours) == others(cri, ours), shown
        if default.get("runtime_type") == RUNC or mode == BASE_SPEC:
            assert plain(after.handlers[ours]) == expected(default, after.handlers[ours], mode), shown
            assert after.platforms.get(ours) == cri.platforms.get(cri.default), shown
        registry.unconfigure("containerd", wish.state_dir).execute()
        assert here(config) == before, shown
    assert made, f"VGPU_SEED={SEED}: none was possible"


def maker(rng: random.Random, version: str, config: Path) -> Maker:
    merges = version[0] != "1"
    kind = rng.choice([2, 3, 4] if version in containerd_bed.NEWEST else [2, 3] if merges else [1, 2])
    recorded = toml_text.parse((RECORDED / f"containerd-{version}.toml").read_text(), version)
    spec = config.parent.parent / "base.json"
    spec.write_text(output("ctr", "oci", "spec"))
    return Maker(rng, kind, merges, containerd.of_document(recorded).handlers["runc"], str(spec))


def written(config: Path, files: Files) -> dict[str, bytes]:
    """The files instead of all that were there, and what is there now."""
    shutil.rmtree(config.parent)
    for name, text in {config.name: files.text, **files.imported}.items():
        (config.parent / name).parent.mkdir(parents=True, exist_ok=True)
        (config.parent / name).write_text(text)
    return here(config)


def here(config: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in config.parent.rglob("*") if path.is_file()}


def expected(default: dict[str, Any], found: dict[str, Any], mode: str) -> dict[str, Any]:
    """The default handler with vgpu's program, or its base specification, and vgpu's annotations among its own."""
    wanted = dict(default)
    for kind in ("pod_annotations", "container_annotations"):
        wanted[kind] = [*default[kind], *(one for one in PATTERNS if one not in default[kind])]
    if mode == BASE_SPEC:
        spec = json.loads(Path(found["base_runtime_spec"]).read_text())
        assert [os.path.basename(hook["path"]) for hook in spec["hooks"]["createRuntime"]] == ["vgpu-hook"]
        assert set(json.loads(output("ctr", "oci", "spec"))) < set(spec)
        return {**plain(wanted), "base_runtime_spec": found["base_runtime_spec"]}
    program = found["options"]["BinaryName"]
    assert "vgpu-runtime" in program
    return {**plain(wanted), "options": {**plain(default)["options"], "BinaryName": program}}


def others(cri: containerd.Cri, ours: str) -> dict[str, Any]:
    return {name: plain(handler) for name, handler in cri.handlers.items() if name != ours}


def plain(handler: dict[str, Any]) -> dict[str, Any]:
    """Without empty options: to the runtime's shim they are none."""
    return {**handler, "options": {key: value for key, value in (handler.get("options") or {}).items() if value}}
