"""Puts a release below the directory of releases on the host, and turns `current` to it.

Belongs here: the order of the steps, so that a kill or a loss of power at any of them leaves `current` at one whole
release. Does not belong here: the list of files (manifest.py), and how a runtime comes to call the hook (cdi.py).

    <directory>/<version>-<hash>    a release; it never changes
    <directory>/current             a link to the release in force; configurations name the hook by it
    <directory>/.new, .current      left by a killed installation; the next one removes it

A container that exists names its poststop hook by `current`, too, and finds it there for as long as any release is
installed. The release before stays on the disk for a way back that copies nothing.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import subprocess
from collections.abc import Callable

from vgpu.config import records
from vgpu.config.errors import VgpuError, shown
from vgpu.node.service import single_instance
from vgpu.plugin.release import manifest
from vgpu.plugin.release.manifest import Manifest

CURRENT, NEW, LOCK = "current", ".new", ".lock"
DIRECTORY = "/opt/vgpu"
PROGRAMS = "usr/bin"
HOOK = f"{PROGRAMS}/vgpu-hook"
RENAME_EXCHANGE = 2
AT_FDCWD = -100

Trial = Callable[[str], None]


def lock(directory: str) -> int:
    """An fd that keeps other installers of this node away; VgpuError if one is at work."""
    fd = single_instance.take(os.path.join(directory, LOCK))
    if fd < 0:
        raise VgpuError(directory, expected="no other installer at work", found="one", do="wait until it is done")
    return fd


def current(directory: str) -> str:
    """The name of the release in force; "" if none is."""
    try:
        return os.readlink(os.path.join(directory, CURRENT))
    except OSError:
        return ""


def place(source: str, directory: str, trial: Trial) -> Manifest:
    """Copy the release of the image at `source` to `directory`, unless it is there whole. Nothing names it yet.

    `trial` runs a program of the copy, and raises VgpuError if the host does not let it run.
    """
    wanted = manifest.read(source)
    new, target = os.path.join(directory, NEW), os.path.join(directory, wanted.name)
    _remove(new)
    if _is_whole(target, wanted):
        trial(target)
        return wanted
    _copy(source, new, wanted)
    manifest.verify(new, wanted)
    trial(new)
    _sync(new)
    if os.path.lexists(target):  # somebody changed it
        _exchange(new, target)
        _remove(new)
    else:
        os.rename(new, target)
    records.sync_directory(directory)
    return wanted


def turn(directory: str, name: str) -> None:
    """Put the release `name` in force. All others go, but for the one that was in force before."""
    before = current(directory)
    if before != name:
        link = os.path.join(directory, f".{CURRENT}")
        _remove(link)
        os.symlink(name, link)
        os.rename(link, os.path.join(directory, CURRENT))
        records.sync_directory(directory)
        for found in releases(directory):
            if found not in (name, before):
                _take_away(directory, found)


def releases(directory: str) -> list[str]:
    """The names of the releases. Others may have files in the directory, too, as in /opt; those are not touched."""
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return []
    places = {name: os.path.join(directory, name) for name in names if name != NEW}
    return [name for name, path in places.items() if not os.path.islink(path) and _is_release(path)]


def remove_all(directory: str) -> None:
    """Remove all releases and what an installer has made beside them. The directory goes if nothing else is in it."""
    for name in releases(directory):
        _take_away(directory, name)
    for name in (CURRENT, f".{CURRENT}", NEW, LOCK):
        _remove(os.path.join(directory, name))
    try:
        os.rmdir(directory)
    except OSError as error:
        if error.errno not in (errno.EBUSY, errno.ENOTEMPTY):
            raise


def _is_release(path: str) -> bool:
    return os.path.isfile(os.path.join(path, manifest.PATH))


def _take_away(directory: str, name: str) -> None:
    """Remove a release, first its name: what a kill leaves of it the next installation removes."""
    new = os.path.join(directory, NEW)
    _remove(new)
    os.rename(os.path.join(directory, name), new)
    _remove(new)


def run_once(release: str) -> None:
    """Run vgpuctl of a release by its own Python; VgpuError if that does not work, as on a file system without exec."""
    program = os.path.join(release, PROGRAMS, "vgpuctl")
    do = "choose another directory for releases: one on a file system that is mounted without noexec"
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise VgpuError(program, expected="a program that runs", found=str(error), do=do) from error
    if done.returncode:
        raise VgpuError(program, expected="a program that runs", found=shown(done.stderr.strip()), do=do)


def _is_whole(target: str, wanted: Manifest) -> bool:
    try:
        manifest.verify(target, wanted)
    except VgpuError:
        return False
    return True


def _copy(source: str, new: str, wanted: Manifest) -> None:
    os.mkdir(new)
    for file in wanted.files:
        path = os.path.join(new, file.path)
        for directory in _missing(os.path.dirname(path)):
            os.mkdir(directory)
        if file.target:
            os.symlink(file.target, path)
        else:
            shutil.copyfile(os.path.join(source, file.path), path)
            os.chown(path, 0, 0)
            os.chmod(path, file.mode)


def _missing(directory: str) -> list[str]:
    """The directories that do not exist, the outermost first."""
    found = []
    while not os.path.isdir(directory):
        found.append(directory)
        directory = os.path.dirname(directory)
    return found[::-1]


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def _sync(path: str) -> None:
    """Write the file system of `path` to the disk: one call for thousands of files."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _call("syncfs", path, fd)
    finally:
        os.close(fd)


def _exchange(one: str, other: str) -> None:
    """Exchange two names, so that `other` is never missing."""
    _call("renameat2", other, AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE)


def _call(name: str, path: str, *arguments: int | bytes) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), path)
