"""A node with root file systems, containers and vgpud on it: what the tests of tests/system share.

Belongs here: bundles on a node, running them by one runtime, and ending what a test leaves. The queries about a node's
records are in nodes.py. Pods are in pod_site.py (kubelet's stand-in) and cluster_site.py (a real cluster).
"""

from __future__ import annotations

import os
import re
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import bundles
import daemons
import nodes
import podman_bed
import pytest

MIB, GIB = 1 << 20, 1 << 30
SLEEP = ("sleep", "600")
INFO = ("cudaprobe", "info")
SHARE = {"cores": "30", "memory": "2Gi"}
#: Runtime by the name of a site's parameter: the program, and the command before it.
RUNTIMES: dict[str, tuple[str, tuple[str, ...]]] = {
    "runc": ("runc", ()), "runc-v2": ("runc", bundles.V2), "crun": ("crun", podman_bed.V1_ONLY),
}  # fmt: skip
#: A test with both versions of cgroup, or with another runtime than runc on v1.
BOTH = pytest.mark.parametrize("site", ["runc", "runc-v2"], indirect=True, ids=["v1", "v2"])
CRUN = pytest.mark.parametrize("site", ["crun"], indirect=True)
SYS_openat2, SYS_open_tree, SYS_move_mount, SYS_fsopen, SYS_mount_setattr = 437, 428, 429, 430, 442
#: Linux -> the calls that it lacks, of those that the hook would use.
OLD_KERNELS = {
    "5.4": (SYS_openat2, SYS_mount_setattr),
    "4.18": (SYS_openat2, SYS_open_tree, SYS_move_mount, SYS_fsopen, SYS_mount_setattr),
}


def pairs(text: str) -> dict[str, str]:
    """`key value` lines."""
    return dict(line.split(" ", 1) for line in text.splitlines() if " " in line)


def copied(tree: Path, directory: Path) -> Path:
    """A fresh copy of a root file system."""
    target = directory / f"rootfs-{tree.name}-{uuid.uuid4().hex[:6]}"
    subprocess.run(["cp", "-a", tree, target], check=True)
    return target


def of_a_user_namespace(bundle: bundles.Bundle) -> bundles.Bundle:
    """The container's root is uid 100000 of the host, and so is the owner of its root file system."""
    subprocess.run(["chown", "-hR", "100000:100000", bundle.rootfs], check=True)
    for directory in (bundle.path, *bundle.path.parents, *bundle.rootfs.parents):
        if directory.stat().st_uid == 0 and not directory.stat().st_mode & 0o005:
            directory.chmod(0o755)
    bundle.config["linux"]["namespaces"].append({"type": "user"})
    for kind in ("uidMappings", "gidMappings"):
        bundle.config["linux"][kind] = [{"containerID": 0, "hostID": 100000, "size": 65536}]
    return bundle


