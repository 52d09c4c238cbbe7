"""The gate under real runtimes. Containers without a marker start as if it were absent. Those with one are refused in
one line while Python is broken. vgpu-runtime works from a container's create to its delete.

The gate is a build whose interpreter is a script of the test. Tests of a broken Python remove the script.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bundles
import podman_bed
import pytest
from checkout import CHECKOUT

BUSYBOX = shutil.which("busybox") or "/bin/busybox"
RECORDER = """#!/bin/sh
for stage; do :; done
echo "vgpu $stage" >> {to}/log
cat > {to}/$stage
"""
FOREIGN = """#!/bin/sh
cat > /dev/null
echo "foreign $1" >> {to}/log
"""

pytestmark = pytest.mark.root


class Node:
    """A bundle, a gate with its interpreter, and one runtime, whose shim is `shim`."""

    def __init__(self, name: str, bin: Path, interpreter: Path, folder: Path) -> None:
        self.name, self.bin, self.interpreter, self.folder = name, bin, interpreter, folder
        self.runtime = bundles.Runtime(folder / "state", name)
        self.shim = bundles.Runtime(folder / "state", str(bin / f"vgpu-runtime-{name}"))
        if name == "crun":
            for runtime in (self.runtime, self.shim):
                runtime.command[:0] = podman_bed.V1_ONLY
        self.id = self.runtime.new_id("gate")
        self.bundle = bundles.Bundle(folder / "bundle", folder / "rootfs").command(
            "/bin/sh", "-c", "echo hello; exit 3"
        )

    def run(self, runtime: bundles.Runtime) -> subprocess.CompletedProcess[str]:
        return runtime.call("run", "--bundle", str(self.bundle.write()), self.id)

    def marked(self, **changes: Any) -> None:
        """With a marker of vgpu, and these changes of config.json."""
        self.bundle.config.update({"annotations": MARK, **changes})

    def hooked(self) -> None:
        """vgpu-hook in config.json, as a runtime's administrator would add it."""
        self.bundle.config["hooks"] = {
            stage: [{"path": str(self.bin / "vgpu-hook"), "args": ["vgpu-hook", stage], "env": ["PATH=/bin"]}]
            for stage in ("prestart", "createRuntime", "poststop")
        }

    def install_python(self) -> None:
        self.interpreter.write_text(RECORDER.format(to=self.folder))
        self.interpreter.chmod(0o755)

    def log(self) -> list[str]:
        path = self.folder / "log"
        return path.read_text().splitlines() if path.exists() else []


MARK = {"vgpu.io/cores": "20"}
SANDBOX = {"vgpu.io/core-limit": "20", "io.kubernetes.cri.container-type": "sandbox"}


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("gate")
    interpreter = folder / "interpreter"
    settings = [f"-DVGPU_PYTHON={interpreter}", f"-DVGPU_SYSLOG={folder}/log"]
    configure = ["cmake", "-S", CHECKOUT / "hook/gate", "-B", folder / "build", *settings]
    subprocess.run(configure, check=True, capture_output=True)
    subprocess.run(["cmake", "--build", folder / "build"], check=True, capture_output=True)
    return folder / "build/bin", interpreter


@pytest.fixture(params=["runc", "crun"])
def node(request: pytest.FixtureRequest, gate: tuple[Path, Path], tmp_path: Path) -> Iterator[Node]:
    gate[1].unlink(missing_ok=True)
    made = Node(request.param, *gate, tmp_path)
    programs = tmp_path / "rootfs/bin"
    for path in (programs, tmp_path / "rootfs/proc", tmp_path / "rootfs/dev"):
        path.mkdir(parents=True)
    shutil.copy(BUSYBOX, programs)
    for name in ("sh", "sleep"):
        (programs / name).symlink_to("busybox")
    yield made
    made.runtime.cleanup()


@pytest.fixture
def system_log(gate: tuple[Path, Path]) -> Iterator[socket.socket]:
    path = gate[1].parent / "log"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.bind(str(path))
        log.settimeout(120)
        yield log
    path.unlink()


def assert_refused(node: Node, runtime: bundles.Runtime, system_log: socket.socket) -> None:
    """Assert that the container does not start, that nothing is left of it, and that the reason is one line in the
    system's log and in runc's error. crun reports only the exit status."""
    result = node.run(runtime)
    line = f"vgpu-hook: exec {node.interpreter}: No such file or directory; install vgpu and python3 again"
    assert result.returncode != 0
    assert "hello" not in result.stdout
    assert system_log.recv(2048).decode() == "<27>" + line
    if node.name == "runc":
        assert line in result.stderr
    assert node.id not in node.runtime.call("list").stdout


