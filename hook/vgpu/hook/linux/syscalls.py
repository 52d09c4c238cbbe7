"""System calls that Python has no function for: constants, structures and prototypes as in the kernel's headers.

Belongs here: all structures and calls that mounts, namespaces and path resolution need, and one error: OSError whose
text is the call, such as `move_mount(5, '', 7, '', 0x44): Invalid argument`. Not here: bpf(2) (bpf), or any policy.
Numbers from 424 on are the same on every architecture that Python runs on. The older calls go through the C library.
"""

from __future__ import annotations

import errno
import os

from vgpu.hook.linux import libc
from vgpu.hook.linux.libc import byref, sizeof

AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000
AT_SYMLINK_NOFOLLOW = 0x100

OPEN_TREE_CLONE = 0x1
OPEN_TREE_CLOEXEC = os.O_CLOEXEC
MOVE_MOUNT_F_EMPTY_PATH = 0x4
MOVE_MOUNT_T_EMPTY_PATH = 0x40
FSOPEN_CLOEXEC = 0x1
FSCONFIG_SET_STRING = 1
FSCONFIG_CMD_CREATE = 6
FSMOUNT_CLOEXEC = 0x1

MOUNT_ATTR_RDONLY = 0x1
MOUNT_ATTR_NOSUID = 0x2
MOUNT_ATTR_NODEV = 0x4
MOUNT_ATTR_NOEXEC = 0x8

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_PRIVATE = 1 << 18
MNT_DETACH = 0x2

RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_IN_ROOT = 0x10

STATX_MNT_ID = 0x1000

CLONE_NEWNS = 0x00020000
TMPFS_MAGIC = 0x01021994
PR_SET_PDEATHSIG = 1
SIGKILL = 9

SYS_open_tree = 428
SYS_move_mount = 429
SYS_fsopen = 430
SYS_fsconfig = 431
SYS_fsmount = 432
SYS_openat2 = 437
SYS_mount_setattr = 442

_syscall = libc.function("syscall")
_syscall.restype = libc.c_long
_setns = libc.function("setns", libc.c_int, libc.c_int)
_unshare = libc.function("unshare", libc.c_int)
_mount = libc.function("mount", libc.c_char_p, libc.c_char_p, libc.c_char_p, libc.c_ulong, libc.c_char_p)
_umount2 = libc.function("umount2", libc.c_char_p, libc.c_int)
_prctl = libc.function("prctl", libc.c_int, *[libc.c_ulong] * 4)
_setfsuid, _setfsgid, _alarm = map(libc.function, ("setfsuid", "setfsgid", "alarm"))
_fstatfs = libc.function("fstatfs")
_statx: libc.Function | None
try:
    _statx = libc.function("statx")  # glibc 2.28
except OSError:
    _statx = None


class open_how(libc.Structure):
    _fields_ = (("flags", libc.c_uint64), ("mode", libc.c_uint64), ("resolve", libc.c_uint64))


class mount_attr(libc.Structure):
    _fields_ = (
        ("attr_set", libc.c_uint64),
        ("attr_clr", libc.c_uint64),
        ("propagation", libc.c_uint64),
        ("userns_fd", libc.c_uint64),
    )


def _text(argument: object) -> str:
    if isinstance(argument, bytes):
        return repr(os.fsdecode(argument))
    if isinstance(argument, int):
        return str(argument) if -4096 < argument < 4096 else hex(argument)
    return "0" if argument is None else "..."


def _fail(name: str, arguments: tuple[object, ...]) -> OSError:
    number = libc.get_errno()
    return OSError(number, f"{name}({', '.join(map(_text, arguments))}): {os.strerror(number)}")


def syscall(name: str, number: int, *arguments: object) -> int:
    """syscall(2) with ints, bytes (char *), None (NULL) and instances of C types; OSError whose text is the call."""
    converted = [libc.c_long(item) if isinstance(item, int) else item for item in arguments]
    result = _syscall(libc.c_long(number), *converted)
    if result < 0:
        raise _fail(name, arguments)
    return int(result)


def openat2(dirfd: int, path: str, flags: int, resolve: int, mode: int = 0) -> int:
    """Linux 5.6."""
    how = open_how(flags | os.O_CLOEXEC, mode, resolve)
    return syscall("openat2", SYS_openat2, dirfd, os.fsencode(path), byref(how), sizeof(how))


def open_tree(dirfd: int, path: str, flags: int) -> int:
    """Linux 5.2."""
    return syscall("open_tree", SYS_open_tree, dirfd, os.fsencode(path), flags | OPEN_TREE_CLOEXEC)


