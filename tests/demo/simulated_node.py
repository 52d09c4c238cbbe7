"""`make simulated-node`: a node with simulated cards, to try everything on without a GPU; and its removal.

Belongs here: what lies in the node's directory, what its reader types, and taking it away. Everything is below that one
directory, and the node runs this checkout. Runtimes of the machine are used as they are: the commands that are printed
name the hook themselves, and containerd is a second one with a socket of its own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "beds"))

import nodes
import podman_bed
import trees
from checkout import BUILD, CHECKOUT, DATA

PROFILE = os.environ.get("PROFILE", "a100x2")
KUBELET = Path(os.environ.get("KUBELET", "/var/lib/kubelet"))
MARK = "# A simulated node of vgpu"
SHARE = '--annotation "$({bin}/vgpuctl request --cores 30 --memory 2Gi)"'
TRIPLET = f"{os.uname().machine}-linux-gnu"
PATIENCE = 20.0

CONFIG = """\
{mark}, made by `make simulated-node`. All keys: config/config.yaml of the sources.
# After an edit: {directory}/bin/vgpuctl config apply {directory}/config.yaml
paths:
  state: {directory}/state
  run: {directory}/run
  libvcuda: {build}/lib/vcuda
driver:
  root: {directory}/driver
  dev_root: {directory}/driver/dev
  proc_root: {directory}/driver/proc
standalone:
  key: {directory}/standalone.key
plugin:
  socket_dir: {kubelet}/device-plugins
  pod_resources_socket: {kubelet}/pod-resources/kubelet.sock
  http: ""
"""

CONTAINERD = """\
version = 2
root = "{directory}/containerd/root"
state = "{directory}/containerd/state"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt"]
[grpc]
address = "{directory}/containerd/containerd.sock"
[ttrpc]
address = "{directory}/containerd/containerd.sock.ttrpc"
"""

#: Programs on the host look for the simulated cards in these places; in a container they are in the usual ones.
PROGRAM = """\
#!/bin/sh
export VGPU_SIM_DIR={directory}/sim VGPU_SIM_DEVICE_NODES=0
exec {command} "$@"
"""

#: The parts of the commands below that do not change.
LONG = {
    "podman": "podman --hooks-dir {directory}/hooks.d",
    "rootfs": "--volume {directory}/sim:/run/vgpu-sim --rootfs {directory}/rootfs",
    "ctr": "ctr --address {directory}/containerd/containerd.sock run --rm --rootfs --runc-binary {bin}/vgpu-runtime",
    "mount": "--mount type=bind,src={directory}/sim,dst=/run/vgpu-sim,options=rbind:rw",
}

USE = """\
The node is in {directory}: {cards} simulated cards, and the hook, vgpuctl and limiter of this checkout.
No configuration of this machine's runtimes was changed. Type these commands as root.

What the node has:

    {bin}/nvidia-smi
    {bin}/vgpuctl inventory show

podman: a container with 30 percent of a card and 2 GiB of its memory, what it sees, and what happens at its limit:

    {podman} run --rm {share} {rootfs} nvidia-smi
    {podman} run --rm {share} {rootfs} cudaprobe alloc 512 100

One that stays, and what the node says of it:

    {podman} run --detach --name red {share} {rootfs} sleep 3600
    {bin}/vgpuctl status
    podman rm --force --time 0 red

containerd, a second one beside this machine's own:

    containerd --config {directory}/containerd/config.toml >{directory}/containerd/log 2>&1 &
    {ctr} {share} {mount} {directory}/rootfs blue /usr/bin/nvidia-smi

vgpud, which lends idle time and repairs, in a terminal of its own:

    {bin}/vgpud
{plugin}
Change the cards (an Xid, a card that is lost):

    {python} {checkout}/libvcuda/sim/tools/simctl.py event {directory}/sim --card 0 --kind xid --data 79

To remove the node:

    make -C {checkout} simulated-node-remove{node}
"""

PLUGIN = """
The device plugin, which registers at the kubelet in {kubelet}, in a terminal of its own:

    {bin}/vgpu-device-plugin

