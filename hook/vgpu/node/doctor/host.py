"""Checks of the host's kernel and cgroups, as far as the hook needs them.

Belongs here: checks of what neither vgpu nor a runtime installs. Does not belong here: the driver and vgpu's own files
(vgpu.node.doctor.node), and the runtimes (vgpu.node.doctor.runtimes).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from vgpu.config import paths, records
from vgpu.hook.inject import execute, overlay
from vgpu.hook.linux import bpf, cgroup, syscalls
from vgpu.hook.linux.cgroup import Mount
from vgpu.node.doctor.findings import FAILURE, OK, WARNING, CheckContext, Finding

#: System calls for which the hook has a fallback, and the first Linux version that has them.
CALLS = {
    "openat2": (syscalls.SYS_openat2, "5.6"),
    "open_tree": (syscalls.SYS_open_tree, "5.2"),
    "move_mount": (syscalls.SYS_move_mount, "5.2"),
    "fsopen": (syscalls.SYS_fsopen, "5.2"),
    "mount_setattr": (syscalls.SYS_mount_setattr, "5.12"),
}
_ALLOW = b"\xb7\x00\x00\x00\x01\x00\x00\x00" + b"\x95\x00\x00\x00\x00\x00\x00\x00"  #: r0 = 1; exit


def cgroups(context: CheckContext) -> Iterator[Finding]:
    """The version and the manager of the cgroups, and whether device rules can be written."""
    path = f"{context.proc}/self/mountinfo"
    mounts = cgroup.parse_mounts(os.fsdecode(records.read_bounded(path, cgroup.MAX_MOUNTINFO)))
    devices = [mount for mount in mounts if mount.fstype == "cgroup" and "devices" in mount.options]
    unified = [mount for mount in mounts if mount.fstype == "cgroup2"]
    if not devices and not unified:
        expected = "cgroup v1's devices hierarchy, or cgroup v2"
        yield Finding("cgroups", FAILURE, "no hierarchy with devices", expected, "mount one of them")
        return
    version = "v1" if devices and not unified else "v1 and v2 (hybrid)" if devices else "v2"
    chosen = (devices or unified)[-1]
    yield from _writable(context, chosen, f"{version}, {_manager(context)}")
    if not devices:
        yield from _bpf(context)


def _writable(context: CheckContext, mount: Mount, text: str) -> Iterator[Finding]:
    point = context.path(mount.point)
    if os.access(point, os.W_OK):
        yield Finding("cgroups", OK, text)
    else:
        do = "run as root, in the host's own mount namespace"
        yield Finding("cgroups", FAILURE, f"{text}; {mount.point} cannot be written", "a writable hierarchy", do)


def _manager(context: CheckContext) -> str:
    """The likely cgroup manager, by whether systemd runs. A runtime may be configured to use the other one."""
    return "systemd" if os.path.isdir(context.path("/run/systemd/system")) else "no systemd: cgroupfs"


def _bpf(context: CheckContext) -> Iterator[Finding]:
    """Load a device program without attaching it. The kernel frees the program when its descriptor is closed."""
    if not context.real:
        return
    try:
        os.close(bpf.prog_load(_ALLOW, "vgpu_doctor"))
    except OSError as error:
        do = "run as root, on a kernel with CONFIG_CGROUP_BPF"
        yield Finding("device programs", FAILURE, str(error), "BPF_PROG_TYPE_CGROUP_DEVICE to load", do)
    else:
        yield Finding("device programs", OK, "BPF_PROG_TYPE_CGROUP_DEVICE loads")


def kernel(context: CheckContext) -> Iterator[Finding]:
    release = os.uname().release
    missing = [f"{name} ({since})" for name, (number, since) in CALLS.items() if not has_call(name, number)]
    if missing and context.real:
        found = f"Linux {release} without {', '.join(missing)}"
        do = "no action is needed: the hook has a fallback for each of these calls"
        yield Finding("kernel", WARNING, found, "all calls", do)
    else:
        yield Finding("kernel", OK, f"Linux {release}")


def leases(context: CheckContext) -> Iterator[Finding]:
    """Whether processes may take leases on files, and whether those of containers reach the node's own files.

    This check reads fs.leases-enable and never sets it: Samba and NFS servers use leases.
    """
    path = f"{context.proc}/sys/fs/leases-enable"
    try:
        enabled = records.read_bounded(path, 64).decode("ascii", "replace").strip()
    except FileNotFoundError:
        yield Finding("leases", OK, "this kernel has no leases")
        return
    if enabled == "0":
        yield Finding("leases", OK, "fs.leases-enable is 0: no process can take a lease on a file")
        return
    text = f"fs.leases-enable is {enabled}: processes may take leases on files"
    notes = _without_overlay(context)
    for note in notes:
        do = "let the container runtime's host have overlayfs, or set fs.leases-enable to 0 if nothing here uses leases"
        expected = "the driver's files to reach containers through an overlay"
        yield Finding("leases", WARNING, f"{text}; {note}", expected, do)
    if not notes:
        yield Finding("leases", OK, f"{text}; those of containers do not reach the node's own files")


def _without_overlay(context: CheckContext) -> list[str]:
    """Which of the node's files no overlay can have. The overlay is mounted nowhere, and gone when its fd is closed.

    Without the new mount calls only the hook's child can tell: hook.log has the same notes.
    """
    found = context.inventory()
    if not context.real or found is None:
        return []
    files = [library.path for library in found.libraries] + [binary.path for binary in found.binaries]
    over = overlay.over(execute.way_of_mounting(), files, paths.staging(context.settings.run_dir))
    over.close()
    return over.notes


def has_call(name: str, number: int) -> bool:
    """Whether the running kernel has a system call. With invalid arguments, such a call never fails with ENOSYS."""
    try:
        syscalls.syscall(name, number, -1, None, -1, None, 0)
    except OSError as error:
        return error.errno != errno.ENOSYS
    return True
