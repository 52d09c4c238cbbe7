"""The driver's device nodes on the host: which nodes must exist, whether they are right, and making missing ones.

Belongs here: numbers from /proc/devices, the check of a node, and making a node as `nvidia-modprobe -u -c=0` does. Does
not belong here: nodes in containers (vgpu.hook.inject.operations). Runs as root, and never in the hook's process.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable

from vgpu.config import records
from vgpu.config.errors import VgpuError, is_absent, not_known
from vgpu.config.inventory import Device
from vgpu.node.service import operator_files

NVIDIA_MAJOR = 195  # fixed: LANANA's devices.txt
CONTROL_MINOR = 255
MODESET_MINOR = 254
_MAX_TEXT = 1 << 20


class Parameters:
    """The module's parameters for nodes (`<proc>/driver/nvidia/params`), which nvidia-modprobe heeds."""

    __slots__ = ("gid", "mode", "modify", "uid")

    def __init__(self, mode: int = 0o666, uid: int = 0, gid: int = 0, modify: bool = True) -> None:
        self.mode = mode
        self.uid = uid
        self.gid = gid
        self.modify = modify


def majors(proc_root: str) -> dict[str, int]:
    """Name -> major of the character devices in `<proc_root>/devices`."""
    found = {}
    inside = False
    for line in _text(proc_root + "/devices").splitlines():
        number, _, name = line.strip().partition(" ")
        if line.endswith(":"):
            inside = line.startswith("Character")
        elif inside and number.isdigit() and name:
            found[name.strip()] = int(number)
    return found


def parameters(proc_root: str) -> Parameters:
    """The module's parameters. A parameter that the file lacks has its default."""
    values = _values(proc_root + "/driver/nvidia/params")
    return Parameters(
        values.get("DeviceFileMode", 0o666) & 0o777,
        values.get("DeviceFileUID", 0),
        values.get("DeviceFileGID", 0),
        values.get("ModifyDeviceFiles", 1) != 0,
    )


def _values(path: str) -> dict[str, int]:
    """The whole numbers of a file of lines `<name>: <number>`."""
    lines = (line.partition(":") for line in _text(path).splitlines())
    return {name: int(value) for name, _, value in lines if value.strip().isdigit()}


def minors(proc_root: str) -> dict[str, int]:
    """Bus id -> minor of the cards that the module drives: `<proc_root>/driver/nvidia/gpus/<bus id>/information`."""
    directory = proc_root + "/driver/nvidia/gpus"
    found = {}
    for bus_id in _names(directory):
        for line in _text(f"{directory}/{bus_id}/information").splitlines():
            name, _, value = line.partition(":")
            if name == "Device Minor" and value.strip().isdigit():
                found[bus_id.lower()] = int(value)
    return found


def card_node(dev_dir: str, minor: int) -> Device:
    """The node of the card with `minor`."""
    return Device(f"{dev_dir}/nvidia{minor}", f"nvidia{minor}", NVIDIA_MAJOR, minor)


def instances(proc_root: str) -> dict[str, list[str]]:
    """`gpu0/mig/gi1` -> its compute instances, `ci0`; of all GPU instances, as the driver has them now."""
    directory = f"{proc_root}/driver/nvidia/capabilities"
    return {
        f"{gpu}/mig/{instance}": [name for name in _names(f"{directory}/{gpu}/mig/{instance}") if name[:2] == "ci"]
        for gpu in _names(directory) if gpu[:3] == "gpu"
        for instance in _names(f"{directory}/{gpu}/mig") if instance[:2] == "gi"
    }  # fmt: skip


def capabilities(dev_dir: str, proc_root: str, instance: str, note: Callable[[str], None]) -> dict[str, Device]:
    """The nodes of a MIG `instance`, `gpu0/mig/gi1/ci0`, which are made where they are missing, by the driver's files.

    VgpuError if what the driver says about them contradicts itself or the nodes.
    """
    major = majors(proc_root).get(_CAPS)
    if major is None:
        expected = f"{_CAPS} in {proc_root}/devices"
        raise VgpuError(
            f"MIG instance {instance}", expected=expected, found="no such major", do="load the module nvidia"
        )
    listed = dict(line.partition(" ")[::2] for line in _text(f"{proc_root}/driver/nvidia-caps/mig-minors").splitlines())
    found = {}
    for name in (f"{instance.rpartition('/')[0]}/access", f"{instance}/access"):
        path = f"{proc_root}/driver/nvidia/capabilities/{name}"
        values = _values(path)
        minor, of_table = values.get("DeviceFileMinor", -1), listed.get(name.replace("/mig/", "/"), "none")
        if str(minor) != of_table:
            expected = f"minor {of_table} by {proc_root}/driver/nvidia-caps/mig-minors"
            raise VgpuError(path, expected=expected, found=minor, do="look at the driver's log")
        node = Device(f"{dev_dir}/{_CAPS}/nvidia-cap{minor}", f"{_CAPS}/nvidia-cap{minor}", major, minor)
        mode, modify = values.get("DeviceFileMode", 0o444), values.get("DeviceFileModify", 1) != 0
        ensure(node, Parameters(mode & 0o777, modify=modify), note)
        found[name] = node
    return found


