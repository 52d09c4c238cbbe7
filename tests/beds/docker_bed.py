"""A private Docker: dockerd of a newer suite with data, state and socket of its own, in its own network namespace.

Belongs here: its daemon.json with the shim as a runtime, and running containers, also below a cgroup path like
cri-dockerd's. Docker passes no annotations of a pod on.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import uuid
from pathlib import Path

import cgroup_trees
import nodes
import suites
from daemons import wait_for

SUITE = "trixie"
IMAGE = "vgpu-test:1"


class Docker:
    """`start` takes a root file system. `run` starts containers by the runtime `vgpu`."""

    def __init__(self, node: nodes.SimulatedNode) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="vgpu-test-"))  # a Unix socket's path is at most 107 bytes
        self.node = node
        self.cgroup = f"/vgpu-test-{uuid.uuid4().hex[:8]}"
        self.daemon = suites.unpack(SUITE, "docker.io") / "usr/sbin"
        self.client = suites.unpack(SUITE, "docker-cli") / "usr/bin/docker"
        self.prefix: tuple[str, ...] = ()  #: a command that runs the daemon in another place
        self.process: subprocess.Popen[bytes] | None = None
        arguments = ["--vgpu-config", str(node.config)]
        #: What daemon.json says of runtimes.
        self.runtimes: dict[str, object] = {"runtimes": {"vgpu": {"path": str(node.shim), "runtimeArgs": arguments}}}

    def start(self, tree: Path) -> Docker:
        self.write()
        try:
            self.launch()
            layer = subprocess.run(["tar", "-C", str(tree), "-c", "."], capture_output=True, check=True).stdout
            subprocess.run([*self._docker(), "import", "-", IMAGE], input=layer, capture_output=True, check=True)
        except BaseException:
            self.stop()
            raise
        return self

    def write(self) -> Path:
        """Its daemon.json."""
        path = self.directory / "daemon.json"
        path.write_text(json.dumps(self._config()))
        return path

    def launch(self) -> None:
        """Run the daemon on what an earlier one has left, and wait until it answers."""
        environment = {**os.environ, "PATH": f"{self.daemon}:{os.environ['PATH']}"}
        daemon = [str(self.daemon / "dockerd"), "--config-file", str(self.directory / "daemon.json")]
        command = ["unshare", "--mount", "--net", *self.prefix, *daemon]
        log_file = self.directory / "log"
        with log_file.open("ab") as log:
            self.process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_for(lambda: self.call("version").returncode == 0, 120, lambda: log_file.read_text()[-2000:])

    def restart(self) -> None:
        """End the daemon, and run it again: what `systemctl restart docker` does."""
        assert self.process is not None
        self.process.terminate()
        self.process.wait(60)
        self.launch()

    def _config(self) -> dict[str, object]:
        place = str(self.directory)
        return {
            "data-root": f"{place}/data", "exec-root": f"{place}/exec", "pidfile": f"{place}/pid",
            "hosts": [f"unix://{place}/sock"], "cgroup-parent": self.cgroup, "storage-driver": "vfs",
            "bridge": "none", "iptables": False, "ip6tables": False, "ip-forward": False,
            "exec-opts": ["native.cgroupdriver=cgroupfs"],
            **self.runtimes,
        }  # fmt: skip

    def _docker(self) -> list[str]:
        return [str(self.client), "--host", f"unix://{self.directory}/sock"]

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command of docker. A container that is waited for writes to a file: on a busy machine dockerd loses
        what a program prints that ends at once."""
        waits = arguments[0] == "run" and IMAGE in arguments and not {"-d", "--detach"} & set(arguments)
        output = self.directory / f"output-{uuid.uuid4().hex}"
        if waits:
            output.touch()
            output.chmod(0o666)
            at = arguments.index(IMAGE) + 1
            command = ("sh", "-c", 'exec "$@" >/output', "sh", *arguments[at:])
            arguments = ("run", f"--volume={output}:/output", *arguments[1:at], *command)
        done = subprocess.run(
            [*self._docker(), *arguments], capture_output=True, text=True, check=False, timeout=120,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if waits:
            done.stdout += output.read_text()
        return done

    def run(
        self, *command: str, pod: str = "", options: tuple[str, ...] = ("--rm",)
    ) -> subprocess.CompletedProcess[str]:
        """`docker run`. With `pod`, a pod's uid, the container gets the cgroup path that cri-dockerd gives it."""
        parent = [f"--cgroup-parent={self.cgroup}/kubepods/burstable/pod{pod}"] if pod else []
        places = ["--runtime=vgpu", "--network=host", f"--volume={self.node.sim}:/run/vgpu-sim"]
        return self.call("run", *places, *parent, *options, IMAGE, *command)

    def stop(self) -> None:
        left = self.call("ps", "--all", "--quiet").stdout.split()
        if left:
            self.call("rm", "--force", *left)
        if self.process is not None:
            self.process.terminate()
            self.process.wait(60)
        cgroup_trees.remove(self.cgroup)
        shutil.rmtree(self.directory)