class Site:
    """A node whose containers one runtime of its own runs. `daemon` is its vgpud, which a test starts."""

    def __init__(
        self, node: nodes.SimulatedNode, directory: Path, trees: dict[str, Path], runtime: str = "runc"
    ) -> None:
        self.node, self.directory, self.trees = node, directory, trees
        program, prefix = RUNTIMES[runtime]
        self.prefix = prefix
        self.runtime = self.other_runtime(program)
        self.daemon = daemons.Daemon(node)

    def other_runtime(self, *program: str) -> bundles.Runtime:
        """A runtime in the same place, such as the shim."""
        made = bundles.Runtime(self.directory / f"runtime-{uuid.uuid4().hex[:6]}", *program)
        made.command[:0] = self.prefix
        return made

    def start_daemon(self) -> None:
        """vgpud beside the containers, with an inventory."""
        self.daemon.start(*self.prefix).ready()

    def end(self) -> None:
        self.daemon.kill()
        self.runtime.cleanup()

    # Bundles

    def tree(self, kind: str = "debian") -> Path:
        return copied(self.trees[kind], self.directory)

    def bundle(self, tree: Path | None = None, *command: str, **annotations: str) -> bundles.Bundle:
        """A bundle with the hook and the simulated driver. The keyword `core_limit` is vgpu.io/core-limit."""
        return self.plain_bundle(tree, *command, **annotations).hooks(self.node)

    def plain_bundle(self, tree: Path | None = None, *command: str, **annotations: str) -> bundles.Bundle:
        """The same without the hook."""
        keys = {"vgpu.io/" + key.replace("_", "-"): value for key, value in annotations.items()}
        made = bundles.Bundle(self.directory / f"bundle-{uuid.uuid4().hex[:6]}", tree or self.tree(), keys)
        return made.simulated(self.node).command(*(command or ("true",)))

    def share(self, *command: str, tree: Path | None = None, **annotations: str) -> bundles.Bundle:
        """A bundle with a share: SHARE, but for what `annotations` say."""
        return self.bundle(tree, *command, **{**SHARE, **annotations})

    def granted(self, cores: int, mib: int) -> dict[str, str]:
        """Grants as Bundle.pod takes them."""
        amounts = {"cores": cores, "memory": mib * MIB}
        return {f"vgpu.io__grant_{name}": self.node.grant(name, amount) for name, amount in amounts.items()}

    # Containers

    def output(self, bundle: bundles.Bundle, *command: str) -> str:
        """The output of a container that ends well. A failure fails the test with the runtime's error."""
        done = self.runtime.run(bundle.command(*command) if command else bundle)
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    def seen(self, bundle: bundles.Bundle, *command: str) -> dict[str, str]:
        """The `key value` lines of its output; by default those of `cudaprobe info`."""
        return pairs(self.output(bundle, *(command or INFO)))

    def refused(self, bundle: bundles.Bundle, *command: str) -> str:
        """The hook's one line in runc's error. A poststop that finds the same file damaged writes another one later."""
        done = self.runtime.run(bundle.command(*command) if command else bundle)
        assert done.returncode != 0, "the container started"
        line, _, rest = done.stderr.partition("vgpu-hook: ")[2].partition("\\n")
        assert line, done.stderr
        assert rest.startswith('"'), f"more than one line: {rest}"
        return line

    def create(self, bundle: bundles.Bundle, *command: str) -> str:
        """A container that has not started. Without a command, here or in its bundle, it will sleep."""
        if command or bundle.config["process"]["args"] == ["true"]:
            bundle.command(*(command or SLEEP))
        container, done = self.runtime.create(bundle)
        assert done.returncode == 0, done.stderr
        return container

    def start(self, bundle: bundles.Bundle, *command: str) -> str:
        """A container that runs `command`, or sleeps. What it prints is in `output` beside its config.json."""
        container = self.create(bundle, *command)
        self.runtime.call("start", container, check=True)
        return container

    def pid(self, container: str) -> int:
        return int(self.runtime.state(container)["pid"])

    def execute(self, container: str, *command: str) -> str:
        return self.runtime.call("exec", container, *command, check=True).stdout

    def delete(self, *containers: str) -> None:
        for container in containers:
            self.runtime.delete(container)


@contextmanager
def frozen_beside(init: int) -> Iterator[None]:
    """A frozen process in the pid namespace of a container's init, outside its cgroup. Until the end of the block init
    cannot end: once killed, it waits for that process.
    """
    freezer = Path(f"/sys/fs/cgroup/freezer/vgpu-test-{init}")
    freezer.mkdir()
    enter = f"echo $$ > {freezer}/cgroup.procs; exec nsenter -p -t {init} sh -c 'echo; exec sleep 600'"
    other = subprocess.Popen(["sh", "-c", enter], stdout=subprocess.PIPE)
    assert other.stdout
    try:
        assert other.stdout.read(1)
        (freezer / "freezer.state").write_text("FROZEN")
        yield
    finally:
        (freezer / "freezer.state").write_text("THAWED")
        other.communicate()
        freezer.rmdir()


def mounts_with(text: str, pid: int | str = "self") -> list[str]:
    return [line for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines() if text in line]


def kinds_of_host_files(text: str) -> dict[str, str]:
    """The file systems from which a container has the node's files, by their places in it; `text` has its mountinfo."""
    found = {}
    for place, kind in re.findall(r"^\d+ \d+ \S+ \S+ (/\S+) .* - (\S+) ", text, re.MULTILINE):
        name = place.rpartition("/")[2]
        if place.startswith(("/usr/lib", "/usr/bin/nvidia", "/usr/local/vgpu/driver/")) or name in ("limits", "cards"):
            found[place] = kind
    return found


def listing(root: Path) -> dict[str, str]:
    """Every path below `root` with its kind, and its link's target or size and mode."""
    found = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        content = os.readlink(path) if path.is_symlink() else status.st_size if path.is_file() else ""
        found[str(path.relative_to(root))] = f"{status.st_mode:o} {content}"
    return found