def move_mount(from_fd: int, to_fd: int) -> None:
    """Attach the detached mount `from_fd` on the file of `to_fd`. Linux 5.2."""
    flags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH
    syscall("move_mount", SYS_move_mount, from_fd, b"", to_fd, b"", flags)


def mount_setattr(fd: int, attr_set: int, propagation: int = 0) -> None:
    """Set flags of the mount whose root is `fd`. Linux 5.12."""
    attr = mount_attr(attr_set, 0, propagation, 0)
    size = sizeof(attr)
    syscall("mount_setattr", SYS_mount_setattr, fd, b"", AT_EMPTY_PATH, byref(attr), size)


def fsopen(filesystem: str) -> int:
    """Linux 5.2."""
    return syscall("fsopen", SYS_fsopen, os.fsencode(filesystem), FSOPEN_CLOEXEC)


def fsconfig_set_string(fd: int, key: str, value: str) -> None:
    syscall("fsconfig", SYS_fsconfig, fd, FSCONFIG_SET_STRING, os.fsencode(key), os.fsencode(value), 0)


def fsconfig_create(fd: int) -> None:
    syscall("fsconfig", SYS_fsconfig, fd, FSCONFIG_CMD_CREATE, None, None, 0)


def fsmount(fd: int, attributes: int) -> int:
    """The detached mount of a configured file system. Its fd works as a directory fd at once."""
    return syscall("fsmount", SYS_fsmount, fd, FSMOUNT_CLOEXEC, attributes)


def setns(fd: int, nstype: int) -> None:
    if _setns(fd, nstype) != 0:
        raise _fail("setns", (fd, nstype))


def unshare(flags: int) -> None:
    if _unshare(flags) != 0:
        raise _fail("unshare", (flags,))


def mount(source: str, target: str, filesystem: str, flags: int, data: str = "") -> None:
    """mount(2). `target` is a /proc/self/fd path wherever the container could change the real one."""
    arguments = tuple(os.fsencode(item) for item in (source, target, filesystem))
    if _mount(*arguments, flags, os.fsencode(data)) != 0:
        raise _fail("mount", (*arguments, flags, os.fsencode(data)))


def umount2(target: str, flags: int) -> None:
    if _umount2(os.fsencode(target), flags) != 0:
        raise _fail("umount2", (os.fsencode(target), flags))


def create_as(uid: int, gid: int) -> None:
    """Create files, and check the permission to create them, as uid and gid; other capabilities stay. setfsuid(2)
    reports no error, so a second call checks it."""
    _setfsgid(gid)
    _setfsuid(uid)
    if (_setfsuid(-1), _setfsgid(-1)) != (uid, gid):
        raise OSError(errno.EPERM, f"setfsuid({uid}), setfsgid({gid}): not taken")


class statfs_buffer(libc.Structure):
    """struct statfs as far as it is needed; the kernel writes 120 bytes."""

    _fields_ = (("f_type", libc.c_long), ("_behind", libc.c_uint8 * 248))


def is_tmpfs(fd: int) -> bool:
    """Whether the file of `fd` lies on a tmpfs. A file system that a process serves (FUSE) may let this wait."""
    found = statfs_buffer()
    if _fstatfs(fd, byref(found)) != 0:
        raise _fail("fstatfs", (fd,))
    return int(found.f_type) == TMPFS_MAGIC


class statx_buffer(libc.Structure):
    """struct statx as far as it is needed; the kernel writes 256 bytes."""

    _fields_ = (
        ("stx_mask", libc.c_uint32),
        ("_before", libc.c_uint8 * 140),
        ("stx_mnt_id", libc.c_uint64),
        ("_behind", libc.c_uint8 * 104),
    )


def mount_id(fd: int) -> int:
    """The id, as in mountinfo, of the mount through which `fd` was opened. Before Linux 5.8 by fdinfo."""
    found = statx_buffer()
    if (
        _statx is not None
        and _statx(fd, b"", AT_EMPTY_PATH, STATX_MNT_ID, byref(found)) == 0
        and found.stx_mask & STATX_MNT_ID
    ):
        return int(found.stx_mnt_id)
    with open(f"/proc/self/fdinfo/{fd}", "rb") as stream:
        return int(stream.read().partition(b"mnt_id:")[2].split()[0])


def end_after(seconds: int) -> None:
    """SIGALRM ends this process after so many seconds, even while it waits in a file system that does not answer."""
    _alarm(seconds)


def die_with_parent() -> None:
    """SIGKILL for this process when its parent ends. A runtime's timeout kills only the hook, not its children."""
    if _prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) != 0:
        raise _fail("prctl", (PR_SET_PDEATHSIG, SIGKILL))
