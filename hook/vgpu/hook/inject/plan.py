"""The plan for one container: a pure function of allocation, inventory, settings and inspection.

Belongs here: all policy on files, links, device nodes and the loader. Not here: system calls. The operations are in
vgpu.hook.inject.operations; `vgpu-hook --dry-run` prints them. Their order is: files, links, device nodes, /proc,
loader. The caller opens the device cgroup besides, which needs no undoing: the runtime removes it with the container.
"""

from __future__ import annotations

from vgpu.config import core_schedule, limits
from vgpu.config.errors import VgpuError
from vgpu.config.inventory import DO, Binary, Device, Inventory, Library
from vgpu.config.limits import LIMITED, LIMITS_PATH, NVIDIA_DIR, PRIVATE_DIR, REAL_DIR, USAGE_DIR
from vgpu.config.settings import Settings
from vgpu.hook.formats import ldcache
from vgpu.hook.formats.elf import EM_386, EM_AARCH64, EM_ARM, EM_X86_64
from vgpu.hook.formats.ldcache import Addition
from vgpu.hook.inject import mounts
from vgpu.hook.inject.inspect import LOADER_CACHE, MUSL, Inspection
from vgpu.hook.inject.mounts import Entry
from vgpu.hook.inject.operations import (
    Bind,
    BindDevice,
    BindDirectory,
    CheckCapability,
    Cover,
    Operation,
    OverlayFile,
    ReplaceFile,
    SharedRegion,
    Symlink,
    Tmpfs,
)
from vgpu.hook.placement.allocation import Allocation

BINARY_DIR = "/usr/bin"
USAGE_SIZE = 2 << 20
SMALL = 64 << 10
MAX_COPIES = 256  # of driver libraries in an image; each costs a mount

DEFAULT_CAPABILITIES = ("compute", "utility")  #: of a container that names none
#: OpenCL's allocator and VDPAU, whose processes are in no list of NVML's compute processes: libvcuda can limit neither.
UNLIMITED_LIBRARIES = ("libnvidia-opencl", "libvdpau_nvidia")
UNLIMITED_BINARIES = ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server")

#: Links besides the SONAMEs, by the name of the library's SONAME.
COMPATIBILITY_LINKS = {
    "libcuda.so.1": "libcuda.so",
    "libnvidia-ml.so.1": "libnvidia-ml.so",
    "libnvidia-opticalflow.so.1": "libnvidia-opticalflow.so",
    "libGLX_nvidia.so.0": "libGLX_indirect.so.0",
}
IMPLIED = {"video": "compute", "display": "graphics"}


class Plan:
    """`operations` in their order, `devices` to open in the cgroup, `notes` for the log. `uncovered`: a line for each
    copy of a limited library in a share that stays. `limiter` is the host's file of its libcuda, "" without one. Both
    are for the claim.
    """

    __slots__ = ("devices", "limiter", "notes", "operations", "uncovered")

    def __init__(
        self,
        operations: tuple[Operation, ...],
        devices: tuple[Device, ...],
        notes: tuple[str, ...],
        uncovered: tuple[str, ...] = (),
        limiter: str = "",
    ) -> None:
        self.limiter = limiter
        self.operations = operations
        self.devices = devices
        self.notes = notes
        self.uncovered = uncovered


class PlannedContainer:
    """The container that a plan is for: its allocation, its capabilities, its device nodes, the inspection of its root,
    and on the host the files of its limits and core schedules. `limiter` has the files of libvcuda that are not the
    packaged ones, by SONAME.
    """

    __slots__ = (
        "allocation", "capabilities", "cards_file", "devices", "inspection", "limiter", "limits_file",
    )  # fmt: skip

    def __init__(
        self,
        allocation: Allocation,
        capabilities: frozenset[str],
        devices: tuple[Device, ...],
        inspection: Inspection,
        limits_file: str,
        cards_file: str,
        limiter: dict[str, str] | None = None,
    ) -> None:
        self.allocation = allocation
        self.capabilities = capabilities
        self.devices = devices
        self.inspection = inspection
        self.limits_file = limits_file
        self.cards_file = cards_file
        self.limiter = limiter or {}


