"""The gate under real runtimes. Containers without a marker start as if it were absent. Those with one are refused in
one line while Python is broken. vgpu-runtime works from a container's create to its delete.

The gate is a build whose interpreter is a script of the test. Tests of a broken Python remove the script.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import pathlib
import shutil
import socket
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from checkout import CHECKOUT

BUSYBOX = shutil.which("busybox") or "/bin/busybox"
UNIFIED = "/sys/fs/cgroup/unified"
RECORDER = """#!/bin/sh
for stage; do :; done
echo "vgpu $stage" >> {to}/log
cat > {to}/$stage
"""
FOREIGN = """#!/bin/sh
cat > /dev/null
echo "foreign $1" >> {to}/log
"""

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: starts containers"),
    pytest.mark.skipif(not os.path.exists(BUSYBOX), reason="needs a static busybox: apt-get install busybox-static"),
]
counter = itertools.count()


@dataclasses.dataclass(frozen=True)
class Node:
    """A bundle, a gate with its interpreter, and one runtime."""

    name: str
    id: str
    bin: pathlib.Path
    interpreter: pathlib.Path
    folder: pathlib.Path

    @property
    def bundle(self) -> pathlib.Path:
        return self.folder / "bundle"

    def run(self, *args: str, program: str = "") -> subprocess.CompletedProcess[str]:
        """Run the runtime, or `program` in front of it, with `args` and a state folder of the test."""
        command = [program or self.name, "--root", str(self.folder / "state"), *args]
        if self.name == "crun" and os.path.ismount(UNIFIED):  # crun refuses hybrid cgroups
            hide = f"umount -l {UNIFIED} && exec " + '"$@"'
            command = ["unshare", "-m", "sh", "-c", hide, "sh", *command]
        # Files and not pipes, as a created container's init would keep pipes open.
        with open(self.folder / "out", "w+") as out, open(self.folder / "err", "w+") as err:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, timeout=60, check=False)
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(command, done.returncode, out.read(), err.read())

    def shim(self, *args: str) -> subprocess.CompletedProcess[str]:
        return self.run(*args, program=str(self.bin / f"vgpu-runtime-{self.name}"))

    def configure(self, **changes: Any) -> dict[str, Any]:
        spec = {**spec_of_container(), **changes}
        (self.bundle / "config.json").write_text(json.dumps(spec))
        return spec

    def config(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.bundle / "config.json").read_text())
        return found

    def hooks(self) -> dict[str, Any]:
        """vgpu-hook in config.json, as a runtime's administrator would add it."""
        return {
            stage: [{"path": str(self.bin / "vgpu-hook"), "args": ["vgpu-hook", stage], "env": ["PATH=/bin"]}]
            for stage in ("prestart", "createRuntime", "poststop")
        }

    def install_python(self) -> None:
        self.interpreter.write_text(RECORDER.format(to=self.folder))
        self.interpreter.chmod(0o755)

    def log(self) -> list[str]:
        path = self.folder / "log"
        return path.read_text().splitlines() if path.exists() else []


def spec_of_container() -> dict[str, Any]:
    namespaces = [{"type": name} for name in ("pid", "mount", "ipc", "uts", "network")]
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": ["/bin/sh", "-c", "echo hello; exit 3"],
            "env": ["PATH=/bin"],
            "cwd": "/",
        },
        "root": {"path": "rootfs"},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
        ],
        "linux": {"namespaces": namespaces},
    }


MARK = {"annotations": {"vgpu.io/cores": "20"}}
ENV_MARK = {"process": {**spec_of_container()["process"], "env": ["PATH=/bin", "VGPU_GRANT_CORES=ab"]}}
SANDBOX = {"annotations": {"vgpu.io/core-limit": "20", "io.kubernetes.cri.container-type": "sandbox"}}


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, pathlib.Path]:
    folder = tmp_path_factory.mktemp("gate")
    interpreter = folder / "interpreter"
    settings = [f"-DVGPU_PYTHON={interpreter}", f"-DVGPU_SYSLOG={folder}/log"]
    configure = ["cmake", "-S", CHECKOUT / "hook/gate", "-B", folder / "build", *settings]
    subprocess.run(configure, check=True, capture_output=True)
    subprocess.run(["cmake", "--build", folder / "build"], check=True, capture_output=True)
    return folder / "build/bin", interpreter


@pytest.fixture(params=["runc", "crun"])
def node(
    request: pytest.FixtureRequest, gate: tuple[pathlib.Path, pathlib.Path], tmp_path: pathlib.Path
) -> Iterator[Node]:
    if not shutil.which(request.param):
        pytest.skip(f"needs {request.param}: apt-get install {request.param}")
    gate[1].unlink(missing_ok=True)
    node = Node(request.param, f"vgpu-gate-{os.getpid()}-{next(counter)}", *gate, tmp_path)
    programs = node.bundle / "rootfs/bin"
    programs.mkdir(parents=True)
    for name in ("proc", "dev"):
        (node.bundle / "rootfs" / name).mkdir()
    shutil.copy(BUSYBOX, programs)
    for name in ("sh", "sleep"):
        (programs / name).symlink_to("busybox")
    yield node
    node.run("delete", "--force", node.id)


