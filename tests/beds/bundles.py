"""OCI bundles, and real runtimes that run them, each with a state directory of its own.

Belongs here: a config.json like that of `runc spec` with a test's changes, and running it. `Runtime.cleanup` deletes
the containers that a failing test left. Pods on containerd are in containerd_bed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import uuid
from pathlib import Path
from typing import Any

import nodes
from checkout import CHECKOUT, LOAD_SOURCES

WITHOUT_CALLS = str(Path(__file__).with_name("without_calls.py"))

#: A cgroup2 mount in a new mount namespace: a command behind this prefix finds cgroup v2 only.
V2 = ("unshare", "-m", "sh", "-ec", 'umount -l /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup; exec "$@"', "sh")

ENVIRONMENT = ["PATH=/usr/local/nvidia/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LD_LIBRARY_PATH=/usr/local/nvidia/lib64"]


def spec() -> dict[str, Any]:
    """A small config.json that runc and crun accept on any cgroup version."""
    mounts = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=65536k"]},
        {
            "destination": "/dev/pts",
            "type": "devpts",
            "source": "devpts",
            "options": ["nosuid", "noexec", "newinstance"],
        },
        {"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": ["nosuid", "nodev", "mode=1777"]},
    ]
    capabilities = ["CAP_AUDIT_WRITE", "CAP_KILL", "CAP_NET_BIND_SERVICE", "CAP_MKNOD"]
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": ["true"],
            "env": list(ENVIRONMENT),
            "cwd": "/",
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
            "noNewPrivileges": True,
        },
        "root": {"path": "rootfs", "readonly": False},
        "hostname": "test",
        "mounts": mounts,
        "annotations": {},
        "linux": {
            "resources": {"devices": [{"allow": False, "access": "rwm"}]},
            "namespaces": [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount")],
        },
    }


def pod_cgroup(top: str, uid: str) -> str:
    """The cgroup path that kubelet gives to a pod, below `top`."""
    return f"{top}/kubepods/burstable/pod{uid}"


def static_program(source: Path, directory: Path) -> Path:
    """The C program `source`, compiled so that it runs in any container."""
    program = directory / source.stem
    options = ["-O2", "-Wall", "-Werror", "-static", "-pthread"]
    subprocess.run(["cc", *options, "-o", str(program), str(source)], check=True)
    return program


def load_generator(directory: Path) -> Path:
    """The benchmarks' load generator, compiled for this machine's C library."""
    program = directory / "cores_load"
    options = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{CHECKOUT}/libvcuda/include"]
    subprocess.run(["cc", *options, "-o", str(program), *LOAD_SOURCES, "-ldl", "-lm", "-lpthread"], check=True)
    return program


class Bundle:
    """A bundle at `path` over the root file system `rootfs`; change `config`, then run it."""

    def __init__(self, path: Path, rootfs: Path, annotations: dict[str, str] | None = None) -> None:
        self.path = path
        self.rootfs = rootfs
        self.config = spec()
        self.config["root"]["path"] = str(rootfs)
        self.config["annotations"] = dict(annotations or {})
        path.mkdir(parents=True, exist_ok=True)

    def command(self, *arguments: str) -> Bundle:
        self.config["process"]["args"] = list(arguments)
        return self

    def hooks(self, node: nodes.Node, stage: str = "prestart", without: tuple[int, ...] = ()) -> Bundle:
        """Register the hook as an administrator does. The system calls `without` fail with ENOSYS in it."""
        environment = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
        for name in (stage, "poststop"):
            arguments = ["vgpu-hook", "--config", str(node.config), name]
            hook = {"path": str(node.hook), "args": arguments, "env": environment}
            if without:
                numbers = ",".join(map(str, without))
                hook["path"] = "/usr/bin/python3"
                hook["args"] = ["python3", WITHOUT_CALLS, numbers, str(node.hook), *arguments[1:]]
            self.config.setdefault("hooks", {})[name] = [hook]
        return self

    def pod(self, uid: str, container: str, cgroup: str, **annotations: str) -> Bundle:
        """Add what kubelet and containerd add: a cgroup path below `cgroup`, and identifying annotations."""
        self.config["linux"]["cgroupsPath"] = f"{pod_cgroup(cgroup, uid)}/{container}"
        self.config["annotations"].update(
            {
                "io.kubernetes.cri.container-type": "container",
                "io.kubernetes.cri.sandbox-uid": uid,
                "io.kubernetes.cri.sandbox-name": f"pod-of-{container}",
                "io.kubernetes.cri.sandbox-namespace": "default",
                "io.kubernetes.cri.container-name": container,
                **{key.replace("__", "/").replace("_", "-"): value for key, value in annotations.items()},
            }
        )
        return self

    def bind(self, source: Path, target: str, *options: str) -> Bundle:
        mount = {"destination": target, "type": "bind", "source": str(source), "options": ["rbind", *options]}
        self.config["mounts"].append(mount)
        return self

    def simulated(self, node: nodes.Node) -> Bundle:
        """Mount the simulated driver's shared state where its libraries look for it. A real driver needs none."""
        return self.bind(node.sim, "/run/vgpu-sim", "rw") if node.sim else self

    def write(self) -> Path:
        (self.path / "config.json").write_text(json.dumps(self.config, indent=1))
        return self.path


class Runtime:
    """runc or crun with its state below `root`; container ids carry a prefix of their own."""

    def __init__(self, root: Path, program: str = "runc", *options: str, cgroup: int = 1) -> None:
        self.root = root
        self.command = [*(V2 if cgroup == 2 else ()), program, *options, "--root", str(root)]
        self.prefix = "vgpu-test"
        self.started: list[str] = []

    def new_id(self, name: str = "c") -> str:
        container = f"{self.prefix}-{name}-{uuid.uuid4().hex[:8]}"
        self.started.append(container)
        return container

    def call(self, *arguments: str, check: bool = False, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.command, *arguments],
            capture_output=True,
            text=True,
            check=check,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )

    def run(self, bundle: Bundle, name: str = "c") -> subprocess.CompletedProcess[str]:
        """Create, start, wait and delete."""
        return self.call("run", "--bundle", str(bundle.write()), self.new_id(name))

    def state(self, container: str) -> dict[str, Any]:
        """The OCI state of a container, as the runtime writes it to its hooks."""
        return json.loads(self.call("state", container, check=True).stdout)  # type: ignore[no-any-return]

    def create(
        self, bundle: Bundle, name: str = "c", timeout: float = 120
    ) -> tuple[str, subprocess.CompletedProcess[str]]:
        """Create only. The container's output goes to a file: a pipe would stay open as long as the container."""
        container = self.new_id(name)
        output = bundle.path / "output"
        with output.open("w") as stream:
            done = subprocess.run(
                [*self.command, "create", "--bundle", str(bundle.write()), container],
                stdout=stream, stderr=stream, stdin=subprocess.DEVNULL, check=False, timeout=timeout,
            )  # fmt: skip
        return container, subprocess.CompletedProcess(done.args, done.returncode, "", output.read_text())

    def delete(self, container: str) -> subprocess.CompletedProcess[str]:
        return self.call("delete", "--force", container)

    def cleanup(self) -> None:
        for container in self.started:
            self.delete(container)
        shutil.rmtree(self.root, ignore_errors=True)
