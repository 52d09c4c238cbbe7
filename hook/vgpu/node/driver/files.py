"""The driver's files under a driver root: libraries and programs, and the capability that each belongs to.

Belongs here: the lists of names, the directories to search, and following links *inside* the root. A driver root such
as /run/nvidia/driver is a file system of its own, so an absolute link in it points to a path in it. The returned paths
contain no links: the hook opens them as they are. Does not belong here: device nodes (vgpu.node.driver.device_nodes).
Reads the host's files as root, and never runs in the hook's process.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase

from vgpu.config import records
from vgpu.config.errors import VgpuError
from vgpu.config.inventory import Binary, Library
from vgpu.hook.formats import elf, ldcache
from vgpu.hook.linux.staleness import is_version

Note = Callable[[str], None]

COMPAT32 = "compat32"

#: Capability -> file names before `.so.<driver version>`.
LIBRARIES = {
    "utility": ("libnvidia-ml", "libnvidia-cfg", "libnvidia-nscq"),
    "compute": (
        "libcuda", "libcudadebugger", "libnvidia-opencl", "libnvidia-gpucomp", "libnvidia-ptxjitcompiler",
        "libnvidia-fatbinaryloader", "libnvidia-allocator", "libnvidia-compiler", "libnvidia-pkcs11",
        "libnvidia-pkcs11-openssl3", "libnvidia-nvvm", "libnvidia-tileiras",
    ),
    "video": ("libvdpau_nvidia", "libnvidia-encode", "libnvidia-opticalflow", "libnvcuvid"),
    "graphics": (
        "libnvidia-eglcore", "libnvidia-glcore", "libnvidia-tls", "libnvidia-glsi", "libnvidia-fbc", "libnvidia-ifr",
        "libnvidia-rtcore", "libnvoptix", "libGLX_nvidia", "libEGL_nvidia", "libGLESv2_nvidia", "libGLESv1_CM_nvidia",
        "libnvidia-glvkspirv", "libnvidia-cbl",
    ),
    "ngx": ("libnvidia-ngx",),
}  # fmt: skip

#: Libraries of the driver that have a version of their own -> capability.
OWN_VERSION = {
    "libnvidia-nvvm70.so.*": "compute",
    "libnvidia-egl-*.so.*": "graphics",
    "libnvidia-api.so.*": "graphics",
}

BINARIES = {
    "utility": ("nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nv-fabricmanager"),
    "compute": ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server"),
}

#: Libraries that every node needs.
REQUIRED = ("libcuda", "libnvidia-ml")

_CAPABILITY = {stem: capability for capability, stems in LIBRARIES.items() for stem in stems}
_GRAPHICS = ("gl", "egl", "vk", "vulkan", "wayland", "gtk", "rt", "present")  # of unlisted names, behind libnvidia-
_TRIPLETS = ("x86_64-linux-gnu", "aarch64-linux-gnu", "powerpc64le-linux-gnu", "i386-linux-gnu", "arm-linux-gnueabihf")
_KNOWN = (
    "usr/lib64", *(f"usr/lib/{triplet}" for triplet in _TRIPLETS), "usr/lib", "usr/lib32",
    *(f"usr/lib/{triplet}/nvidia/current" for triplet in _TRIPLETS), "usr/lib64/nvidia/current",
    "usr/lib/nvidia/current",
    "lib64", *(f"lib/{triplet}" for triplet in _TRIPLETS), "usr/local/nvidia/lib64", "usr/local/nvidia/lib",
)  # fmt: skip
_PROGRAMS = ("usr/bin", "usr/sbin", "bin", "sbin", "usr/local/bin", "usr/local/sbin", "usr/local/nvidia/bin", "opt/bin")
_MAX_LINKS = 40  # as the kernel's MAXSYMLINKS


def resolve(root: str, path: str) -> str:
    """The host path of `path` without links, as a process with the root `root` would find it; "" if it is missing."""
    base = root.rstrip("/")
    done: list[str] = []
    todo = path.split("/")[::-1]
    links = 0
    while todo:
        part = todo.pop()
        if part in ("", "."):
            continue
        if part == "..":
            done = done[:-1]
            continue
        try:
            target = os.readlink("/".join([base, *done, part]))
        except OSError as error:
            if error.errno != errno.EINVAL:  # EINVAL: not a link
                return ""
            done.append(part)
            continue
        links += 1
        if links > _MAX_LINKS:
            return ""
        done = [] if target.startswith("/") else done
        todo += target.split("/")[::-1]
    return "/".join([base, *done]) or "/"


def stem_of(name: str) -> str:
    """`libcuda` of libcuda.so.1."""
    return name.partition(".so")[0]


def capability_of(name: str) -> str:
    """The capability of one of the driver's libraries by its file name; "" for any other name."""
    stem = stem_of(name)
    listed = _CAPABILITY.get(stem) or next((c for glob, c in OWN_VERSION.items() if fnmatchcase(name, glob)), "")
    if listed or not ("nvidia" in stem or stem.startswith(("libcuda", "libnv"))):
        return listed
    # A new driver's name, which is not in the lists yet. Programs that need the library fail without it, so its
    # capability is compute unless the name is one of graphics.
    return "graphics" if "GL" in stem or stem.removeprefix("libnvidia-").startswith(_GRAPHICS) else "compute"


