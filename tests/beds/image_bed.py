"""The container images, built by `make images`' own script, and containers of them by podman.

Belongs here: building, a podman with storage of its own, and a container as a process whose output the test reads.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import cgroup_trees
import podman_bed
from checkout import CHECKOUT

VERSION = "0.1.0"
#: image -> its name
NAMES = {"node": "vgpu-node", "exporter": "vgpu-exporter", "extender": "vgpu-scheduler-extender"}


def build(directory: Path, *images: str) -> dict[str, Path]:
    """Build images below `directory`: image -> its archive."""
    environment = {**os.environ, "VGPU_BUILD": str(directory), "PYTHON": sys.executable}
    environment["APTOPT"] = 'Acquire::Check-Valid-Until "false"'  # the machine's clock may be wrong
    done = subprocess.run(
        [CHECKOUT / "packaging/image/build", *images], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = [Path(line.split(" ")[0]) for line in done.stdout.splitlines()]
    assert [path.name for path in found] == [f"{NAMES[image]}-{VERSION}.tar" for image in images]
    return dict(zip(images, found))


class Container:
    """A container that runs until `end`. What it writes is in `log`."""

    def __init__(self, bed: ImageBed, command: list[str], log: Path) -> None:
        self.bed, self.log = bed, log
        self.name = f"c{uuid.uuid4().hex[:8]}"
        with log.open("wb") as stream:
            self.process = subprocess.Popen(
                bed.run_command("--name", self.name, *command), stdin=subprocess.DEVNULL, stdout=stream, stderr=stream,
                env=bed.environment,
            )  # fmt: skip

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def execute(self, *command: str) -> str:
        done = self.bed.call("exec", self.name, *command)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def end(self) -> int:
        """SIGTERM, as kubelet ends a container. Returns its exit status."""
        self.bed.call("kill", "--signal", "TERM", self.name)
        try:
            return self.process.wait(60)
        finally:
            self.bed.call("rm", "--force", "--time=0", self.name)


class ImageBed:
    """podman with images in storage of its own."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="vgpu-test-"))
        (self.directory / "hooks").mkdir()
        config = self.directory / "containers.conf"
        config.write_text(podman_bed.CONFIG.format(runtime="runc", hooks=self.directory / "hooks"))
        self.environment = {**os.environ, "CONTAINERS_CONF": str(config)}
        self.cgroup = f"/vgpu-test-{uuid.uuid4().hex[:8]}"
        self.containers: list[Container] = []

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["podman", *podman_bed.places(self.directory), *arguments]
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False, timeout=120,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def load(self, archive: Path) -> None:
        done = self.call("load", "--input", str(archive))
        assert done.returncode == 0, done.stderr

    def run_command(self, *arguments: str) -> list[str]:
        """Of a container as Kubernetes would run it: no capability, nothing to write, no way to more rights."""
        safe = ["--read-only", "--read-only-tmpfs=false", "--cap-drop=all", "--security-opt=no-new-privileges"]
        places = podman_bed.places(self.directory)
        return ["podman", *places, "run", "--rm", f"--cgroup-parent={self.cgroup}", *safe, *arguments]

    def run(self, *arguments: str) -> str:
        """What a container prints that ends by itself."""
        done = subprocess.run(
            self.run_command(*arguments), env=self.environment, capture_output=True, text=True, check=False,
            timeout=120, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self, *command: str) -> Container:
        made = Container(self, list(command), self.directory / f"log{len(self.containers)}")
        self.containers.append(made)
        return made

    def cleanup(self) -> None:
        self.call("rm", "--all", "--force", "--time=0")
        for container in self.containers:
            container.process.kill()
            container.process.wait()
        cgroup_trees.remove(self.cgroup)
        shutil.rmtree(self.directory, ignore_errors=True)