@pytest.fixture
def system_log(gate: tuple[pathlib.Path, pathlib.Path]) -> Iterator[socket.socket]:
    path = gate[1].parent / "log"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.bind(str(path))
        log.settimeout(120)
        yield log
    path.unlink()


def assert_refused(node: Node, result: subprocess.CompletedProcess[str], system_log: socket.socket) -> None:
    """Assert that the container did not start, that nothing is left of it, and that the reason is one line in the
    system's log and in runc's error. crun reports only the exit status."""
    line = f"vgpu-hook: exec {node.interpreter}: No such file or directory; install vgpu and python3 again"
    assert result.returncode != 0
    assert "hello" not in result.stdout
    assert system_log.recv(2048).decode() == "<27>" + line
    if node.name == "runc":
        assert line in result.stderr
    assert node.id not in node.run("list").stdout


@pytest.mark.parametrize("changes", [{}, SANDBOX], ids=["no marker", "sandbox"])
def test_without_a_marker_python_is_not_started(node: Node, changes: dict[str, Any]) -> None:
    node.configure(hooks=node.hooks(), **changes)
    result = node.run("run", "--bundle", str(node.bundle), node.id)
    assert (result.returncode, result.stdout, result.stderr) == (3, "hello\n", "")


@pytest.mark.parametrize("changes", [MARK, ENV_MARK], ids=["annotation", "env"])
def test_with_a_marker_a_broken_python_refuses(node: Node, changes: dict[str, Any], system_log: socket.socket) -> None:
    node.configure(hooks=node.hooks(), **changes)
    assert_refused(node, node.run("run", "--bundle", str(node.bundle), node.id), system_log)


def test_the_hook_sees_the_runtimes_state(node: Node) -> None:
    node.install_python()
    node.configure(hooks=node.hooks(), **MARK)
    assert node.run("run", "--bundle", str(node.bundle), node.id).returncode == 3
    assert node.log() == ["vgpu prestart", "vgpu createRuntime", "vgpu poststop"]
    state = json.loads((node.folder / "prestart").read_text())
    assert (state["id"], state["bundle"], state["annotations"]) == (node.id, str(node.bundle), MARK["annotations"])


def test_a_container_from_create_to_delete_by_the_shim(node: Node) -> None:
    node.install_python()
    node.configure(process={**spec_of_container()["process"], "args": ["/bin/sleep", "60"]}, **MARK)
    os.chown(node.bundle / "config.json", 1234, 5678)
    assert node.shim("create", "--bundle", str(node.bundle), node.id).returncode == 0
    assert node.log() == ["vgpu prestart"]
    assert json.loads(node.shim("state", node.id).stdout)["status"] == "created"
    assert node.shim("start", node.id).returncode == 0
    assert node.shim("exec", node.id, "/bin/sh", "-c", "exit 9").returncode == 9
    assert node.id in node.shim("list").stdout
    assert node.shim("kill", node.id, "KILL").returncode == 0
    assert node.shim("delete", "--force", node.id).returncode == 0
    assert node.log() == ["vgpu prestart", "vgpu poststop"]
    status = (node.bundle / "config.json").stat()
    assert (status.st_uid, status.st_gid) == (1234, 5678)
    assert sorted(os.listdir(node.bundle)) == ["config.json", "rootfs"]


def test_a_restart_of_the_same_bundle(node: Node) -> None:
    node.install_python()
    node.configure(**MARK)
    for _ in range(2):
        result = node.shim("run", "--bundle", str(node.bundle), node.id)
        assert (result.returncode, result.stdout) == (3, "hello\n")
    assert node.log() == ["vgpu prestart", "vgpu poststop"] * 2


def test_the_shim_leaves_others_alone(node: Node) -> None:
    spec = node.configure()
    result = node.shim("run", "--bundle", str(node.bundle), node.id)
    assert (result.returncode, result.stdout) == (3, "hello\n")
    assert node.config() == spec


def test_the_shim_with_a_broken_python(node: Node, system_log: socket.socket) -> None:
    node.configure(**MARK)
    assert_refused(node, node.shim("run", "--bundle", str(node.bundle), node.id), system_log)


def test_order_with_anothers_hooks(node: Node) -> None:
    node.install_python()
    foreign = node.folder / "foreign"
    foreign.write_text(FOREIGN.format(to=node.folder))
    foreign.chmod(0o755)
    hooks = {
        stage: [{"path": str(foreign), "args": ["foreign", stage], "env": ["PATH=/bin:/usr/bin"]}]
        for stage in ("prestart", "poststop")
    }
    node.configure(hooks=hooks, **MARK)
    assert node.shim("run", "--bundle", str(node.bundle), node.id).returncode == 3
    assert node.log() == ["foreign prestart", "vgpu prestart", "vgpu poststop", "foreign poststop"]


@pytest.mark.parametrize("args", [["--version"], ["--help"], ["features"], ["state", "no-such-container"]])
def test_the_shim_answers_as_the_runtime_does(node: Node, args: list[str]) -> None:
    through, straight = node.shim(*args), node.run(*args)
    assert (through.returncode, through.stdout) == (straight.returncode, straight.stdout)