class Search:
    """One search of a driver root: `directories` has the loader's order, then the configured ones, then the known ones.

    `note` receives one line for each problem. The globs `extra` and `exclude` are the settings driver.extra_libraries
    and driver.exclude_libraries.
    """

    def __init__(self, root: str, library_dirs: list[str], extra: list[str], exclude: list[str], note: Note) -> None:
        self.root = root
        self.extra = extra
        self.exclude = exclude
        self.note = note
        places = [*self._cached(), *(resolve(root, place) for place in (*library_dirs, *_KNOWN))]
        self.directories = list(dict.fromkeys(place for place in places if os.path.isdir(place)))

    def _cached(self) -> list[str]:
        """Directories of the driver's libraries in the root's own loader cache."""
        path = resolve(self.root, "etc/ld.so.cache")
        if not path:
            return []
        try:
            entries = ldcache.parse(records.read_bounded(path, ldcache.MAX_CACHE), path).entries
        except (OSError, VgpuError) as error:
            self.note(f"{path} is not used: {error}")
            return []
        found = [os.fsdecode(entry.path) for entry in entries if capability_of(os.fsdecode(entry.name))]
        return [os.path.dirname(resolve(self.root, place)) for place in found]

    def versions(self) -> list[str]:
        """Versions in the names of libcuda and libnvidia-ml, the one that the loader finds first."""
        found = []
        for name, _ in self._files():
            stem, _, version = name.partition(".so.")
            if stem in REQUIRED and is_version(version):
                found.append(version)
        return list(dict.fromkeys(found))

    def is_complete(self, version: str) -> bool:
        """Whether the libraries that every node needs are there, of this version, or of any one if it is ""."""
        names = {name for name, _ in self._files(REQUIRED)}
        versions = [version] if version else self.versions()
        return any(all(f"{stem}.so.{one}" in names for stem in REQUIRED) for one in versions)

    def libraries(self, version: str) -> list[Library]:
        """The libraries of driver `version`; VgpuError when one that no node can do without is missing.

        Of files with the same name and word size the first is taken, as the loader does.
        """
        found: dict[tuple[str, int], Library] = {}
        for name, path in self._files():
            library = self._library(name, path, version)
            if library:
                found.setdefault((library.name, library.bits), library)
        for stem in REQUIRED:
            if (f"{stem}.so.{version}", 64) not in found:
                raise self._missing(f"{stem}.so.{version}")
        return list(found.values())

    def _files(self, begins: tuple[str, ...] = ("",)) -> Iterator[tuple[str, str]]:
        """(name, resolved path) of every library whose name begins so.

        libvdpau, not the loader, looks for the libraries in `vdpau/`.
        """
        base = len(self.root.rstrip("/"))
        for directory in [place for each in self.directories for place in (each, each + "/vdpau")]:
            for name in sorted(_listed(directory)):
                wanted = ".so" in name and name.startswith(begins)
                path = resolve(self.root, f"{directory}/{name}"[base:]) if wanted else ""
                if path and os.path.isfile(path):
                    yield name, path

    def _library(self, name: str, path: str, version: str) -> Library | None:
        capability = self._wanted(name, os.path.basename(path), version)
        if not capability:
            return None
        try:
            found = elf.read(path)
        except VgpuError as error:
            self.note(f"left out: {error}")
            return None
        if "/" in found.soname:
            self.note(f"left out: {path}: its DT_SONAME is a path, {found.soname}")
            return None
        if found.bits == 32:
            capability = COMPAT32
        return Library(path, os.path.basename(path), found.soname, capability, found.bits)

    def _wanted(self, name: str, file_name: str, version: str) -> str:
        """The capability of the file, or "" if it is not to be used. `name` may be a link to `file_name`."""
        if any(fnmatchcase(name, glob) or fnmatchcase(file_name, glob) for glob in self.exclude):
            return ""
        if any(fnmatchcase(name, glob) for glob in self.extra):
            return "compute"  # every container with a card gets compute
        versioned = name == file_name and name.endswith(".so." + version)
        own = name == file_name and any(fnmatchcase(name, glob) for glob in OWN_VERSION)
        return capability_of(name) if versioned or own else ""

    def _missing(self, name: str) -> VgpuError:
        versions = self.versions()
        found, do = "no driver library", "install the driver's libraries, or set driver.root or driver.library_dirs"
        if versions:
            found = f"libraries of driver {', '.join(versions)}"
            do = "reboot, or load the module of the installed driver"
        return VgpuError(f"{name} below {self.root}", expected="the loaded driver's 64-bit library", found=found, do=do)


def _listed(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def binaries(root: str) -> list[Binary]:
    """The driver's programs below `root`, by capability."""
    found = []
    for capability, names in BINARIES.items():
        for name in names:
            paths = (resolve(root, f"{directory}/{name}") for directory in _PROGRAMS)
            path = next((path for path in paths if path and _is_program(path)), "")
            if path:
                found.append(Binary(path, name, capability))
    return found


def _is_program(path: str) -> bool:
    mode = os.stat(path).st_mode
    return stat.S_ISREG(mode) and bool(mode & 0o111)