def capabilities(wish: str, settings: Settings, exclusive: bool) -> frozenset[str]:
    """The capabilities of `wish` (NVIDIA_DRIVER_CAPABILITIES or "") that the node allows; else compute and utility."""
    allowed = set(settings.texts("driver.capabilities"))
    if not exclusive:
        allowed.discard("compat32")  # there is no 32-bit libvcuda
        if settings.flag("driver.share_excludes"):
            allowed &= set(settings.texts("driver.share_capabilities"))
    wanted = {name.strip() for name in wish.split(",")}
    chosen = allowed if "all" in wanted else wanted & allowed
    chosen |= {IMPLIED[name] for name in chosen if name in IMPLIED} & allowed
    return frozenset(chosen or allowed & set(DEFAULT_CAPABILITIES))


def devices(inventory: Inventory, allocation: Allocation, chosen: frozenset[str]) -> tuple[Device, ...]:
    """The control nodes for the capabilities `chosen`, and the nodes of each card, which MIG instances may share."""
    shared = [device for device in inventory.devices if not device.capability or device.capability in chosen]
    own = [node for card in allocation.cards for node in card.nodes]
    return tuple({device.name: device for device in (*shared, *own)}.values())


def library_stems(inventory: Inventory) -> frozenset[str]:
    """The names of the driver's libraries up to `.so`."""
    return frozenset(_stem(library.name) for library in inventory.libraries)


def make(container: PlannedContainer, inventory: Inventory, settings: Settings, parameters: dict[str, bytes]) -> Plan:
    """The plan. `parameters`: the files of the host's /proc/driver/nvidia that the container is to see."""
    libraries = _libraries(container, inventory, settings)
    binaries = _binaries(container, inventory, settings)
    sources = _sources(libraries, container, settings)
    operations: list[Operation] = [
        CheckCapability(f"{_capabilities(settings)}/{name}", node.minor)
        for card in container.allocation.cards
        for name, node in card.capabilities.items()
    ]
    if not container.allocation.exclusive:
        operations += _limiter(libraries, container)
    operations.append(_nvidia_dir(libraries, binaries))
    operations += _library_files(libraries, sources, container.inspection)
    operations += [OverlayFile(binary.path, f"{BINARY_DIR}/{binary.name}") for binary in binaries]
    operations += _links(libraries, sources, container.inspection)
    masks, notes = _masks(libraries, sources, container, settings)
    operations += masks
    operations += _nodes(container.devices, container.inspection)
    operations += _proc(container, parameters, settings)
    loader, loader_notes = _loader(libraries, container.inspection)
    operations += loader
    if container.allocation.exclusive:
        return Plan(tuple(operations), container.devices, notes + loader_notes)
    uncovered = container.inspection.uncovered
    limiter = sources.get("libcuda", "")
    return Plan(tuple(operations), container.devices, notes + loader_notes + uncovered, uncovered, limiter)


def _libraries(container: PlannedContainer, inventory: Inventory, settings: Settings) -> list[Library]:
    chosen = [library for library in inventory.libraries if _wanted(library, container, settings)]
    have = {_stem(library.name) for library in chosen if library.bits == 64}
    missing = [name for name in LIMITED if name not in have]
    if missing and "compute" in container.capabilities:
        raise VgpuError("inventory", expected=f"{missing[0]}.so.{inventory.driver_version}", found="none", do=DO)
    return chosen


def _wanted(library: Library, container: PlannedContainer, settings: Settings) -> bool:
    if library.bits != 64 and "compat32" not in container.capabilities:
        return False
    if library.capability not in container.capabilities and not (
        library.bits != 64 and library.capability == "compat32"
    ):
        return False
    excluded = not container.allocation.exclusive and settings.flag("driver.share_excludes")
    return not (excluded and _stem(library.name) in UNLIMITED_LIBRARIES)