def shared_nodes(dev_dir: str, numbers: dict[str, int]) -> list[Device]:
    """The nodes that belong to no card; VgpuError if the kernel's `numbers` lack a module that every node needs."""
    if NVIDIA_MAJOR not in numbers.values():
        do = "load it (modprobe nvidia) and run nvidia-smi, or set driver.proc_root in config.yaml"
        raise VgpuError("NVIDIA kernel module", expected=f"major {NVIDIA_MAJOR} in /proc/devices", found="none", do=do)
    if "nvidia-uvm" not in numbers:
        raise VgpuError(
            f"{dev_dir}/nvidia-uvm", expected="nvidia-uvm in /proc/devices",
            found="no such major: its module is not loaded", do=f"run: {_UVM}",
        )  # fmt: skip
    uvm = numbers["nvidia-uvm"]
    nodes = [
        Device(f"{dev_dir}/nvidiactl", "nvidiactl", NVIDIA_MAJOR, CONTROL_MINOR),
        Device(f"{dev_dir}/nvidia-uvm", "nvidia-uvm", uvm, 0, "compute"),
        Device(f"{dev_dir}/nvidia-uvm-tools", "nvidia-uvm-tools", uvm, 1, "compute"),
    ]
    modeset = Device(f"{dev_dir}/nvidia-modeset", "nvidia-modeset", NVIDIA_MAJOR, MODESET_MINOR, "display")
    return [*nodes, modeset] if "nvidia-modeset" in numbers or os.path.exists(modeset.path) else nodes


_UVM = "nvidia-modprobe -u -c=0"
_CAPS = "nvidia-caps"


def command_for(device: Device) -> str:
    """The command that makes `device`."""
    if device.name.startswith("nvidia-uvm"):
        return _UVM
    if device.name.startswith(_CAPS):
        return "vgpuctl inventory refresh"
    return "nvidia-modprobe -m" if device.minor == MODESET_MINOR else f"nvidia-modprobe -c={device.minor}"


def ensure(device: Device, wanted: Parameters, note: Callable[[str], None]) -> None:
    """Make the node if it is missing, and check it. VgpuError names the problem and the command that solves it."""
    if not os.path.lexists(device.path):
        _make(device, wanted)
        note(f"made {device.path} ({device.major}:{device.minor})")
    try:
        status = os.stat(device.path)
    except OSError as error:
        if not is_absent(error):
            raise not_known(device.path, error) from error
        raise VgpuError(f"{device.path}: cannot be examined", found=error.strerror) from error
    is_device = stat.S_ISCHR(status.st_mode)
    number = os.major(status.st_rdev), os.minor(status.st_rdev)
    if not is_device or number != (device.major, device.minor):
        found = f"character device {number[0]}:{number[1]}" if is_device else stat.filemode(status.st_mode)
        raise VgpuError(
            device.path, expected=f"character device {device.major}:{device.minor}", found=found,
            do=f"remove it and run: {command_for(device)}",
        )  # fmt: skip


def _make(device: Device, wanted: Parameters) -> None:
    number = f"{device.major}:{device.minor}"
    if not wanted.modify:
        found = "none, and the module's ModifyDeviceFiles=0 forbids making it"
        do = f"make it: mknod -m {wanted.mode:o} {device.path} c {device.major} {device.minor}"
        raise VgpuError(device.path, expected=f"character device {number}", found=found, do=do)
    temporary = operator_files.temporary(device.path)
    try:  # under another name first: who is killed meanwhile leaves no node without its mode and owner
        if os.path.basename(directory := os.path.dirname(device.path)) == _CAPS:
            os.makedirs(directory, exist_ok=True)
        operator_files.remove_leftovers(device.path)
        os.mknod(temporary, stat.S_IFCHR | wanted.mode, os.makedev(device.major, device.minor))
        os.chmod(temporary, wanted.mode)  # the umask reduces mknod's mode
        os.chown(temporary, wanted.uid, wanted.gid)
        os.rename(temporary, device.path)  # nvidia-modprobe may have made the same node meanwhile
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        found = f"none, and mknod fails: {error.strerror}"
        raise VgpuError(
            device.path, expected=f"character device {number}", found=found, do=f"run as root: {command_for(device)}"
        ) from error


def _text(path: str) -> str:
    """The file's text, "" without such a file; NotKnown when it cannot be looked at."""
    try:
        return records.read_bounded(path, _MAX_TEXT).decode("utf-8", "replace")
    except OSError as error:
        if is_absent(error):
            return ""
        raise not_known(path, error) from error


def _names(directory: str) -> list[str]:
    """The names in `directory` in their order, none without it; NotKnown when it cannot be looked at."""
    try:
        return sorted(os.listdir(directory))
    except OSError as error:
        if is_absent(error):
            return []
        raise not_known(directory, error) from error
