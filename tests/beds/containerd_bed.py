"""A private containerd, with its own root, state, socket and configuration, and pods like those that kubelet makes.

Belongs here: starting and ending the daemon, its runtime handlers for each way of registering the hook, and pods with
their containers over CRI. One daemon serves many tests. `remove_pods` ends the pods that they left.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import bundles
import cgroup_trees
import cri_client
import daemons
import nodes
import suites
from checkout import CHECKOUT

from vgpu.config import cdi_device
from vgpu.node.runtimes import cdi_spec as specification
from vgpu.node.runtimes.registration import Wish

PACKAGING = CHECKOUT / "packaging"
IMAGE = "vgpu-test.local/base:1"
RUNC = shutil.which("runc", path=f"{os.environ['PATH']}:/usr/sbin") or "/usr/sbin/runc"
CNI = "/usr/lib/cni"
WITHOUT_CONTROLLERS = Path(__file__).with_name("runc_without_controllers.py")
MACHINES = "1.6"
#: Version -> the Debian suite that has it.
SUITES = {MACHINES: "bookworm", "1.7": "trixie", "2.1": "sid"}
#: The first that reads and writes files of version 4. No containers run on it here.
NEWEST = {"2.3": "stonking"}
#: Without these a daemon starts faster and warns less. No test needs them.
UNUSED = ("aufs", "btrfs", "devmapper", "erofs", "zfs", "blockfile")
#: The glob patterns that pass the markers on. `*` does not match a slash.
PATTERNS = ("vgpu.io/*",)


def programs(version: str) -> Path:
    """Of containerd `version`. Docker's packages bring another one than Debian 12, which then is fetched."""
    own = shutil.which("containerd")
    if own and version == MACHINES:
        found = subprocess.run([own, "--version"], capture_output=True, text=True, check=True).stdout.split()[2]
        if found.lstrip("v").startswith(version):
            return Path(own).parent
    return suites.unpack({**SUITES, **NEWEST}[version], "containerd") / "usr/bin"


def hooks(node: nodes.Node, stage: str = "createRuntime") -> dict[str, Any]:
    """The hooks that we ship for a base runtime specification, with this node's paths."""
    shipped = json.loads((PACKAGING / "containerd/hooks.json").read_text())
    shipped[stage] = shipped.pop("createRuntime")
    for name, (entry,) in shipped.items():
        entry.update(path=str(node.hook), args=["vgpu-hook", "--config", str(node.config), name])
    return shipped  # type: ignore[no-any-return]


def cdi_spec(node: nodes.Node) -> str:
    """The CDI device that we ship, with this node's paths."""
    return specification.text(Wish(programs=str(node.hook.parent), settings=str(node.config)))