def _binaries(container: PlannedContainer, inventory: Inventory, settings: Settings) -> list[Binary]:
    excluded = not container.allocation.exclusive and settings.flag("driver.share_excludes")
    return [
        binary
        for binary in inventory.binaries
        if binary.capability in container.capabilities and not (excluded and binary.name in UNLIMITED_BINARIES)
    ]


def _sources(libraries: list[Library], container: PlannedContainer, settings: Settings) -> dict[str, str]:
    """Host file by library stem: in a share libvcuda for the names that it replaces, else the driver's file."""
    sources = {_stem(library.name): library.path for library in libraries if library.bits == 64}
    if not container.allocation.exclusive:
        for stem in LIMITED:
            if stem in sources:
                soname = _soname(stem)
                sources[stem] = container.limiter.get(soname) or f"{settings.text('paths.libvcuda')}/{soname}"
    return sources


def _limiter(libraries: list[Library], container: PlannedContainer) -> list[Operation]:
    """The private directory: the real libraries and the host's files read-only, the usage region on a tmpfs."""
    real = [library for library in libraries if library.bits == 64 and _stem(library.name) in LIMITED]
    chosen = container.allocation.presence.items()
    presence = {f"presence/{core_schedule.presence_name(uuid)}": path for uuid, path in chosen}
    entries = [Entry(name) for name in ("driver", "usage", "presence")]
    entries += [Entry(name, b"", mode=0o444) for name in ("limits", "cards", *presence)]
    entries += [Entry(f"driver/{library.soname}", b"", mode=0o444) for library in real]
    region = [
        Entry("usage", limits.USAGE_BEGINNING, mode=0o666, size=limits.USAGE_SIZE)
    ]  # every user in the container may write it
    region += [Entry(name, b"", mode=0o666) for name in limits.USAGE_SHARE_FILES]
    operations: list[Operation] = [Tmpfs(PRIVATE_DIR, tuple(entries), SMALL, mounts.READ_ONLY_FILE)]
    operations += [OverlayFile(library.path, f"{REAL_DIR}/{library.soname}") for library in real]
    operations.append(OverlayFile(container.limits_file, LIMITS_PATH, mounts.READ_ONLY_DATA))
    operations.append(OverlayFile(container.cards_file, core_schedule.PATH, mounts.READ_ONLY_DATA))
    operations += [Bind(path, f"{PRIVATE_DIR}/{name}", mounts.READ_ONLY_DATA) for name, path in presence.items()]
    shared = container.allocation.region
    if shared is None:
        operations.append(Tmpfs(USAGE_DIR, tuple(region), USAGE_SIZE, mounts.DATA))
    else:
        operations.append(SharedRegion(*shared, USAGE_DIR, limits.USAGE_SIZE, mounts.DATA))
    return operations


def _library_files(libraries: list[Library], sources: dict[str, str], facts: Inspection) -> list[Operation]:
    """Each in /usr/local/nvidia, whose tmpfs has a file to mount on; those of 32 bits where their loader looks."""
    operations: list[Operation] = []
    for library in libraries:
        if library.bits == 64:
            operations.append(OverlayFile(sources[_stem(library.name)], _file(library)))
        else:
            operations.append(OverlayFile(library.path, f"{_directory(library, facts)}/{library.name}"))
    return operations


def _file(library: Library) -> str:
    return f"{NVIDIA_DIR}/lib64/{library.name}"


def _directory(library: Library, facts: Inspection) -> str:
    directory = facts.library_dir if library.bits == 64 else facts.library_dir_32
    return directory + "/vdpau" if library.name.startswith("libvdpau_nvidia") else directory


def _link_names(library: Library) -> list[tuple[str, str]]:
    """(link, its target) of a library: its SONAME, and other names that programs expect."""
    links = []
    if library.soname and library.soname != library.name:
        links.append((library.soname, library.name))
    if library.soname in COMPATIBILITY_LINKS:
        links.append((COMPATIBILITY_LINKS[library.soname], library.soname))
    return links


