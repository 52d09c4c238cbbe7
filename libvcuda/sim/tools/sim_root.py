"""A driver root: a directory that looks like a host with the driver installed.

It has the built libraries and programs, and files as in /proc and /sys for the cards of a profile. Making device nodes
needs root. The cards come from sim_profiles.py, MIG's instances from sim_mig.py: `show_layout` brings a root's files up
to date after a change.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import subprocess
import uuid
from typing import Any

from sim_layout import NO_COMPUTE, Card, File, SimError
from sim_mig import COMPUTE_INSTANCES, GPU_INSTANCES, instances_of, lay_out, locked
from sim_profiles import load_profile, wants_nodes

DEFAULT_BUILD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "build")

NVIDIA_MAJOR = 195
CONTROL_MINOR = 255
UVM_MAJOR = 511
CAPS_MAJOR = 510
MAX_MINORS = 32  #: of cards, in mig-minors


def make_root(
    directory: str,
    profile: str | dict[str, Any],
    build: str = DEFAULT_BUILD,
    device_nodes: bool | None = None,
    driver: str = "",
) -> str:
    """Lay out a driver root in `directory` and return it. Device nodes are made if the profile has them.

    `driver` is one of the versions in lib/drivers: that root has its libcuda and libnvidia-ml, and no other library.
    """
    loaded = load_profile(profile)
    file = File()
    lay_out(file, loaded)
    cards = file.cards[: file.header.card_count]
    uvm_major = loaded.get("uvm_major", UVM_MAJOR)
    source = os.path.join(build, "lib", "drivers", driver) if driver else os.path.join(build, "lib", "sim")
    version = _install_libraries(source, os.path.join(directory, "usr/lib", _multiarch()))
    _install_programs(os.path.join(build, "bin", "sim"), os.path.join(directory, "usr/bin"))
    _write_proc(os.path.join(directory, "proc"), cards, version, uvm_major)
    _write_sys(os.path.join(directory, "sys/bus/pci/devices"), cards)
    os.makedirs(os.path.join(directory, "dev"), exist_ok=True)
    if wants_nodes(loaded, device_nodes):
        _make_nodes(os.path.join(directory, "dev"), _nodes_of(cards, uvm_major))
    _show_instances(directory, file)
    return directory


def _multiarch() -> str:
    return f"{os.uname().machine}-linux-gnu"


def soname_of(path: str) -> str:
    output = subprocess.run(["readelf", "-d", path], check=True, capture_output=True, text=True).stdout
    match = re.search(r"\(SONAME\).*\[(.*)\]", output)
    if not match:
        raise SimError(f"{path}: has no SONAME")
    return match.group(1)


def _install_libraries(source: str, target: str) -> str:
    """Copy the libraries with their SONAME links; return the driver's version, which is in their names."""
    names = sorted(name for name in os.listdir(source) if ".so." in name) if os.path.isdir(source) else []
    versions = {name.partition(".so.")[2] for name in names if name.startswith("libcuda.so.")}
    if len(versions) != 1:
        raise SimError(f"{source}: expected one simulated libcuda.so.<version>, found {sorted(versions)}; build first")
    version = versions.pop()
    os.makedirs(target, exist_ok=True)
    for name in names:
        if not name.endswith(f".so.{version}"):
            continue
        _replace_file(os.path.join(source, name), os.path.join(target, name))
        soname = soname_of(os.path.join(source, name))
        if soname != name:
            _replace_link(name, os.path.join(target, soname))
    for name in ("libcuda.so", "libnvidia-ml.so"):
        _replace_link(f"{name}.1", os.path.join(target, name))
    return version


def _replace_file(source: str, target: str) -> None:
    # A copy under another name and a rename: processes that have the old file mapped keep it.
    shutil.copy2(source, f"{target}.new")
    os.rename(f"{target}.new", target)


def _replace_link(content: str, path: str) -> None:
    if os.path.lexists(path):
        os.unlink(path)
    os.symlink(content, path)


def _install_programs(source: str, target: str) -> None:
    os.makedirs(target, exist_ok=True)
    for name in sorted(os.listdir(source)):
        _replace_file(os.path.join(source, name), os.path.join(target, name))


def _write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def _write_proc(proc: str, cards: list[Card], version: str, uvm_major: int) -> None:
    nvidia = os.path.join(proc, "driver", "nvidia")
    _write(
        os.path.join(proc, "devices"),
        f"Character devices:\n  1 mem\n{NVIDIA_MAJOR:3d} nvidia-frontend\n{uvm_major:3d} nvidia-uvm\n\n"
        "Block devices:\n",
    )
    _write(
        os.path.join(nvidia, "version"),
        f"NVRM version: NVIDIA UNIX {os.uname().machine} Kernel Module  {version}  simulated by vgpu\n"
        "GCC version:  none\n",
    )
    _write(
        os.path.join(nvidia, "params"),
        "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\n",
    )
    _write(os.path.join(nvidia, "registry"), 'Binary: ""\n')
    for card in cards:
        bus_id = f"{card.pci_domain:04x}:{card.pci_bus:02x}:{card.pci_device:02x}.0"
        _write(os.path.join(nvidia, "gpus", bus_id, "information"), _information(card, bus_id, version))


