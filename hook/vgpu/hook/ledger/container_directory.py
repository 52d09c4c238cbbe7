"""The directory of one container's records: it appears with its claim in it, and goes as a whole.

Belongs here: making and removing it, so that a hook that is killed leaves nothing that looks like a container. Not
here: what is in it (ledger). The caller holds the ledger's lock. So whatever carries a name that only the holder uses
was left by a process that has died, and the next start or stop removes it.
"""

from __future__ import annotations

import os

from vgpu.config import paths
from vgpu.config.errors import VgpuError


def prepare(run_dir: str) -> str:
    """A new empty directory for the records of a container that starts."""
    path = paths.new_container(run_dir)
    _remove(path)
    os.makedirs(path, mode=0o700)
    return path


def publish(run_dir: str, container: str) -> None:
    """Give the prepared directory, which now has the container's claim, its name."""
    os.rename(paths.new_container(run_dir), paths.container(run_dir, container))


def remove(run_dir: str, container: str) -> bool:
    """Remove a container's directory. Only vgpu writes there, and only plain files. False when there is none."""
    ended = paths.ended_container(run_dir)
    try:
        _remove(ended)
        os.rename(paths.container(run_dir, container), ended)
    except FileNotFoundError:
        return False
    except OSError as error:
        path = paths.container(run_dir, container)
        raise VgpuError(path, expected="a claim to remove", found=error.strerror) from error
    _remove(ended)
    return True


def clear(run_dir: str, state_dir: str) -> None:
    """Remove what a process that was killed has left: these directories, and temporary files of records."""
    _remove(paths.new_container(run_dir))
    _remove(paths.ended_container(run_dir))
    for directory in (run_dir, paths.grants(state_dir)):
        left = paths.ledger_temporary(directory)
        if os.path.exists(left):
            os.unlink(left)


def _remove(directory: str) -> None:
    try:
        for name in os.listdir(directory):
            os.unlink(f"{directory}/{name}")
        os.rmdir(directory)
    except FileNotFoundError:
        return
    except OSError as error:
        raise VgpuError(directory, expected="a claim to remove", found=error.strerror) from error
