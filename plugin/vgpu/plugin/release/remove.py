"""Takes everything of vgpu off a host: the CDI specification, the releases, records and settings.

Belongs here: the order, and the refusal while containers have a share. First the specification goes, so that no
container starts with a share from then on; when no share is left, the rest goes. A refused removal changes nothing.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable

from vgpu.config.errors import VgpuError
from vgpu.config.settings import COMPILED_PATH, Settings
from vgpu.hook.ledger.ledger import Ledger
from vgpu.plugin.release import cdi, install

LOOK = 5.0  #: seconds between two looks at the containers
#: In the name of a directory that is ours alone. One of any other name may have files of others, and stays.
OURS = "vgpu"
#: kubelet makes them for the pod where they are missing, and does not say so. They go if nothing is in them.
OF_KUBELET = (*cdi.DIRECTORIES, "/run/nvidia")
MAX_LINKS = 40  #: as the kernel's


def shares(host: str, settings: Settings) -> list[str]:
    """The containers with a share or a card that live, by their names or ids."""
    run, state = (host + resolved(host, path) for path in (settings.run_dir, settings.state_dir))
    there = Settings({"paths.run": run, "paths.state": state})
    ledger = Ledger(there, [])
    return sorted(claim.name or claim.container for claim in ledger.claims() if ledger.lives(claim))


def remove(
    host: str, directory: str, cdi_directories: list[str], settings: Settings, wait: Callable[[list[str]], bool]
) -> list[str]:
    """Remove everything. Returns the paths that are gone. `wait` is told which containers are left; False gives up.

    Raises VgpuError if containers are left, and OSError. Then the specification is as it was.
    """
    _none_left(host, settings, wait)
    gone = cdi.remove(host, [resolved(host, path) for path in cdi_directories])
    try:
        _none_left(host, settings, wait)
    except VgpuError:
        for path in gone:  # a container was about to start meanwhile
            cdi.write(host, os.path.dirname(path), f"{directory}/{install.CURRENT}/{install.PROGRAMS}")
        raise
    releases = host + resolved(host, directory)
    if os.path.isdir(releases):
        install.remove_all(releases)
        gone.append(directory)
    for path in dict.fromkeys((settings.run_dir, settings.state_dir, os.path.dirname(COMPILED_PATH))):
        place = host + resolved(host, path)
        if OURS in os.path.basename(path) and os.path.isdir(place):
            _clear(place)
            gone.append(path)
    for path in OF_KUBELET:
        _remove_empty(host + resolved(host, path))
    return gone


def resolved(host: str, path: str) -> str:
    """`path` without symbolic links. An absolute one, as /var/run, leads to the host's file, not to the container's."""
    done, left, links = "", path.split("/"), 0
    while left:
        name = left.pop(0)
        found = os.path.normpath(f"{done}/{name}")
        if name == ".." or not os.path.islink(host + found):
            done = found.rstrip("/")
            continue
        target = os.readlink(host + found)
        done, left, links = "" if target.startswith("/") else done, [*target.split("/"), *left], links + 1
        if links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    return done


def _clear(directory: str) -> None:
    """Remove a directory with all in it. One that is mounted stays, empty."""
    for entry in os.scandir(directory):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)
    try:
        os.rmdir(directory)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise


def _remove_empty(directory: str) -> None:
    try:
        os.rmdir(directory)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EBUSY):
            raise


def _none_left(host: str, settings: Settings, wait: Callable[[list[str]], bool]) -> None:
    while True:
        left = shares(host, settings)
        if not left:
            return
        if not wait(left):
            raise VgpuError("containers with a share", expected="none", found=", ".join(left[:10]),
                            do="delete their pods, or drain the node")  # fmt: skip
        time.sleep(LOOK)
