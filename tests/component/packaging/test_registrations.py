"""What a removal says of the registrations: who follows its lines has the files of before, without vgpu's records."""

from __future__ import annotations

import runpy
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from checkout import CHECKOUT

from vgpu.config.settings import Settings
from vgpu.node.doctor.findings import CheckContext
from vgpu.node.runtimes import registry
from vgpu.node.runtimes.registration import DEFAULT, Wish

SCRIPT = CHECKOUT / "packaging/maintainer/registrations.py"
SECTION = 'plugins."io.containerd.grpc.v1.cri".containerd'
CONTAINERD = f'version = 2\n[{SECTION}]\ndefault_runtime_name = "runc"\n[{SECTION}.runtimes.runc]\n'
CONTAINERD += 'runtime_type = "io.containerd.runc.v2"\n# mine\n'
DOCKER = '{\n  "debug": true,\n  "runtimes": {\n    "a": {"path": "/a"}\n  }\n}\n'
#: runtime: (its mode, its file, the text)
CASES = {
    "containerd": (DEFAULT, "containerd/config.toml", CONTAINERD),
    "docker": (DEFAULT, "docker/daemon.json", DOCKER),
    "podman": ("handler", "hooks.d", None),
    "cdi": ("handler", "cdi", None),
}


@pytest.mark.parametrize("name", CASES)
def test_the_lines_of_a_removal_undo_a_registration(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")  # no runtime is asked
    monkeypatch.setattr(sys, "path", [*sys.path])
    mode, file, text = CASES[name]
    config, state = tmp_path / "root/etc" / file, tmp_path / "state"
    config.parent.mkdir(parents=True)
    if text is not None:
        config.write_text(text)
    for program in ("vgpu-hook", "vgpu-runtime"):
        (tmp_path / "root" / program).touch(0o755)
    (state / "runtimes").mkdir(parents=True)
    before = files(tmp_path / "root")
    wish = Wish(str(config), mode, programs=str(tmp_path / "root"), state_dir=str(state))
    registry.configure(name, replace(wish, standalone="any")).execute()
    context = CheckContext("", Settings({"paths.state": str(state)}), root=str(tmp_path / "none"))
    lines = list(runpy.run_path(str(SCRIPT))["report"](context))
    shutil.rmtree(state)
    assert "do not start" in lines[0] or name == "podman"
    assert ("containers start without a share" in lines[0]) == (name == "podman")
    follow(lines)
    assert files(tmp_path / "root") == before


def files(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def follow(lines: list[str]) -> None:
    """Do by hand what the lines say: in each file, of a run of lines with - and + the former go and the latter come."""
    path = Path()
    gone: list[str] = []
    come: list[str] = []
    for line in [*lines, ""]:
        if line.startswith(("    -", "    +")):
            if line[4] == "-" and come:
                exchange(path, gone, come)
            (gone if line[4] == "-" else come).append(line[5:])
            continue
        exchange(path, gone, come)
        if line.startswith("  remove "):
            Path(line.removeprefix("  remove ")).unlink()
        elif line.startswith("  in "):
            path = Path(line.split()[1])


def exchange(path: Path, gone: list[str], come: list[str]) -> None:
    if gone or come:
        before, after = "".join(f"{line}\n" for line in gone), "".join(f"{line}\n" for line in come)
        text = path.read_text()
        assert text.count(before) == 1
        path.write_text(text.replace(before, after))
        gone.clear()
        come.clear()
