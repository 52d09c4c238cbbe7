"""podman with storage, state and hooks of its own. No other podman on the machine sees its containers.

Belongs here: its configuration, the shipped hooks.d files with this node's paths in them, and running it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import uuid
from pathlib import Path
from typing import Any

import bundles
import cgroup_trees
import nodes
from checkout import CHECKOUT

HOOKS = CHECKOUT / "packaging/hooks.d"
#: crun refuses a hybrid machine. Without the empty unified hierarchy it runs on v1.
V1_ONLY = ("unshare", "-m", "sh", "-ec", 'umount -l /sys/fs/cgroup/unified; exec "$@"', "sh")
#: Limits that this machine's kernel accepts; no network, no journal.
CONFIG = """[containers]
default_ulimits = ["nofile=1024:20000", "nproc=1024:4096"]
pids_limit = 0
netns = "host"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
runtime = "{runtime}"
hooks_dir = ["{hooks}"]
"""


def install_hooks(directory: Path, program: Path, config: Path) -> None:
    """The shipped hooks.d files, with the built hook and a node's settings."""
    directory.mkdir()
    for source in HOOKS.glob("*.json"):
        record: dict[str, Any] = json.loads(source.read_text())
        hook = record["hook"]
        hook["path"] = str(program)
        hook["args"][1:1] = ["--config", str(config)]
        (directory / source.name).write_text(json.dumps(record))


def places(directory: Path) -> list[str]:
    """The options of a podman whose storage and state are below `directory`."""
    names = {"root": "storage", "runroot": "run", "tmpdir": "tmp"}
    return ["--storage-driver", "vfs", *(f"--{option}={directory}/{name}" for option, name in names.items())]


class Podman:
    """podman by `runtime` (runc or crun) on cgroup version `cgroup`.

    Its directory is not pytest's, because podman accepts no runroot of more than 50 characters.
    """

    def __init__(self, node: nodes.SimulatedNode, runtime: str = "runc", cgroup: int = 1) -> None:
        directory = self.directory = Path(tempfile.mkdtemp(prefix="vgpu-test-"))
        self.node = node
        self.runtime = runtime
        self.hooks = directory / "hooks.d"
        self.cgroup = f"/vgpu-test-{uuid.uuid4().hex[:8]}"
        install_hooks(self.hooks, node.hook, node.config)
        config = directory / "containers.conf"
        config.write_text(CONFIG.format(runtime=runtime, hooks=self.hooks))
        self.environment = {**os.environ, "CONTAINERS_CONF": str(config)}
        before = bundles.V2 if cgroup == 2 else V1_ONLY if runtime == "crun" else ()
        self.command = [*before, "podman", *places(directory)]

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.command, *arguments], env=self.environment, capture_output=True, text=True, check=False, timeout=120,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def run(
        self, tree: Path, *command: str, options: tuple[str, ...] = (), **annotations: str
    ) -> subprocess.CompletedProcess[str]:
        """`podman run` of `command`. The keyword `core_limit` is the annotation vgpu.io/core-limit."""
        wanted = [f"--annotation=vgpu.io/{key.replace('_', '-')}={value}" for key, value in annotations.items()]
        places = [f"--cgroup-parent={self.cgroup}", f"--volume={self.node.sim}:/run/vgpu-sim"]
        return self.call("run", *places, *wanted, *(options or ("--rm",)), "--rootfs", str(tree), *command)

    def cleanup(self) -> None:
        self.call("pod", "rm", "--all", "--force", "--time=0")
        self.call("rm", "--all", "--force", "--time=0")
        cgroup_trees.remove(self.cgroup)
        shutil.rmtree(self.directory, ignore_errors=True)


def rootless(tree: Path, hooks: Path, uid: int, **annotations: str) -> subprocess.CompletedProcess[str]:
    """podman as an unprivileged user with a single id, as this machine offers no more.

    It runs in a pid namespace. The namespace's end kills what rootless podman leaves: its pause process and clean-ups.
    """
    with tempfile.TemporaryDirectory(prefix="vgpu-test-") as directory:
        home = Path(directory)
        shutil.copytree(hooks, home / "hooks.d")
        (home / "containers.conf").write_text(CONFIG.format(runtime="runc", hooks=home / "hooks.d"))
        subprocess.run(["cp", "-a", str(tree), str(home / "tree")], check=True)
        subprocess.run(["chown", "-R", f"{uid}:{uid}", str(home)], check=True)
        wanted = [f"--annotation=vgpu.io/{key}={value}" for key, value in annotations.items()]
        command = ["podman", *places(home), "run", "--rm", *wanted, "--rootfs", str(home / "tree"), "true"]
        user = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
        environment = {"PATH": os.environ["PATH"], "HOME": str(home), "XDG_RUNTIME_DIR": str(home)}
        return subprocess.run(
            ["unshare", "--pid", "--fork", "--mount-proc", *user, *command], capture_output=True, text=True,
            env={**environment, "CONTAINERS_CONF": str(home / "containers.conf")}, cwd="/", timeout=120,
            check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