Pods meet the hook once their runtime calls {bin}/vgpu-runtime in the place of runc (docs/runtimes.md), and need
{directory}/sim as a hostPath volume at /run/vgpu-sim.
"""

NO_KUBELET = """
The device plugin needs a kubelet. {kubelet} has none. With one elsewhere: make simulated-node KUBELET=DIRECTORY
"""


class NodeError(Exception):
    """The node cannot be made or removed."""


def make(directory: Path) -> None:
    """Make the node, or bring one that is there up to date after a reboot or a build."""
    if directory.exists() and not is_node(directory):
        raise NodeError(f"{directory} exists and is no simulated node: remove it, or name another one by NODE=")
    if not directory.exists():
        _lay_out(directory)
    control = directory / "bin/vgpuctl"
    _run(control, "config", "apply", directory / "config.yaml")
    _run(control, "inventory", "refresh")
    _run(control, "request", "--make-key")


def is_node(directory: Path) -> bool:
    config = directory / "config.yaml"
    return config.exists() and config.read_text().startswith(MARK)


def _lay_out(directory: Path) -> None:
    """Make all files. The configuration comes last, so that what was interrupted is not taken for a node."""
    made = directory.with_name(f".{directory.name}.new")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    made.chmod(0o755)
    profile = str(nodes.PROFILES / f"{PROFILE}.yaml")
    nodes.simctl().make_root(str(made / "driver"), profile, str(BUILD))
    nodes.simctl().make_state(str(made / "sim"), profile)
    probe = made / "cudaprobe"
    subprocess.run(["cc", "-O2", "-o", probe, DATA / "cuda/cudaprobe.c", "-ldl"], check=True)
    trees.make("debian", made / "rootfs", {"cudaprobe": probe})
    names = {"directory": directory, "build": BUILD, "kubelet": KUBELET, "mark": MARK}
    for name in ("bin", "run", "state", "containerd"):
        (made / name).mkdir()
    for name, command in _programs(directory).items():
        (made / "bin" / name).write_text(PROGRAM.format(directory=directory, command=command))
        (made / "bin" / name).chmod(0o755)
    podman_bed.install_hooks(made / "hooks.d", BUILD / "bin/vgpu-hook", directory / "config.json")
    (made / "containerd/config.toml").write_text(CONTAINERD.format(**names))
    (made / "config.yaml").write_text(CONFIG.format(**names))
    made.rename(directory)


def _programs(directory: Path) -> dict[str, str]:
    """The command behind each program of the node's bin/."""
    scripts = Path(sys.executable).parent
    config = directory / "config.json"
    shim = "vgpu-runtime" if shutil.which("runc") else "vgpu-runtime-crun"
    libraries = directory / "driver/usr/lib" / TRIPLET
    ours = {name: f"{scripts}/{name} --config {config}" for name in ("vgpuctl", "vgpud", "vgpu-device-plugin")}
    return {
        **ours,
        "vgpu-runtime": f"{BUILD}/bin/{shim} --vgpu-config {config}",
        "nvidia-smi": f"env LD_LIBRARY_PATH={libraries} {directory}/driver/usr/bin/nvidia-smi",
    }


def _run(*command: object) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NodeError(done.stderr.strip() or f"{command[0]}: status {done.returncode}")
    return done.stdout


def use(directory: Path) -> str:
    """What one can do with the node. Every indented line is a command."""
    names: dict[str, object] = {"directory": directory, "bin": directory / "bin", "kubelet": KUBELET}
    names["share"] = SHARE.format(**names)
    names = {**names, **{name: text.format(**names) for name, text in LONG.items()}}
    cards = len(nodes.simctl().read_state(str(directory / "sim"))["cards"])
    plugin = (PLUGIN if (KUBELET / "device-plugins").is_dir() else NO_KUBELET).format(**names).rstrip("\n")
    node = "" if directory == BUILD / "node" else f" NODE={directory}"
    return USE.format(**names, cards=cards, plugin=plugin + "\n", python=sys.executable, checkout=CHECKOUT, node=node)


def remove(directory: Path) -> None:
    """End the node's own processes and delete its directory; nothing is done while a container holds a share."""
    if not directory.exists():
        print(f"{directory}: no node is there")
        return
    if not is_node(directory):
        raise NodeError(f"{directory} is no simulated node: not removed")
    holders = sorted(path.parent.name for path in directory.glob("run/containers/*/claim.json"))
    if holders:
        raise NodeError(f"containers still have a share: {', '.join(holders)}. Remove them first (podman rm, ctr)")
    _end_processes(directory)
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    below = sorted((point for point in mounts if point.startswith(f"{directory}/")), reverse=True)
    for point in below:
        subprocess.run(["umount", point], check=True)
    shutil.rmtree(directory)
    print(f"{directory}: removed")


def _end_processes(directory: Path) -> None:
    """vgpud, the plugin and containerd, which have this node's configuration on their command lines."""
    configs = {str(directory / "config.json"), str(directory / "containerd/config.toml")}
    found = [pid for pid, words in _processes() if configs & set(words)]
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + PATIENCE
    while any(Path(f"/proc/{pid}/exe").exists() for pid in found):
        if time.monotonic() > end:
            raise NodeError(f"processes do not end: {', '.join(map(str, found))}")
        time.sleep(0.05)


def _processes() -> Iterator[tuple[int, list[str]]]:
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            yield int(entry.name), (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")


def main() -> None:
    verb, directory = sys.argv[1], Path(sys.argv[2]).absolute()
    if os.geteuid() != 0:
        sys.exit("simulated-node: run as root")
    try:
        if verb == "remove":
            remove(directory)
        else:
            make(directory)
            print(use(directory), end="")
    except (NodeError, OSError) as error:
        sys.exit(f"simulated-node: {error}")


if __name__ == "__main__":
    main()
