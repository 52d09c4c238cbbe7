"""A node in a temporary directory: programs that can be named, and answers of containerd and its client."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pytest_subprocess import FakeProcess

from vgpu.node.runtimes.registration import Wish

SPEC = {
    "ociVersion": "1.0.2",
    "process": {"args": [], "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024}]},
    "root": {"path": "rootfs"},
    "mounts": [],
    "linux": {"seccomp": {}, "namespaces": []},
}


@pytest.fixture
def wish(tmp_path: Path) -> Wish:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("vgpu-hook", "vgpu-runtime"):
        (programs / name).touch(0o755)
    (tmp_path / "state/runtimes").mkdir(parents=True)
    return Wish(str(tmp_path / "etc/config.toml"), programs=str(programs), state_dir=str(tmp_path / "state"))


class Containerd:
    """The answers of an installed containerd: its version, and what it understands of its files."""

    def __init__(self, process: FakeProcess) -> None:
        self.process = process
        process.allow_unregistered(False)
        process.register(["ctr", "oci", "spec"], stdout=json.dumps(SPEC), occurrences=9)

    def answer(self, version: str, dump: str, default: bool = False) -> None:
        """One round: the version, then the effective configuration, or the default one where there is no file."""
        name = f"containerd github.com/containerd/containerd {version} x"
        self.process.register(["containerd", "--version"], stdout=name)
        command = ["config", "default"] if default else [self.process.any(), "dump"]
        self.process.register(["containerd", *command], stdout=dump)


@pytest.fixture
def containerd(fp: FakeProcess) -> Containerd:
    return Containerd(fp)