def _links(libraries: list[Library], sources: dict[str, str], facts: Inspection) -> list[Operation]:
    """The names by which programs and ldconfig find the libraries in the loader's directory."""
    operations: list[Operation] = []
    for library in libraries:
        directory = _directory(library, facts)
        links = _link_names(library)
        if library.bits == 64:
            links = [(link, _file(library) if target == library.name else target) for link, target in links]
            if not links or library.name in facts.files:  # its own name is its SONAME, or the image has it
                links.append((library.name, _file(library)))
        for link, target in links:
            if link in facts.files and library.bits == 64:  # the image has a file with that name: mount over it
                operations.append(OverlayFile(sources[_stem(library.name)], f"{directory}/{link}"))
            else:
                operations.append(Symlink(f"{directory}/{link}", target))
    return operations


def _nvidia_dir(libraries: list[Library], binaries: list[Binary]) -> Operation:
    """/usr/local/nvidia as one read-only tmpfs. It covers the image's files there, which would come first.

    The 64-bit libraries are mounted on its files: such a file costs nothing on the container's disk.
    """
    entries = [Entry("bin"), Entry("lib64"), Entry("lib", link="lib64")]
    for library in libraries:
        if library.bits == 64:
            entries.append(Entry(f"lib64/{library.name}", b"", mode=0o444))
            entries += [Entry(f"lib64/{link}", link=target) for link, target in _link_names(library)]
    entries += [Entry(f"bin/{binary.name}", link=f"{BINARY_DIR}/{binary.name}") for binary in binaries]
    once = {entry.name: entry for entry in entries}  # two libraries may have the same SONAME
    return Tmpfs(NVIDIA_DIR, tuple(once.values()), SMALL * 4, mounts.READ_ONLY_FILE)


def _masks(
    libraries: list[Library], sources: dict[str, str], container: PlannedContainer, settings: Settings
) -> tuple[list[Operation], tuple[str, ...]]:
    """For a share: mount over the image's own copies of driver libraries, which could shadow libvcuda."""
    if container.allocation.exclusive:
        return [], ()
    facts = container.inspection
    if facts.compat and settings.text("driver.compat_libraries") == "refuse":
        expected = "an image without CUDA forward compatibility libraries"
        raise VgpuError(facts.compat[0], expected=expected, found="a share of a card",
                        do="use an image without them, a whole card, or driver.compat_libraries: mask")  # fmt: skip
    ours = {name for library in libraries for name in (library.name, *(link for link, _ in _link_names(library)))}
    other_versions = [f"{facts.library_dir}/{name}" for name in sorted(facts.files - ours)]
    copies = [path for path in (*other_versions, *facts.copies) if _stem(_name(path)) in LIMITED]
    covered = [path for path in (*copies, *facts.compat) if _stem(_name(path)) in sources]
    if len(covered) > MAX_COPIES:
        expected = f"at most {MAX_COPIES} copies of the driver's libraries in the image"
        raise VgpuError("root file system", expected=expected, found=len(covered), do="remove them from the image")
    operations: list[Operation] = [OverlayFile(sources[_stem(_name(path))], path) for path in covered]
    private = [(path, stem) for path, stem in facts.private if stem in sources]
    operations += [Cover(sources[stem], path) for path, stem in private]
    return operations, tuple(
        f"{path}: replaced by the node's own library, because it would bypass the limits"
        for path in (*covered, *(path for path, _ in private))
    )


def _nodes(nodes: tuple[Device, ...], facts: Inspection) -> list[Operation]:
    """Device nodes, except those that exist already: the runtime made them, or /dev is the host's."""
    operations: list[Operation] = []
    for device in nodes:
        if facts.devices.get(device.name) == (device.major, device.minor):
            continue
        if facts.host_dev:
            expected = "the device node in the host's /dev, which this container shares"
            raise VgpuError(f"/dev/{device.name}", expected=expected, found="none", do="run: nvidia-modprobe -u -c=0")
        operations.append(BindDevice(device.path, f"/dev/{device.name}", device.major, device.minor))
    return operations


