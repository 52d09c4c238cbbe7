"""A machine for `vgpuctl doctor`: a tree of files below a temporary directory."""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

from cards import card, inventory, write_inventory
from click.testing import CliRunner, Result

from vgpu.config import records
from vgpu.config.inventory import Device, Library
from vgpu.config.settings import Settings
from vgpu.node.ctl import doctor as verb
from vgpu.node.doctor import findings
from vgpu.node.doctor.findings import Check, CheckContext, Finding

UUIDS = [f"GPU-00000000-0000-0000-0000-00000000000{number}" for number in range(2)]


class Tree:
    """A node's trees below one directory, and the context with their paths."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings = Settings(
            {
                "paths.run": str(path / "run/vgpu"), "paths.state": str(path / "state"),
                "paths.libvcuda": str(path / "vcuda"), "driver.root": str(path / "driver"),
                "driver.proc_root": str(path / "proc"), "driver.dev_root": str(path / "dev"),
                "standalone.key": str(path / "standalone.key"),
            },
            "node", "/nowhere/config.yaml",
        )  # fmt: skip
        for name in ("run/vgpu", "proc", "dev", "vcuda"):
            (path / name).mkdir(parents=True)
        self.write("proc/self/mountinfo", "30 20 0:27 / /cgroup rw - cgroup2 cgroup2 rw\n")
        (path / "cgroup").mkdir()
        self.config = str(path / "config.json")
        records.write(self.config, self.settings.record())
        self.context = CheckContext(
            self.config, self.settings, str(path), str(path / "proc"), str(path / "bin/vgpu-hook"), real=False
        )

    def call(self, *arguments: str) -> Result:
        """`vgpuctl doctor` for this tree."""
        with mock.patch.object(verb, "_context", lambda *_: self.context):
            return CliRunner().invoke(verb.doctor, arguments, obj=self.config)

    def write(self, name: str, text: str, mode: int = 0o644) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    def inventory(self, *libraries: str, cards: int = 2) -> None:
        nodes = [Device(str(self.path / f"dev/nvidia{at}"), f"nvidia{at}", 195, at) for at in range(cards)]
        made = [card(at, 1, uuid=UUIDS[at], device=node) for at, node in enumerate(nodes)]
        files = [Library(path, os.path.basename(path), "", "compute") for path in libraries]
        write_inventory(self.settings.run_dir, inventory(made, libraries=files))

    def driver(self, version: str = "550.54.15") -> None:
        self.write("proc/driver/nvidia/version", f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  x\n")

    def process(
        self,
        pid: int,
        command: str,
        namespace: str,
        nodes: tuple[str, ...] = (),
        fds: tuple[str, ...] = (),
        flags: int = 0,
    ) -> None:
        base = f"proc/{pid}"
        self.write(f"{base}/stat", f"{pid} ({command}) S {'0 ' * 5}{flags} {'0 ' * 12}77 0\n")
        self.write(f"{base}/comm", command + "\n")
        self.write(f"{base}/cgroup", "0::/\n")
        for directory in ("ns", "fd", "root/dev"):
            (self.path / base / directory).mkdir(parents=True)
        (self.path / base / "ns/mnt").symlink_to(f"mnt:[{namespace}]")
        (self.path / base / "ns/pid").symlink_to(f"pid:[{namespace}]")
        for name in nodes:
            self.write(f"{base}/root/dev/{name}", "")
        for number, target in enumerate(fds):
            (self.path / base / f"fd/{number}").symlink_to(target)


def look(check: Check, context: CheckContext) -> list[tuple[str, str]]:
    """(status, found) of each finding."""
    return [(finding.status, finding.found) for finding in findings.examine("the check", check, context)]


def only(check: Check, context: CheckContext) -> Finding:
    (found,) = findings.examine("the check", check, context)
    return found


HOOK = """#!/bin/sh
case "$1" in --version) echo vgpu-hook 1;; *) cat > /dev/null; {};; esac
"""
