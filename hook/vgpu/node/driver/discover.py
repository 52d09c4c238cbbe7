"""Takes the inventory of this node: the driver's version, its files, its device nodes and its cards.

Belongs here: the order of the steps, and which errors are fatal. A node without the driver's module, libcuda,
libnvidia-ml or device nodes has no inventory. A single unusable file or card is left out, with a note. Does not belong
here: the steps themselves, which are in the other modules of this folder. `vgpuctl inventory refresh` and vgpud run it
as root before containers start; it never runs in the hook's process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from vgpu.config import context_sizes, driver_upgrade
from vgpu.config.clock import since_boot
from vgpu.config.errors import VgpuError, is_absent
from vgpu.config.inventory import Card, Device, Inventory, Library, nvml_of
from vgpu.config.settings import AUTO, Settings
from vgpu.hook.linux import staleness
from vgpu.node.driver import device_nodes, elf_symbols, files, library_copies, nvml, unknown_functions

Note = Callable[[str], None]

#: Where driver.root: auto looks: the host's own driver, then that of a driver container (NVIDIA's GPU operator).
AUTO_ROOTS = ("/", "/run/nvidia/driver")


def take(
    settings: Settings,
    note: Note = lambda text: None,
    proc: str = "/proc",
    sys_root: str = "",
    clock: Callable[[], float] = time.time,
) -> Inventory:
    """The inventory of the node that `settings` describe; VgpuError if there is no usable driver, or it is upgraded.

    `proc` is the kernel's own procfs, which contains the boot id if driver.proc_root lacks it. `sys_root` is the root
    of sysfs; its default is the `sys` beside driver.proc_root. `note` receives one line for each problem and for each
    node that was made.
    """
    require_usable_driver(settings, proc)
    root, proc_root = driver_root(settings), settings.text("driver.proc_root")
    search = files.Search(
        root, settings.texts("driver.library_dirs"), settings.texts("driver.extra_libraries"),
        settings.texts("driver.exclude_libraries"), note,
    )  # fmt: skip
    version = driver_version(proc_root, search, note)
    libraries = search.libraries(version)
    nodes_dir = dev_dir(settings, root)
    devices = _nodes(nodes_dir, proc_root, note)
    sys_root = sys_root or os.path.join(os.path.dirname(proc_root), "sys")
    found = nvml.take(nvml_of(libraries), nodes_dir, proc_root, sys_root, note)
    _check_cards(found, nodes_dir, proc_root, note)
    _fill_contexts(found, settings.text("paths.state"), note)
    _check_functions(libraries, settings.text("paths.libvcuda"), note)
    copies = library_copies.make(
        settings.text("paths.libvcuda"), settings.text("paths.state"), libraries, version, note
    )
    boot = staleness.boot_id(proc_root, proc)
    return Inventory(version, boot, clock(), libraries, files.binaries(root), devices, found, copies)


def require_usable_driver(settings: Settings, proc: str = "/proc") -> None:
    """VgpuError while the device plugin's record says that the driver is being upgraded: then nobody opens NVML."""
    reason = driver_upgrade.read(settings.run_dir, staleness.boot_id(proc), since_boot())
    if reason:
        do = "wait for the end of the upgrade"
        raise VgpuError("NVML", expected="a driver that may be used", found=reason, do=do)


def _fill_contexts(found: list[Card], state_dir: str, note: Note) -> None:
    seen, error = context_sizes.read_or_none(state_dir)
    if error:
        note(f"the sizes of contexts that this node has seen are not known: {error}")
    context_sizes.fill(found, seen)


def _check_functions(libraries: list[Library], libvcuda_dir: str, note: Note) -> None:
    """Note the functions of this driver that libvcuda lacks, and of which no rule says that they are harmless."""
    for library in unknown_functions.FILES:
        path = next((item.path for item in libraries if item.bits == 64 and item.name.startswith(library + ".so.")), "")
        if not path:
            continue
        try:
            known = unknown_functions.known_functions(libvcuda_dir, library)
            exported = elf_symbols.exported_functions(path)
        except VgpuError as error:
            note(f"not checked for functions that bypass the limits: {error}")
            continue
        unknown = unknown_functions.unknown_functions(exported, known)
        if unknown:
            note(f"{path}: libvcuda does not know what these functions do, and limits none: {', '.join(unknown)}")