class Containerd:
    """A containerd below `directory`. `programs` holds containerd, ctr and the shim; `cgroup` is 1 or 2.

    Handlers: `plain` is runc without vgpu; `base` and `base-prestart` use base_runtime_spec; `shim` uses BinaryName;
    `dropped` is like base, but its runtime passes no annotations on. `default` is the handler of pods that name none,
    `patterns` pass annotations on, `prefix` is a command that runs the daemon somewhere else. All containers get
    `mounts` by the base specification. `network` is a directory of CNI configurations, for pods with networks.
    """

    def __init__(
        self,
        directory: Path,
        programs: Path,
        node: nodes.SimulatedNode,
        cgroup: int = 1,
        default: str = "plain",
        patterns: Sequence[str] = PATTERNS,
        prefix: Sequence[str] = (),
        mounts: Sequence[dict[str, Any]] = (),
        network: Path | None = None,
    ) -> None:
        self.directory = directory
        self.programs = programs
        self.node = node
        self.cgroup = cgroup
        self.default = default
        self.patterns = list(patterns)
        self.prefix = prefix
        self.mounts = list(mounts)
        self.network = network
        self.socket = directory / "containerd.sock"
        self.name = f"/vgpu-test-{uuid.uuid4().hex[:8]}"  # of the cgroup below which all pods lie
        self.pods: list[Pod] = []
        self.process: subprocess.Popen[bytes] | None = None
        self.client: cri_client.Client | None = None
        directory.mkdir(parents=True, exist_ok=True)
        version = self._run("containerd", "--version").split()[2]
        self.major = int(version.lstrip("v").partition(".")[0])
        self.version = version

    def _run(self, program: str, *arguments: str) -> str:
        command = [str(self.programs / program), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
        return done.stdout

    # The daemon

    def start(self, image: Path | None) -> Containerd:
        """Start, import `image`, and be ready for pods; without an image for containers of ctr alone."""
        (self.directory / "config.toml").write_text(self._config())
        self.client = cri_client.Client(self.socket)
        try:
            self.launch()
            if image:
                self.ctr("--namespace", "k8s.io", "images", "import", str(image))
                self._wait_for_image()
        except BaseException:
            self.stop()
            raise
        return self

    def launch(self) -> None:
        """Run the daemon on what an earlier one has left, and wait until it answers."""
        assert self.client is not None
        environment = {**os.environ, "PATH": f"{self.programs}:{os.environ['PATH']}"}
        command = [
            *self.prefix,
            *(bundles.V2 if self.cgroup == 2 else ()),
            str(self.programs / "containerd"),
            "--config",
            str(self.directory / "config.toml"),
        ]
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        self.client.wait_for("Version")

    def ctr(self, *words: str) -> str:
        return self._run("ctr", "--address", str(self.socket), *words)

    def _wait_for_image(self) -> None:
        assert self.client is not None
        client = self.client
        daemons.wait_for(lambda: client.call("ImageStatus", image={"image": IMAGE}).image.id, 120, "it sees no image")

    def stop(self) -> None:
        """End pods, daemon and what it mounted; the directory goes too."""
        if self.client is not None:
            self.remove_pods()
            self.client.close()
        if self.process is not None:
            self.process.terminate()
            self.process.wait(120)
        self._end_shims()
        for line in reversed(Path("/proc/self/mountinfo").read_text().splitlines()):
            point = line.split()[4]
            if point.startswith(f"{self.directory}/"):
                subprocess.run(["umount", "-l", point], check=True)
        cgroup_trees.remove(self.name)
        shutil.rmtree(self.directory, ignore_errors=True)

    def lose_power(self) -> None:
        """Kill the daemon, its shims and all processes of its pods at once, and remove what no reboot survives."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self._end_shims()
        cgroup_trees.kill(self.name)
        cgroup_trees.remove(self.name)

    def _end_shims(self) -> None:
        """Shims outlive their daemon on purpose. This daemon's have its socket on their command line."""
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"containerd-shim" in words[0] and str(self.socket).encode() in words:
                os.kill(int(entry.name), signal.SIGKILL)

    # Its configuration

    def _config(self) -> str:
        return self._config_v3() if self.major >= 2 else self._config_v2()

    def _config_v2(self) -> str:
        """containerd 1.x."""
        cri = 'plugins."io.containerd.grpc.v1.cri"'
        return f"""version = 2
{self._daemon()}
[{cri}]
sandbox_image = "{IMAGE}"
restrict_oom_score_adj = true
stream_server_port = "0"
{self._cdi()}
{self._cni(cri)}
{self._handlers(cri)}"""

    def _config_v3(self) -> str:
        """containerd 2.x."""
        runtime = 'plugins."io.containerd.cri.v1.runtime"'
        return f"""version = 3
{self._daemon()}
[plugins."io.containerd.grpc.v1.cri"]
stream_server_port = "0"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{IMAGE}"
[{runtime}]
restrict_oom_score_adj = true
{self._cdi()}
{self._handlers(runtime)}"""

    def _daemon(self) -> str:
        kind = "io.containerd.snapshotter.v1"
        unused = [f"{kind}.{name}" for name in UNUSED] + ["io.containerd.internal.v1.opt"]
        return f"""root = "{self.directory}/root"
state = "{self.directory}/state"
disabled_plugins = {json.dumps(unused)}
[grpc]
address = "{self.socket}"
[ttrpc]
address = "{self.socket}.ttrpc"
"""

    def _cdi(self) -> str:
        """Nothing for a containerd without CDI."""
        if self.version.startswith("1.6"):
            return ""
        specs = self.directory / "cdi"
        specs.mkdir()
        (specs / "vgpu.json").write_text(cdi_spec(self.node))
        return f'enable_cdi = true\ncdi_spec_dirs = ["{specs}"]\n'

    def _cni(self, section: str) -> str:
        return f'[{section}.cni]\nbin_dir = "{CNI}"\nconf_dir = "{self.network}"\n' if self.network else ""

    def _handlers(self, section: str) -> str:
        runc = self._runc()
        shim = self._wrapper("runc-shim", f"{self.node.shim} --vgpu-config {self.node.config} --vgpu-runtime {runc}")
        base = {stage: str(self._base_spec(stage)) for stage in ("createRuntime", "prestart")}
        text = f'[{section}.containerd]\ndefault_runtime_name = "{self.default}"\n'
        text += self._handler(section, "plain", runc, str(self._base_spec("")) if self.mounts else "")
        text += self._handler(section, "base", runc, base["createRuntime"])
        text += self._handler(section, "base-prestart", runc, base["prestart"])
        text += self._handler(section, "dropped", runc, base["createRuntime"], drops=True)
        return text + self._handler(section, "shim", shim)

    def _runc(self) -> str:
        if self.cgroup == 1:
            return RUNC
        return self._wrapper("runc-v2", f"/usr/bin/python3 -I -S {WITHOUT_CONTROLLERS}")

    def _wrapper(self, name: str, command: str) -> str:
        """An executable that passes its arguments on, as BinaryName takes no arguments of its own."""
        path = self.directory / name
        path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        path.chmod(0o755)
        return str(path)

    def _base_spec(self, stage: str) -> Path:
        """What `ctr oci spec` prints, and the hooks; none without a stage."""
        spec = json.loads(self._run("ctr", "oci", "spec"))
        path = self.directory / f"base-{stage}.json"
        spec["mounts"] += self.mounts
        path.write_text(json.dumps({**spec, "hooks": hooks(self.node, stage)} if stage else spec))
        return path

    def _handler(self, section: str, name: str, binary: str, base: str = "", drops: bool = False) -> str:
        table = f"{section}.containerd.runtimes.{name}"
        lines = [f"[{table}]", 'runtime_type = "io.containerd.runc.v2"']
        patterns = json.dumps([] if drops else self.patterns)
        lines += [f"{kind}_annotations = {patterns}" for kind in ("pod", "container")]
        lines += [f'base_runtime_spec = "{base}"'] if base else []
        return "\n".join([*lines, f"[{table}.options]", f'BinaryName = "{binary}"', ""])

    # Pods

    def pod(self, handler: str, uid: str = "", annotations: dict[str, str] | None = None) -> Pod:
        """A running pod sandbox with host networking."""
        pod = Pod(self, handler, uid or str(uuid.uuid4()), annotations or {}, attempt=len(self.pods))
        self.pods.append(pod)
        return pod.run()

    def remove_pods(self) -> None:
        while self.pods:
            self.pods.pop().remove()


class Unregistered(Containerd):
    """A containerd whose file knows nothing of vgpu until `prepare` has worked on it."""

    prepare: Callable[[Path], object]
    program = ""  #: of the handler runc, if the file is to name it

    def _config(self) -> str:
        path = self.directory / "config.toml"
        path.write_text(self.plain())
        self.prepare(path)
        return path.read_text()

    def plain(self) -> str:
        """Settings of the test machine, and no handler: runc is containerd's own default."""
        if self.major >= 2:
            runtime, images = "io.containerd.cri.v1.runtime", "io.containerd.cri.v1.images"
            sandbox = f'[plugins."{images}".pinned_images]\nsandbox = "{IMAGE}"\n'
        else:
            runtime = "io.containerd.grpc.v1.cri"
            sandbox = f'sandbox_image = "{IMAGE}"\n'
        version = 3 if self.major >= 2 else 2
        head = f"# A comment.\nversion = {version}\n{self._daemon()}\n"
        text = f'{head}[plugins."{runtime}"]  # and another\nrestrict_oom_score_adj = true\n{sandbox}'
        if not self.program:
            return text
        runc = f'plugins."{runtime}".containerd.runtimes.runc'
        text += f'\n[{runc}]\n  runtime_type = "io.containerd.runc.v2"\n'
        return f'{text}  [{runc}.options]\n    BinaryName = "{self.program}" # another program\n'


class Pod:
    """A sandbox and the containers in it, under a cgroup path of kubelet's form."""

    def __init__(self, bed: Containerd, handler: str, uid: str, annotations: dict[str, str], attempt: int) -> None:
        assert bed.client is not None
        self.bed = bed
        self.client = bed.client
        self.handler = handler
        self.uid = uid
        self.logs = bed.directory / "pods" / uuid.uuid4().hex[:8]
        self.logs.mkdir(parents=True)
        self.id = ""
        self.cgroup = bundles.pod_cgroup(bed.name, uid)
        self.attempts = 100 * attempt  # names are unique over all sandboxes of a pod
        self.config = {
            "metadata": {"name": f"pod-{uid[:8]}", "uid": uid, "namespace": "default", "attempt": attempt},
            "log_directory": str(self.logs),
            "annotations": annotations,
            "linux": {"cgroup_parent": self.cgroup, "security_context": {"namespace_options": {"network": "NODE"}}},
        }

    def run(self) -> Pod:
        self.id = self.client.call("RunPodSandbox", config=self.config, runtime_handler=self._handler()).pod_sandbox_id
        return self

    def _handler(self) -> str:
        """A CDI device needs no handler of its own."""
        return "plain" if self.handler == "cdi" else self.handler

    def pid(self) -> int:
        """The pause process."""
        status = self.client.call("PodSandboxStatus", pod_sandbox_id=self.id, verbose=True)
        return int(json.loads(status.info["info"])["pid"])

    def create(
        self,
        command: list[str],
        name: str = "train",
        annotations: dict[str, str] | None = None,
        env: dict[str, str] | list[tuple[str, str]] | None = None,
        mounts: list[dict[str, Any]] | None = None,
        cdi: bool | None = None,
        devices: list[dict[str, Any]] | None = None,
        cdi_devices: list[str] | None = None,
        sim: bool = True,
    ) -> str:
        """CreateContainer. kubelet restarts a container by a new attempt of the same `name`.

        `env` as a list may contain a key twice, as kubelet's does where a pod overrides a plugin. Without `sim` it has
        the simulated cards only by `mounts`.
        """
        self.attempts += 1
        by_handler = self.handler == "cdi" if cdi is None else cdi
        chosen = [*(cdi_devices or []), *([cdi_device.DEVICE] if by_handler else [])]
        pairs = list(env.items()) if isinstance(env, dict) else env or []
        cards = [{"host_path": str(self.bed.node.sim), "container_path": "/run/vgpu-sim"}] if sim else []
        config = {
            "metadata": {"name": name, "attempt": self.attempts},
            "image": {"image": IMAGE},
            "command": command,
            "envs": [{"key": key, "value": value} for key, value in pairs],
            "mounts": [*cards, *(mounts or [])],
            "annotations": annotations or {},
            "log_path": f"{name}-{self.attempts}.log",
            "linux": {"security_context": {"namespace_options": {"network": "NODE"}}},
            "devices": devices or [],
            "CDI_devices": [{"name": one} for one in chosen],
        }
        made = self.client.call("CreateContainer", pod_sandbox_id=self.id, config=config, sandbox_config=self.config)
        return str(made.container_id)

    def start(self, container: str) -> None:
        self.client.call("StartContainer", container_id=container)

    def status(self, container: str) -> Any:
        return self.client.call("ContainerStatus", container_id=container).status

    def stop_container(self, container: str) -> None:
        """Send SIGKILL without a grace period, as the out-of-memory killer does."""
        self.client.call("StopContainer", container_id=container, timeout=0)

    def wait(self, container: str, seconds: float = 120) -> tuple[int, str]:
        """(exit code, output) of a container that ends by itself."""
        ended = self.client.messages.CONTAINER_EXITED
        daemons.wait_for(lambda: self.status(container).state == ended, seconds, f"{container} has not ended")
        return int(self.status(container).exit_code), self.output()

    def output(self, attempt: int = 0) -> str:
        """The output of the latest container, or of `attempt`. Each line of a CRI log is `time stream F text`."""
        (path,) = self.logs.glob(f"*-{attempt or self.attempts}.log")
        return "".join(line.split(" ", 3)[3] for line in path.read_text().splitlines(keepends=True))

    def stop(self) -> None:
        """End all its containers and the pause process."""
        if self.id:
            self.client.call("StopPodSandbox", pod_sandbox_id=self.id)

    def remove(self) -> None:
        """Remove the pod and all its containers."""
        self.stop()
        if self.id:
            self.client.call("RemovePodSandbox", pod_sandbox_id=self.id)
            self.id = ""
