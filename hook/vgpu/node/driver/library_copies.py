"""The copies of libvcuda for the node's driver: programs find the names that this driver has, and no other.

libvcuda exports every name known when it was built. A program that chooses by presence would choose functions that an
older driver lacks. So root makes a copy of each of libvcuda's two libraries in which those names are hidden
(vgpu.node.driver.hide_symbols), in `<state>/vcuda/<driver>-<build id>/`, when it takes an inventory.

Belongs here: making, checking and writing the copies. Does not belong here: which file a container gets
(vgpu.hook.inject.limiter_files), and when a copy goes (vgpu.node.daemon.copy_removal). Never runs in the hook's
process.

A file that a container may have mapped never changes: a copy is written under a temporary name, checked by processes
that load it and the driver's library, and renamed. Where that fails containers get the packaged library; the inventory
has the reason.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable

from vgpu.config import paths, records
from vgpu.config.errors import VgpuError
from vgpu.config.inventory import Library, LimiterCopy, identity
from vgpu.config.limits import REAL_DIR
from vgpu.node.driver import elf_symbols
from vgpu.node.driver.hide_symbols import Image

SONAMES = ("libcuda.so.1", "libnvidia-ml.so.1")
#: Without these the driver's list of symbols was misread: a name that is hidden must be one that the driver lacks.
CERTAIN = {"libcuda.so.1": "cuInit", "libnvidia-ml.so.1": "nvmlInit_v2"}
MAX_LIBRARY = 64 << 20
PATIENCE = 60.0  #: seconds for a process that loads two libraries
LABEL = "security.selinux"  #: a container may map the copy where it may map the packaged library

#: Prints the names that are in one library and not in the other: argv has the paths, stdin the names. It ends without
#: the libraries' destructors: libvcuda's look for the driver's library.
CHECK = """
import ctypes, os, sys
try:
    ours, theirs = ctypes.CDLL(sys.argv[1], os.RTLD_NOW), ctypes.CDLL(sys.argv[2], os.RTLD_LAZY)
    text = " ".join(name for name in sys.stdin.read().split() if hasattr(ours, name) != hasattr(theirs, name))
    status = 0
except OSError as error:
    text, status = str(error), 1
print(text, flush=True)
os._exit(status)
"""

Note = Callable[[str], None]


def make(
    libvcuda_dir: str, state_dir: str, libraries: list[Library], version: str, note: Note = lambda text: None
) -> list[LimiterCopy]:
    """One entry for each library of libvcuda in `libvcuda_dir`, made for the driver; none if one is missing.

    `note` receives one line for each library of which there is no copy although one is needed.
    """
    found = []
    for soname in SONAMES:
        packaged = f"{libvcuda_dir}/{soname}"
        try:
            status = os.stat(packaged)
            image = Image(records.read_bounded(packaged, MAX_LIBRARY), packaged)
            directory = paths.limiter_copies(state_dir, version, _build_id(libvcuda_dir))
        except FileNotFoundError:
            return []  # libvcuda is not installed, which doctor says
        except (OSError, VgpuError) as error:
            note(f"no copy of libvcuda for driver {version}: {error}")
            return []
        copy = LimiterCopy(soname, identity(status), image.build_id())
        try:
            _fill(copy, image, directory, _driver_file(libraries, soname))
        except (OSError, VgpuError) as error:
            copy.reason = str(error)
            note(f"{packaged}: containers see names that driver {version} lacks: {error}")
        found.append(copy)
    return found


def _build_id(libvcuda_dir: str) -> str:
    """The build id of libvcuda's libcuda.so.1, by which the directory of both copies is named."""
    path = f"{libvcuda_dir}/{SONAMES[0]}"
    return Image(records.read_bounded(path, MAX_LIBRARY), path).build_id()


def _driver_file(libraries: list[Library], soname: str) -> str:
    stem = soname.partition(".so.")[0] + ".so."
    for item in libraries:
        if item.bits == 64 and item.name.startswith(stem):
            return item.path
    raise VgpuError("driver", expected=f"a 64-bit {soname}", found="none")


def _fill(copy: LimiterCopy, image: Image, directory: str, driver: str) -> None:
    """Make the copy in `directory`, unless the driver lacks nothing; then the packaged library fits as it is."""
    exports, have = set(image.exports()), set(elf_symbols.exported_functions(driver))
    if CERTAIN[copy.name] not in have:
        raise VgpuError(f"{driver}: its symbols", expected=CERTAIN[copy.name], found=f"{len(have)} others")
    lacking = exports - have
    copy.hidden = len(lacking)
    if not lacking:
        return
    data = image.hide(lacking)
    path = f"{directory}/{copy.name}"
    _make_directory(directory)
    _check(Image(data, path), driver, exports, path)
    if not _has(path, data):
        _write(path, data, image.source)
    copy.path = path
    copy.digest = hashlib.sha256(data).hexdigest()


def digest(path: str) -> str:
    """The SHA-256 of a copy as it is now."""
    return hashlib.sha256(records.read_bounded(path, MAX_LIBRARY)).hexdigest()


def _make_directory(directory: str) -> None:
    for path in (os.path.dirname(directory), directory):
        os.makedirs(path, mode=0o755, exist_ok=True)
        os.chmod(path, 0o755)  # noqa: S103 - vgpud's umask is stricter; the names in it are no secret


def _check(image: Image, driver: str, names: set[str], path: str) -> None:
    """Load the copy in a process of its own, from the directory where it will be, and compare it with the driver's
    library name by name. The loaded file lacks only the dependency on the driver's library, which the hook mounts."""
    loadable = image.without_dependency(f"{REAL_DIR}/{os.path.basename(path)}")
    temporary = _temporary(path + ".check")
    try:
        _write_new(temporary, loadable)
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", CHECK, temporary, driver],
            input="\n".join(sorted(names)), capture_output=True, text=True, check=False, timeout=PATIENCE,
            env={"PATH": os.defpath}, cwd="/",
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise VgpuError(path, expected="a library that can be loaded", found=f"nothing for {PATIENCE:.0f} s") from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
    if done.returncode:
        found = done.stdout.strip().replace(f"{temporary}: ", "") or f"exit status {done.returncode}"
        raise VgpuError(path, expected="a library that can be loaded", found=found)
    if done.stdout.strip():
        raise VgpuError(path, expected="the driver's names", found=f"a difference: {done.stdout.strip()[:200]}")


def _has(path: str, data: bytes) -> bool:
    """Whether the file has this content already. The mode is part of it: the hook mounts the file as it is."""
    try:
        return os.stat(path).st_mode & 0o7777 == 0o644 and records.read_bounded(path, MAX_LIBRARY) == data
    except (FileNotFoundError, VgpuError):
        return False


def _write(path: str, data: bytes, packaged: str) -> None:
    """Put the copy at `path`: readers find no file, or all of it, also after a power cut."""
    temporary = _temporary(path)
    try:
        _write_new(temporary, data)
        with contextlib.suppress(OSError):
            os.setxattr(temporary, LABEL, os.getxattr(packaged, LABEL))
        os.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    for directory in (os.path.dirname(path), os.path.dirname(os.path.dirname(path))):
        records.sync_directory(directory)


def _write_new(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fchmod(fd, 0o644)
        os.fsync(fd)
    finally:
        os.close(fd)


def _temporary(path: str) -> str:
    """A name for a temporary file, which vgpud knows as such. What an earlier process of this pid left goes."""
    directory, name = os.path.split(path)
    temporary = f"{directory}/.{name}.{os.getpid()}.tmp"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    return temporary
