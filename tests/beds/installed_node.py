"""A distribution's root with the packages installed, used, removed and purged: installed_node.sh, and what it must say.

Belongs here: the bundles, the script's arguments and the expectations that all distributions share. The script runs in
an overlay, so the root stays as it is.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import bundles
import nodes
from checkout import CHECKOUT

SCRIPT = CHECKOUT / "tests/beds/installed_node.sh"
SHARE = {"vgpu.io/cores": "30", "vgpu.io/memory": "2Gi"}
COMMANDS = {"share": ("sh", "-c", "cudaprobe info; cudaprobe alloc 512 9"), "held": ("sleep", "600")}
TIMEOUT = 900


def run(
    debs: list[Path], directory: Path, rootfs: Callable[..., Path], node: nodes.SimulatedNode, root: Path | None = None
) -> dict[str, str]:
    """The script's output by heading. `root` is the distribution's, by default this machine's."""
    made = directory / "bundles"
    for name, command in COMMANDS.items():
        bundle = bundles.Bundle(made / name, rootfs(), SHARE).simulated(node).command(*command)
        for stage in ("prestart", "poststop"):
            hook = {"path": "/usr/bin/vgpu-hook", "args": ["vgpu-hook", stage], "env": ["PATH=/usr/bin"]}
            bundle.config.setdefault("hooks", {})[stage] = [hook]
        bundle.write()
    upper = directory / "overlay"
    upper.mkdir()
    command = ["unshare", "-m", "sh", SCRIPT, *debs, upper, node.driver, node.sim, made, *([root] if root else [])]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=TIMEOUT, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {heading: text for heading, _, text in (part.partition("\n") for part in done.stdout.split("## ")[1:])}


def check(parts: dict[str, str]) -> None:
    """What the script says on every distribution."""
    assert parts["installed"] == (
        "vgpu: next: vgpuctl doctor; vgpuctl runtime configure --runtime containerd (or crio, docker, podman)\n"
    )
    assert parts["stand-ins"] == "containerd.io installed\ndocker-ce installed\n"
    assert parts["verify"] == ""
    assert int(parts["files"].split("\n")[0]) > 30
    assert f"card0.total {2 << 30}" in parts["run"]
    assert "refused 2" in parts["run"]
    assert '"containers": []' in parts["status"]
    assert "vgpu: /etc/vgpu/config.yaml is wrong; correct it and run: vgpuctl config apply" in parts["held"]
    assert "nothing changed; the last good settings stay in force" in parts["held"]
    assert "the settings are the last good ones" in parts["held"]
    assert '"container": "installed-vgpu-test-held"' in parts["held"]
    lines = parts["plugin"].splitlines()
    assert lines[0].endswith("run: systemctl enable --now vgpu-device-plugin.service"), lines
    assert "vgpu-device-plugin" in lines[1], lines
    assert lines[-1] == "0a060a016b12017622060a01611201" + "62"
    assert parts["completions"].split() != ["0"] * 3
    assert parts["bytecode"].splitlines()[0] == "same"
    assert parts["bytecode"].splitlines()[-1] == "other"
    assert "/etc/containers/oci/hooks.d/vgpu.json" in parts["remove"]
    assert "vgpuctl runtime unconfigure --runtime podman" in parts["remove"]
    assert "/run/vgpu stays, because containers with a share run: installed-vgpu-test-held" in parts["purge"]
    assert parts["purge"].endswith("/run/vgpu/containers\n")
    assert parts["left"] == ""
    assert "gone" in parts
