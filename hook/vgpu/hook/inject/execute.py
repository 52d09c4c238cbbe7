"""Executing a plan in a container's mount namespace, completely or not at all.

Belongs here: the order of execution. The hook first opens everything of the host. Then a child enters the namespace,
executes the operations and, on the first failure, undoes them. The parent never enters the namespace. Not here: what an
operation does (operations). The child runs as root beside a container that may be hostile: it imports nothing, parses
no JSON and opens no host path.
"""

from __future__ import annotations

import os

from vgpu.config.errors import VgpuError
from vgpu.hook.inject import mounts
from vgpu.hook.inject.mounts import ClassicMounts, Handle, NewMounts
from vgpu.hook.inject.operations import Inside, Operation
from vgpu.hook.linux import syscalls
from vgpu.hook.linux.rootfs import Rootfs

MAX_REPORT = 4096
ATTEMPTS = 3
FAILED, SOURCE_MAY_BE_GONE = 1, 2  #: exit statuses of the child


def open_rootfs(pid: int, path: str, proc: str = "/proc") -> Rootfs:
    """The root file system at `path` in the mount namespace of `pid`, before its pivot_root."""
    namespace = Rootfs(os.open(f"{proc}/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
    try:
        fd = namespace.open(path, os.O_PATH | os.O_DIRECTORY)
    except OSError as error:
        expected = "the container's root in its mount namespace, before pivot_root"
        raise VgpuError(path, expected=expected, found=error.strerror, do="run as prestart or createRuntime") from None
    finally:
        os.close(namespace.fd)
    return Rootfs(fd, (_mapped(f"{proc}/{pid}/uid_map"), _mapped(f"{proc}/{pid}/gid_map")))


def open_running(pid: int, proc: str = "/proc") -> Rootfs:
    """The root of a container that runs already, as process `pid`; for inspection only."""
    return Rootfs(os.open(f"{proc}/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))


def _mapped(path: str) -> int:
    """The host's id for the container's id 0, by the map of its user namespace."""
    with open(path, "rb") as stream:
        for line in stream:
            inside, outside, _ = line.split()
            if int(inside) == 0:
                return int(outside)
    raise VgpuError(path, expected="a mapping of 0", found="none", do="map the container's root")


def execute(operations: tuple[Operation, ...], pid: int, root: Rootfs, proc: str = "/proc") -> None:
    """Execute all operations in the mount namespace of `pid`. If one fails, VgpuError, and nothing is left behind.

    A package manager may replace a file of the host between its opening and its mounting; the kernel refuses to mount
    the old one with ENOENT. Then everything is opened and executed again, at most ATTEMPTS times.
    """
    how = mounts.choose()
    for attempt in range(1, ATTEMPTS + 1):
        status, report = _attempt(operations, pid, root, how, proc)
        if status == 0:
            return
        if status != SOURCE_MAY_BE_GONE or attempt == ATTEMPTS:
            raise VgpuError(report or f"the child in the namespace ended with status {status}")


def _attempt(
    operations: tuple[Operation, ...], pid: int, root: Rootfs, how: NewMounts | ClassicMounts, proc: str
) -> tuple[int, str]:
    """One execution; the child's exit status (negative: the signal that ended it) and its report."""
    handles: list[Handle | None] = []
    namespace = os.open(f"{proc}/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        for operation in operations:
            handles.append(_opened(operation, how))
        return _in_child(namespace, operations, handles, Inside(root, how))
    finally:
        os.close(namespace)
        for handle in handles:
            if handle is not None and handle.fd >= 0:
                os.close(handle.fd)


def _opened(operation: Operation, how: NewMounts | ClassicMounts) -> Handle | None:
    try:
        return operation.open(how)
    except OSError as error:
        raise VgpuError(operation.describe(), found=error.strerror) from error


def _in_child(
    namespace: int, operations: tuple[Operation, ...], handles: list[Handle | None], inside: Inside
) -> tuple[int, str]:
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os._exit(_child(namespace, operations, handles, inside, write_end))
    os.close(write_end)
    try:
        report = os.read(read_end, MAX_REPORT)
    finally:
        os.close(read_end)
        status = os.waitpid(child, 0)[1]
    return os.waitstatus_to_exitcode(status), report.decode("utf-8", "replace")


def _child(
    namespace: int, operations: tuple[Operation, ...], handles: list[Handle | None], inside: Inside, report: int
) -> int:
    operation = None
    try:
        syscalls.die_with_parent()
        syscalls.setns(namespace, syscalls.CLONE_NEWNS)
        if inside.root.owner != (0, 0):
            syscalls.create_as(*inside.root.owner)
        for operation, handle in zip(operations, handles):
            operation.execute(inside, handle)
    except BaseException as error:  # reported by pipe and exit status; nothing may escape into the parent's stack
        step = operation.describe() if operation else "entering the mount namespace"
        left = "".join(f"; not undone: {item}" for item in inside.take_back())
        cause = (error.strerror if isinstance(error, OSError) else "") or f"{type(error).__name__} {error}"
        os.write(report, f"{step}: {cause}{left}".encode("utf-8", "replace")[:MAX_REPORT])
        return SOURCE_MAY_BE_GONE if isinstance(error, FileNotFoundError) and not left else FAILED
    return 0