def _proc(container: PlannedContainer, parameters: dict[str, bytes], settings: Settings) -> list[Operation]:
    """/proc/driver/nvidia with the assigned cards only, their MIG instances' own files, and ModifyDeviceFiles off."""
    if not container.inspection.proc_driver:
        return []
    path = "/proc/driver/nvidia"
    host = settings.text("driver.proc_root") + "/driver/nvidia/gpus"
    entries = [
        Entry(name, _without_device_files(name, content), mode=0o444) for name, content in sorted(parameters.items())
    ]
    entries.append(Entry("gpus"))
    buses = dict.fromkeys(card.bus_id for card in container.allocation.cards)
    entries += [Entry(f"gpus/{bus_id}") for bus_id in buses]
    files = dict.fromkeys(name for card in container.allocation.cards for name in card.capabilities)
    entries += [Entry(name) for name in _directories([f"capabilities/{name}" for name in files])]
    entries += [Entry(f"capabilities/{name}", b"", mode=0o444) for name in files]
    operations: list[Operation] = [Tmpfs(path, tuple(entries), SMALL, mounts.READ_ONLY_DATA)]
    for bus_id in buses:
        operations.append(BindDirectory(f"{host}/{bus_id}", f"{path}/gpus/{bus_id}", mounts.READ_ONLY_DATA))
    for name in files:
        operations.append(
            Bind(f"{_capabilities(settings)}/{name}", f"{path}/capabilities/{name}", mounts.READ_ONLY_DATA)
        )
    return operations


def _capabilities(settings: Settings) -> str:
    return settings.text("driver.proc_root") + "/driver/nvidia/capabilities"


def _directories(files: list[str]) -> list[str]:
    """The directories above `files`, each after the one that it is in."""
    return sorted({file[:at] for file in files for at, letter in enumerate(file) if letter == "/"})


def _without_device_files(name: str, content: bytes) -> bytes:
    if name != "params":
        return content
    lines = content.splitlines(keepends=True)
    return b"".join(b"ModifyDeviceFiles: 0\n" if line.startswith(b"ModifyDeviceFiles:") else line for line in lines)


def _loader(libraries: list[Library], facts: Inspection) -> tuple[list[Operation], tuple[str, ...]]:
    """The loader's cache with the driver's names; for musl its search path file, if the image has one.

    A malformed cache stays as it is: the loader ignores it too, and searches its default directories. So does one on a
    volume, which may be another's too: the loader finds the libraries, which are in one of its default directories.
    """
    if facts.layout == MUSL:
        return _musl(facts), ()
    additions = []
    for library in libraries:
        directory = _directory(library, facts)
        names = [library.soname or library.name]
        names += [link for link, _ in _link_names(library) if link not in names]
        machine = _machine(facts, library.bits)
        additions += [Addition(name, f"{directory}/{name}", library.bits, machine) for name in names]
    try:
        data = ldcache.merge(facts.cache, additions)
    except VgpuError as error:
        return [], (f"left unchanged: {error}",)
    if data == facts.cache:
        return [], ()
    if facts.kept:
        return [], (f"{LOADER_CACHE}: left unchanged: {facts.kept}",)
    return [ReplaceFile(LOADER_CACHE, data, facts.cache)], ()


def _machine(facts: Inspection, bits: int) -> int:
    machines = {"x86_64": (EM_X86_64, EM_386), "aarch64": (EM_AARCH64, EM_ARM)}.get(facts.machine)
    if machines is None:
        raise VgpuError("machine", expected="x86_64 or aarch64", found=facts.machine)
    return machines[0 if bits == 64 else 1]


def _musl(facts: Inspection) -> list[Operation]:
    if facts.musl_path is None:
        return []  # its default path has /usr/lib
    path, content = facts.musl_path
    directories = content.replace(b":", b"\n").split(b"\n")
    if facts.library_dir.encode() in directories:
        return []
    if facts.kept:
        do = "add that line, or mount the volume elsewhere"
        raise VgpuError(path, expected=f"a line {facts.library_dir}", found=f"none, and {facts.kept}", do=do)
    return [ReplaceFile(path, facts.library_dir.encode() + b"\n" + content, content)]


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _stem(name: str) -> str:
    return name.partition(".so")[0]


def _soname(stem: str) -> str:
    return stem + ".so.1"
