"""Inspection of a container's root file system: the facts on which a plan depends. It only reads.

Belongs here: layout, loader cache, the image's copies of driver files, existing device nodes, and the driver's
parameter files on the host. Not here: what follows from them (plan). A tenant made the image, so every listing and
every read has a bound, and nothing found here is ever the source of a mount. Copies of libcuda and NVML that programs
would find by their environment are in library_search.
"""

from __future__ import annotations

import os
import stat

from vgpu.config.errors import VgpuError
from vgpu.hook.inject.library_search import MULTIARCH, SEARCHED, LibrarySearch, Process, listed
from vgpu.hook.linux.rootfs import Rootfs

MAX_CACHE = 4 << 20
MAX_PATH = 1 << 16  # musl's search path
MAX_TOOLKITS = 64  # CUDA versions side by side in one image
MULTIARCH_32 = {"x86_64": "i386-linux-gnu", "aarch64": "arm-linux-gnueabihf"}
LOADER_CACHE = "/etc/ld.so.cache"
DRIVER_PARAMETERS = ("params", "version", "registry")

DEBIAN, REDHAT, MUSL = "debian", "redhat", "musl"
COMPAT = ("compat", "compat/lib", "compat/lib.real")


class Inspection:
    """Facts about one root file system.

    `library_dir`, `library_dir_32`: where its loader expects libraries. `cache`: /etc/ld.so.cache or None.
    `musl_path`: (file, content) of musl's search path file or None. `kept`: why this file of the loader, the cache or
    the search path, has to stay as it is, or "". `files`: names of regular files in `library_dir`.
    `copies`: paths of regular files in other directories, or of other versions, with a driver library's name. `compat`:
    the same in CUDA's forward compatibility packages. `private`: (path without links, library up to `.so`) of other
    copies that programs would load, by their environment. `uncovered`: a line for each copy that is known and has to
    stay, and for what was not looked at. `devices`: name below /dev -> (major, minor) of the
    character devices among the given names. `host_dev`: /dev is the host's own. `proc_driver`: the kernel's
    /proc/driver/nvidia is there.
    """

    __slots__ = (
        "cache", "compat", "copies", "devices", "files", "host_dev", "kept", "layout", "library_dir", "library_dir_32",
        "machine", "musl_path", "private", "proc_driver", "uncovered",
    )  # fmt: skip

    def __init__(self, layout: str, library_dir: str, library_dir_32: str, machine: str = "x86_64") -> None:
        self.layout = layout
        self.machine = machine
        self.library_dir = library_dir
        self.library_dir_32 = library_dir_32
        self.cache: bytes | None = None
        self.musl_path: tuple[str, bytes] | None = None
        self.kept = ""
        self.files: frozenset[str] = frozenset()
        self.copies: tuple[str, ...] = ()
        self.compat: tuple[str, ...] = ()
        self.private: tuple[tuple[str, str], ...] = ()
        self.uncovered: tuple[str, ...] = ()
        self.devices: dict[str, tuple[int, int]] = {}
        self.host_dev = False
        self.proc_driver = False


def inspect(
    root: Rootfs, stems: frozenset[str], devices: list[str], machine: str = "", process: Process | None = None
) -> Inspection:
    """Inspect `root`. `stems` are the library names up to `.so` whose copies matter, `devices` names below /dev.

    With `process`, the container's, also copies that its programs would load from folders which it names.
    """
    machine = machine or os.uname().machine
    facts = _layout(root, machine)
    file = f"/etc/ld-musl-{machine}.path" if facts.layout == MUSL else LOADER_CACHE
    content, facts.kept = _loader_file(root, file, MAX_PATH if facts.layout == MUSL else MAX_CACHE)
    facts.cache = content if facts.layout != MUSL else None
    facts.musl_path = (file, content) if facts.layout == MUSL and content is not None else None
    search = LibrarySearch(root, machine)
    facts.files = frozenset(search.driver_files(facts.library_dir, stems, links=False))
    facts.copies = tuple(_copies(search, facts.library_dir, stems, machine))
    facts.compat = tuple(_compat(search, stems))
    if process is not None:
        search.look(process, facts.library_dir, facts.cache, (content or b"") if facts.layout == MUSL else None)
        facts.private = tuple(search.found.items())
        facts.uncovered = tuple(search.uncovered)
    facts.devices = {name: number for name in devices if (number := _device(root, "/dev/" + name)) is not None}
    facts.host_dev = _same_as_host(root, "/dev")
    facts.proc_driver = _is_directory(root, "/proc/driver/nvidia")
    return facts


