"""A check of the kernel's decision on devices in a cgroup, which may depend on several owners' rules.

Belongs here: the check by a process of ours inside the cgroup. Not here: writing rules. It is for cgroups where systemd
or a cgroup above also restricts devices, because the kernel does not list those rules. access(2) makes the same check
as open(2) without opening the device, which could take seconds and wake a card up.
"""

from __future__ import annotations

import os
import stat
import time

from vgpu.config.errors import VgpuError
from vgpu.hook.linux import syscalls

TIMEOUT = 5.0
TIMEOUT_KILLED = 1.0
_PAUSE = 0.001
_FAILED = 255  # exit status: could not enter the cgroup
_MODES = {"r": os.R_OK, "w": os.W_OK}


def refused(cgroup_fd: int, directory: str, nodes: dict[tuple[int, int], str], access: str) -> list[tuple[int, int]]:
    """The devices in `nodes` (files of the host by device number) that a process in the cgroup may not open.

    A file with another device number is skipped. VgpuError when no process of ours can enter the cgroup.
    """
    mode = sum(_MODES.get(letter, 0) for letter in access)
    unchecked = [device for device, path in nodes.items() if _is(path, device)][: _FAILED - 1]
    found = []
    while unchecked:
        index = _first_refused(cgroup_fd, directory, [nodes[device] for device in unchecked], mode)
        if index is None:
            break
        found.append(unchecked[index])
        unchecked = unchecked[index + 1 :]
    return found


def _is(path: str, device: tuple[int, int]) -> bool:
    try:
        status = os.stat(path)
    except OSError:
        return False
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == os.makedev(*device)


def _first_refused(cgroup_fd: int, directory: str, paths: list[str], mode: int) -> int | None:
    """The index of the first path that cannot be accessed; None when all can."""
    pid = os.fork()
    if pid == 0:
        os._exit(_inside(cgroup_fd, paths, mode))
    code = os.waitstatus_to_exitcode(_wait(pid))
    if code < 0 or code == _FAILED:
        raise VgpuError(f"{directory}: device rules", expected="a process of ours in the cgroup",
                        found="none can enter it" if code > 0 else f"it was killed by signal {-code}",
                        do="check whether the cgroup still exists, is frozen or out of memory")  # fmt: skip
    return code - 1 if code else None


def _inside(cgroup_fd: int, paths: list[str], mode: int) -> int:
    """The child's exit status: 0, or the number of the first path that is refused, counted from 1."""
    try:
        syscalls.die_with_parent()
        fd = os.open("cgroup.procs", os.O_WRONLY | os.O_CLOEXEC, dir_fd=cgroup_fd)
        os.write(fd, b"0")
        for index, path in enumerate(paths):
            if not os.access(path, mode):
                return index + 1
    except OSError:
        return _FAILED
    return 0


def _wait(pid: int) -> int:
    """The child's status. A slow child is killed. In a frozen cgroup even that takes long; then the child is left."""
    for limit in (TIMEOUT, TIMEOUT_KILLED):
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return status
            time.sleep(_PAUSE)
        os.kill(pid, syscalls.SIGKILL)
    return syscalls.SIGKILL