def driver_version(proc_root: str, search: files.Search, note: Note) -> str:
    """The version of the loaded module, or else the version in the names of the libraries."""
    version = staleness.driver_version(proc_root)
    if version:
        return version
    versions = search.versions()
    if not versions:
        do = "install the NVIDIA driver, or start its container, or set driver.root in config.yaml"
        raise VgpuError(
            f"driver below {search.root}", expected=f"{proc_root}/driver/nvidia/version or libcuda.so.<version>",
            found="neither", do=do,
        )  # fmt: skip
    note(f"{proc_root}/driver/nvidia/version is missing: driver version {versions[0]} taken from file names")
    if len(versions) > 1:
        note(f"libraries of several driver versions: {', '.join(versions)}")
    return versions[0]


def driver_root(settings: Settings) -> str:
    """The configured root; for auto the first of AUTO_ROOTS that has the loaded driver's libraries, else the host's.

    A host may have libraries that an earlier driver left. Without a loaded module any version will do.
    """
    configured = settings.text("driver.root")
    if configured != AUTO:
        return configured
    loaded = staleness.driver_version(settings.text("driver.proc_root"))
    complete = (root for root in AUTO_ROOTS if _search(settings, root).is_complete(loaded))
    return next(complete, AUTO_ROOTS[0])


def _search(settings: Settings, root: str) -> files.Search:
    return files.Search(root, settings.texts("driver.library_dirs"), [], [], lambda text: None)


def root_identities(settings: Settings) -> tuple[tuple[int, int], ...]:
    """(device, inode) of each directory that driver_root may return: a driver container mounts and unmounts its own.

    (0, 0) stands for one that is not there. OSError when that cannot be found out.
    """
    configured = settings.text("driver.root")
    found = []
    for root in AUTO_ROOTS if configured == AUTO else (configured,):
        try:
            status = os.stat(root)
            found.append((status.st_dev, status.st_ino))
        except OSError as error:
            if not is_absent(error):
                raise
            found.append((0, 0))
    return tuple(found)


def dev_dir(settings: Settings, root: str = "") -> str:
    """The directory of the host's nodes: the configured one, else the driver root's /dev if it is in use, else /dev.

    `root` is what `driver_root` has found, if the caller knows it.
    """
    configured = settings.text("driver.dev_root")
    own = os.path.join(root or driver_root(settings), "dev")
    return configured or (own if os.path.exists(own + "/nvidiactl") else "/dev")


def _nodes(directory: str, proc_root: str, note: Note) -> list[Device]:
    """The nodes that belong to no card. Makes and checks all nodes: NVML needs the nodes of the cards."""
    devices = device_nodes.shared_nodes(directory, device_nodes.majors(proc_root))
    wanted = device_nodes.parameters(proc_root)
    of_cards = [device_nodes.card_node(directory, minor) for minor in device_nodes.minors(proc_root).values()]
    for device in devices + of_cards:
        device_nodes.ensure(device, wanted, note)
    return devices


def _check_cards(found: list[Card], directory: str, proc_root: str, note: Note) -> None:
    wanted = device_nodes.parameters(proc_root)
    for card in found:
        device_nodes.ensure(card.device, wanted, note)
    known = device_nodes.minors(proc_root)
    missing = sorted(set(known) - {card.bus_id for card in found})
    if missing:
        note(f"{len(missing)} of the {len(known)} cards that the module drives cannot be used: {', '.join(missing)}")
    if not found:
        elsewhere = f": NVML looks for nodes in /dev, but the nodes are in {directory}" if directory != "/dev" else ""
        note("no usable card on this node" + elsewhere)
