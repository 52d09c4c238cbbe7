"""Programs that need root, run by nobody: one line that says so, an exit status, and no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cards import inventory, write_inventory
from checkout import CHECKOUT

from vgpu.config import paths, records
from vgpu.config.settings import Settings

pytestmark = pytest.mark.root

NOBODY = 65534
GRANT = "a" * 32
CTL = "vgpu.node.ctl.main"


@pytest.fixture(scope="module")
def call(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a program's entry point as nobody, on a node whose files are root's as on a real one."""
    directory = tmp_path_factory.mktemp("node")
    settings = Settings({"paths.state": str(directory / "state"), "paths.run": str(directory / "run")})
    records.write(str(directory / "config.json"), settings.record(), 0o644)
    write_inventory(settings.run_dir, inventory())
    Path(paths.grants(settings.state_dir)).mkdir(parents=True, mode=0o700)
    for parent in (directory, *directory.parents[:3]):
        parent.chmod(parent.stat().st_mode | 0o055)

    def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        code = f"import os, sys; os.setgroups([]); os.setgid({NOBODY}); from {module} import main; " + (
            f"sys.argv = ['x', '--config', {str(directory / 'config.json')!r}, *{arguments!r}]; os.setuid({NOBODY}); "
        )
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)}
        verbs = ", ".join(f"vgpu.node.ctl.{name}" for name in ("status", "set", "doctor", "runtime", "cdi"))
        preload = f"import {verbs}, vgpu.plugin.main; "
        return subprocess.run(
            [sys.executable, "-c", preload + code + "main()"], capture_output=True, text=True, check=False,
            env=environment, cwd=CHECKOUT,
        )  # fmt: skip

    return run


VERBS = (
    "config apply --node n", "status", "gc", "set x --cores 3", "grant list", "grant add --cores 100",
    f"grant remove {GRANT}", "inventory show", "inventory refresh", "doctor", "runtime configure --runtime podman",
    "runtime check --runtime docker --output json", "runtime unconfigure --runtime containerd", "cdi generate",
    "cdi remove --output json",
)  # fmt: skip
PROGRAMS = [
    *((CTL, tuple(verb.split())) for verb in VERBS),
    ("vgpu.node.daemon.command", ()),
    ("vgpu.plugin.command", ()),
]


@pytest.mark.sample(5)
@pytest.mark.parametrize(("module", "arguments"), PROGRAMS)
def test_run_as_root(
    call: Callable[..., subprocess.CompletedProcess[str]], module: str, arguments: tuple[str, ...]
) -> None:
    done = call(module, *arguments)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "run as root" in done.stderr.splitlines()[-1]
    assert done.stderr.count("run ") == 1 or module == "vgpu.plugin.command", done.stderr