def _write_sys(devices: str, cards: list[Card]) -> None:
    """Write the NUMA node that a card is near to, as the kernel does; NVML has it only as a set of bits."""
    for card in cards:
        bus_id = f"{card.pci_domain:04x}:{card.pci_bus:02x}:{card.pci_device:02x}.0"
        _write(os.path.join(devices, bus_id, "numa_node"), f"{card.numa_node}\n")


def _information(card: Card, bus_id: str, version: str) -> str:
    lines = (
        ("Model", card.name.decode()),
        ("IRQ", "0"),
        ("GPU UUID", f"GPU-{uuid.UUID(bytes=bytes(card.uuid))}"),
        ("Video BIOS", "??.??.??.??.??"),
        ("Bus Type", "PCIe"),
        ("DMA Size", "47 bits"),
        ("DMA Mask", "0x7fffffffffff"),
        ("Bus Location", bus_id),
        ("Device Minor", str(card.minor)),
        ("GPU Firmware", version),
        ("GPU Excluded", "No"),
    )
    return "".join(f"{key}:\t {value}\n" for key, value in lines)


#: Major and minor number, and mode.
Node = tuple[int, int, int]


def _nodes_of(cards: list[Card], uvm_major: int) -> dict[str, Node]:
    return {
        **{f"nvidia{card.minor}": (NVIDIA_MAJOR, card.minor, 0o666) for card in cards},
        "nvidiactl": (NVIDIA_MAJOR, CONTROL_MINOR, 0o666),
        "nvidia-uvm": (uvm_major, 0, 0o666),
        "nvidia-uvm-tools": (uvm_major, 1, 0o666),
    }


def _make_nodes(dev: str, nodes: dict[str, Node]) -> None:
    for name, (major, minor, mode) in nodes.items():
        path = os.path.join(dev, name)
        if os.path.lexists(path):
            os.unlink(path)
        try:
            os.mknod(path, stat.S_IFCHR | mode, os.makedev(major, minor))
        except OSError as error:
            if error.errno != errno.EPERM:
                raise
            raise SimError(f"{path}: making device nodes needs root; use --device-nodes no") from error
        os.chmod(path, mode)


def show_layout(directory: str, state: str) -> None:
    """Bring the root's files up to date with the instances of the state. Nodes of earlier ones stay, as on a host."""
    with locked(state) as file:
        _show_instances(directory, file)


def minors() -> dict[str, int]:
    """Each capability of the driver by its name in mig-minors."""
    found = {"config": 1, "monitor": 2}
    for gpu in range(MAX_MINORS):
        for gi in range(GPU_INSTANCES):
            names = [f"gi{gi}/access", *(f"gi{gi}/ci{ci}/access" for ci in range(COMPUTE_INSTANCES))]
            found.update({f"gpu{gpu}/{name}": len(found) + 1 + at for at, name in enumerate(names)})
    return found


def _capabilities(file: File) -> dict[str, tuple[str, int]]:
    """The path below the capabilities' folder and the mode of each that the driver has now."""
    found = {"config": ("mig/config", 0o400), "monitor": ("mig/monitor", 0o444)}
    for card in range(file.header.card_count):
        for entry in (file.cards[index] for index in instances_of(file, card)):
            gpu = f"gpu{file.cards[card].minor}"
            for name in (f"gi{entry.gi}", f"gi{entry.gi}/ci{entry.ci}")[: 1 if entry.ci == NO_COMPUTE else 2]:
                found[f"{gpu}/{name}/access"] = (f"{gpu}/mig/{name}/access", 0o444)
    return found


def _show_instances(directory: str, file: File) -> None:
    """Write the capabilities and their nodes. A root whose cards were never in MIG mode has none."""
    folder = os.path.join(directory, "proc/driver/nvidia/capabilities")
    dev = os.path.join(directory, "dev")
    in_mode = any(file.boards[card].mig_mode[0] for card in range(file.header.card_count))
    if not in_mode and not os.path.isdir(folder):
        return
    shutil.rmtree(folder, ignore_errors=True)
    numbers, nodes = minors(), {}
    for name, (path, mode) in _capabilities(file).items():
        text = f"DeviceFileMinor: {numbers[name]}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n"
        _write(os.path.join(folder, path), text)
        nodes[f"nvidia-cap{numbers[name]}"] = (CAPS_MAJOR, numbers[name], mode)
    _write(
        os.path.join(directory, "proc/driver/nvidia-caps/mig-minors"),
        "".join(f"{name} {number}\n" for name, number in numbers.items()),
    )
    devices = os.path.join(directory, "proc/devices")
    with open(devices, encoding="utf-8") as opened:
        text = opened.read()
    if "nvidia-caps" not in text:
        _write(devices, text.replace("\n\nBlock", f"\n{CAPS_MAJOR:3d} nvidia-caps\n\nBlock", 1))
    if os.path.exists(os.path.join(dev, "nvidiactl")):
        os.makedirs(os.path.join(dev, "nvidia-caps"), exist_ok=True)
        _make_nodes(os.path.join(dev, "nvidia-caps"), nodes)
