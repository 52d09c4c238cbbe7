"""A machine with the packages installed, used, upgraded, removed and purged: installed_steps.sh, and what it must say.

Belongs here: the bundles that its containers run, and the expectations that all distributions share. `run` has the
packages in an overlay over a distribution's root, so the root stays as it is. On a fresh machine, `python
installed_node.py DIRECTORY DEB PLUGIN_DEB` makes the bundles with what was built there.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import bundles
import file_modes
import last_version
import nodes
import roots
import trees
from checkout import CHECKOUT, DATA

SCRIPT = CHECKOUT / "tests/beds/installed_node.sh"
SHARE = {"vgpu.io/cores": "30", "vgpu.io/memory": "2Gi"}
COMMANDS = {"share": ("sh", "-c", "cudaprobe info; cudaprobe alloc 512 9"), "held": ("sleep", "600")}
TIMEOUT = 900
NEXT = "vgpu: next: vgpuctl doctor; vgpuctl runtime configure --runtime containerd (or crio, docker, podman)\n"
#: Of what the removal says: docker's lines to exchange, and the files of podman, which the script removes.
REMOVAL = (
    'vgpu:     -  "default-runtime": "vgpu"\nvgpu:     +  "debug": false\nvgpu:   then run: systemctl restart docker\n',
    "vgpu: podman still calls the hook: without it, podman's containers start without a share, and nothing says so\n",
    "vgpu:   remove /usr/share/containers/oci/hooks.d/00-vgpu-poststop.json\n",
    "vgpu: podman and CRI-O (/etc/containers/oci/hooks.d/vgpu.json) still names a program of vgpu: ",
)
STAND_INS = "containerd.io installed\ndocker-ce installed\n"


def run(
    debs: list[Path], directory: Path, rootfs: Callable[..., Path], node: nodes.SimulatedNode, root: Path | None = None
) -> dict[str, str]:
    """The script's output by heading. `root` is the distribution's, by default a node's."""
    made = make_bundles(directory / "bundles", rootfs, node)
    last = last_version.make(debs, directory)[0]
    upper = directory / "overlay"
    upper.mkdir()
    command = ["unshare", "-m", "sh", SCRIPT, *debs, last, upper, node.driver, node.sim, made]
    done = subprocess.run(
        [*command, root or roots.node()],
        capture_output=True, text=True, check=False, timeout=TIMEOUT, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return by_heading(done.stdout)


def by_heading(output: str) -> dict[str, str]:
    return {heading: text for heading, _, text in (part.partition("\n") for part in output.split("## ")[1:])}


def make_bundles(directory: Path, rootfs: Callable[..., Path], node: nodes.SimulatedNode) -> Path:
    for name, command in COMMANDS.items():
        root = rootfs()
        (root / "sys/fs/cgroup").mkdir(parents=True)  # runc 1.0.0-rc93 (Debian 11) wants it for exec
        bundle = bundles.Bundle(directory / name, root, SHARE).simulated(node).command(*command)
        for stage in ("prestart", "poststop"):
            hook = {"path": "/usr/bin/vgpu-hook", "args": ["vgpu-hook", stage], "env": ["PATH=/usr/bin"]}
            bundle.config.setdefault("hooks", {})[stage] = [hook]
        bundle.write()
    return directory


def make_here(directory: Path, debs: list[Path]) -> None:
    """Make what installed_steps.sh uses: a node and bundles in `directory`, and the packages in /root."""
    node = nodes.SimulatedNode(directory / "node", "a100x2")
    probe = directory / "cudaprobe"
    subprocess.run(["cc", "-O2", "-o", probe, DATA / "cuda/cudaprobe.c", "-ldl"], check=True)
    roots = iter(range(len(COMMANDS)))
    make_bundles(
        directory / "bundles",
        lambda: trees.make("debian", directory / f"rootfs-{next(roots)}", {"cudaprobe": probe}),
        node,
    )
    shutil.copy(last_version.make(debs, directory)[0], "/root/last.deb")
    for deb, name in zip(debs, ("vgpu.deb", "vgpu-device-plugin.deb")):
        shutil.copy(deb, f"/root/{name}")


def check(parts: dict[str, str]) -> None:
    """What the script says on every distribution."""
    assert parts["stand-ins"] == STAND_INS
    assert limits(parts["run"]) == limits(parts["before"]) == limits(parts["again"]) == [f"card0.total {2 << 30}"]
    assert "refused 2" in parts["run"]
    assert parts["alone"] == "\nevery verb answers\n"
    assert '"containers": []' in parts["status"] and " of 100 %" in parts["status"]
    _check_upgrade(parts)
    wrong = file_modes.wrong(parts["modes"])
    assert wrong == [], wrong
    for name in ("limits\n", "claim.json\n", "presence-", "vgpud.sock\n"):
        assert f"/{name}" in parts["modes"]
    lines = parts["plugin"].splitlines()
    assert "vgpu-device-plugin" in lines[0], lines
    assert lines[-1] == "0a060a016b12017622060a01611201" + "62"
    assert parts["completions"].split() != ["0"] * 3
    assert parts["bytecode"].splitlines()[0] == "same"
    assert parts["bytecode"].splitlines()[-1] == "other"
    _check_removal(parts)


def limits(text: str) -> list[str]:
    return re.findall(r"^card0\.total .*", text, re.MULTILINE)


def _check_upgrade(parts: dict[str, str]) -> None:
    """From the version before, with a share that runs on, and then with a wrong configuration."""
    lines = parts["upgrade"].splitlines()
    assert lines[0] == last_version.VERSION
    assert lines[-1] != lines[0]
    assert "vgpuctl doctor" not in parts["upgrade"]  # the next step is for a first installation
    assert parts["after"] == parts["before"]
    assert "refused 2" in parts["again"]
    keyed = parts["keyed"].splitlines()
    assert keyed[:2] == ["  requests: annotations", "root:root 600"], "an upgrade keeps what was, and shows it"
    assert keyed[2] == "found an annotation that an image may have brought"
    assert f"card0.total {2 << 30}" in keyed[3:]
    assert parts["verify"] == "??5?????? c /etc/vgpu/config.yaml\n"  # the conffile of the version before
    assert int(parts["files"].split("\n")[0]) > 30
    assert "vgpu: /etc/vgpu/config.yaml is wrong; correct it and run: vgpuctl config apply" in parts["held"]
    assert "nothing changed; the last good settings stay in force" in parts["held"]
    assert "the settings are the last good ones" in parts["held"]
    assert re.search(r'"container": "installed-vgpu-test-\d+-held"', parts["held"])


def _check_removal(parts: dict[str, str]) -> None:
    assert [text for text in REMOVAL if text not in parts["remove"]] == []
    kept = r"/run/vgpu stays, because containers with a share run: installed-vgpu-test-\d+-held\n"
    assert re.search(kept, parts["purge"])
    assert parts["purge"].endswith("/run/vgpu/containers\n")
    assert parts["installed"].startswith(NEXT)
    assert parts["installed"].endswith("run: systemctl enable --now vgpu-device-plugin.service\n")
    assert parts["survivors"] == STAND_INS
    assert parts["left"] == ""
    assert "gone" in parts


if __name__ == "__main__":
    make_here(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