@pytest.mark.parametrize("annotations", [{}, SANDBOX], ids=["no marker", "sandbox"])
def test_without_a_marker_python_is_not_started(node: Node, annotations: dict[str, str]) -> None:
    node.hooked()
    node.bundle.config["annotations"] = annotations
    result = node.run(node.runtime)
    assert (result.returncode, result.stdout, result.stderr) == (3, "hello\n", "")


@pytest.mark.parametrize("marker", ["annotation", "env"])
def test_with_a_marker_a_broken_python_refuses(node: Node, marker: str, system_log: socket.socket) -> None:
    node.hooked()
    if marker == "env":
        node.bundle.config["process"]["env"].append("VGPU_GRANT_CORES=ab")
    else:
        node.marked()
    assert_refused(node, node.runtime, system_log)


def test_the_hook_sees_the_runtimes_state(node: Node) -> None:
    node.install_python()
    node.hooked()
    node.marked()
    assert node.run(node.runtime).returncode == 3
    assert node.log() == ["vgpu prestart", "vgpu createRuntime", "vgpu poststop"]
    state = json.loads((node.folder / "prestart").read_text())
    assert (state["id"], state["bundle"], state["annotations"]) == (node.id, str(node.bundle.path), MARK)


def test_a_container_from_create_to_delete_by_the_shim(node: Node) -> None:
    node.install_python()
    node.marked()
    config = node.bundle.command("/bin/sleep", "60").write() / "config.json"
    os.chown(config, 1234, 5678)
    with (node.folder / "output").open("w") as output:  # a created container's init would keep pipes open
        command = [*node.shim.command, "create", "--bundle", str(node.bundle.path), node.id]
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=True)
    assert node.log() == ["vgpu prestart"]
    assert node.shim.state(node.id)["status"] == "created"
    node.shim.call("start", node.id, check=True)
    assert node.shim.call("exec", node.id, "/bin/sh", "-c", "exit 9").returncode == 9
    assert node.id in node.shim.call("list").stdout
    for words in (("kill", node.id, "KILL"), ("delete", "--force", node.id)):
        node.shim.call(*words, check=True)
    assert node.log() == ["vgpu prestart", "vgpu poststop"]
    assert (config.stat().st_uid, config.stat().st_gid) == (1234, 5678)
    assert os.listdir(node.bundle.path) == ["config.json"]


def test_a_restart_of_the_same_bundle(node: Node) -> None:
    node.install_python()
    node.marked()
    for _ in range(2):
        result = node.run(node.shim)
        assert (result.returncode, result.stdout) == (3, "hello\n")
    assert node.log() == ["vgpu prestart", "vgpu poststop"] * 2


def test_the_shim_leaves_others_alone(node: Node) -> None:
    result = node.run(node.shim)
    assert (result.returncode, result.stdout) == (3, "hello\n")
    assert json.loads((node.bundle.path / "config.json").read_text()) == node.bundle.config


def test_the_shim_with_a_broken_python(node: Node, system_log: socket.socket) -> None:
    node.marked()
    assert_refused(node, node.shim, system_log)


def test_order_with_anothers_hooks(node: Node) -> None:
    node.install_python()
    foreign = node.folder / "foreign"
    foreign.write_text(FOREIGN.format(to=node.folder))
    foreign.chmod(0o755)
    hooks = {
        stage: [{"path": str(foreign), "args": ["foreign", stage], "env": ["PATH=/bin:/usr/bin"]}]
        for stage in ("prestart", "poststop")
    }
    node.marked(hooks=hooks)
    assert node.run(node.shim).returncode == 3
    assert node.log() == ["foreign prestart", "vgpu prestart", "vgpu poststop", "foreign poststop"]


@pytest.mark.parametrize("args", [["--version"], ["--help"], ["features"], ["state", "no-such-container"]])
def test_the_shim_answers_as_the_runtime_does(node: Node, args: list[str]) -> None:
    through, straight = node.shim.call(*args), node.runtime.call(*args)
    assert (through.returncode, through.stdout) == (straight.returncode, straight.stdout)