def driver_parameters(proc_root: str) -> dict[str, bytes]:
    """The host's files of /proc/driver/nvidia that the container is to see, by name."""
    found = {}
    for name in DRIVER_PARAMETERS:
        try:
            with open(f"{proc_root}/driver/nvidia/{name}", "rb") as stream:
                found[name] = stream.read(1 << 16)
        except FileNotFoundError:
            continue
    return found


def _layout(root: Rootfs, machine: str) -> Inspection:
    multiarch = MULTIARCH.get(machine, machine + "-linux-gnu")
    directory = "/usr/lib/" + multiarch
    if _exists(root, "/etc/debian_version") or _is_directory(root, directory):
        return Inspection(DEBIAN, directory, "/usr/lib/" + MULTIARCH_32.get(machine, multiarch), machine)
    if _exists(root, f"/lib/ld-musl-{machine}.so.1"):
        return Inspection(MUSL, "/usr/lib", "/usr/lib32", machine)
    library_dir_32 = "/usr/lib32" if _is_directory(root, "/usr/lib32") else "/usr/lib"
    return Inspection(REDHAT, "/usr/lib64", library_dir_32, machine)


def _loader_file(root: Rootfs, path: str, limit: int) -> tuple[bytes | None, str]:
    """(content, why it has to stay as it is or "") of a file that the loader reads."""
    try:
        content = root.read(path, limit)
        return content, root.why_not_replaced(path, content)
    except OSError as error:
        raise VgpuError(
            path, expected="a file that can be read", found=error.strerror, do="repair the image"
        ) from error


def _copies(search: LibrarySearch, library_dir: str, stems: frozenset[str], machine: str) -> list[str]:
    seen = {None, _identity(search.root, library_dir)}
    search.listed.add(search.place(library_dir))
    multiarch = MULTIARCH.get(machine, machine + "-linux-gnu")
    found = []
    for directory in (f"/usr/lib/{multiarch}", f"/lib/{multiarch}", *SEARCHED):
        identity = _identity(search.root, directory)
        if identity not in seen:
            seen.add(identity)
            search.listed.add(search.place(directory))
            found += [f"{directory}/{name}" for name in search.driver_files(directory, stems)]
    return found


def _compat(search: LibrarySearch, stems: frozenset[str]) -> list[str]:
    versions = [name for name, _ in listed(search.root, "/usr/local") if name == "cuda" or name.startswith("cuda-")]
    seen: set[tuple[int, int] | None] = {None}
    found = []
    for version in sorted(versions)[:MAX_TOOLKITS]:
        for below in COMPAT:
            directory = f"/usr/local/{version}/{below}"
            identity = _identity(search.root, directory)
            if identity not in seen:
                seen.add(identity)
                search.listed.add(search.place(directory))
                found += [f"{directory}/{name}" for name in search.driver_files(directory, stems)]
    return found


def _status(root: Rootfs, path: str) -> os.stat_result | None:
    try:
        fd = root.open(path, os.O_PATH)
    except OSError:
        return None
    try:
        return os.fstat(fd)
    finally:
        os.close(fd)


def _exists(root: Rootfs, path: str) -> bool:
    return _status(root, path) is not None


def _is_directory(root: Rootfs, path: str) -> bool:
    status = _status(root, path)
    return status is not None and stat.S_ISDIR(status.st_mode)


def _identity(root: Rootfs, directory: str) -> tuple[int, int] | None:
    """Which directory that is. It stays the same one from here to the end, also when a link on the way changes."""
    try:
        status = os.fstat(root.held(directory))
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _device(root: Rootfs, path: str) -> tuple[int, int] | None:
    status = _status(root, path)
    if status is None or not stat.S_ISCHR(status.st_mode):
        return None
    return os.major(status.st_rdev), os.minor(status.st_rdev)


def _same_as_host(root: Rootfs, path: str) -> bool:
    here = os.stat(path)
    return _identity(root, path) == (here.st_dev, here.st_ino)
