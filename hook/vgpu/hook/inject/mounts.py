"""The two ways to bring a mount into a container's mount namespace, by file descriptor.

Belongs here: the mechanism. Not here: which mounts a container gets. `NewMounts` (open_tree, fsopen, move_mount: Linux
5.2) clones on the host's side and attaches inside. `ClassicMounts` is the fallback: it opens the source again inside
the container's namespace, which before pivot_root still shows the host's tree, and goes on only if that is the very
file that was opened on the host. Both set flags with mount_setattr (5.12) if the kernel has it, else by remounting. A
child that has entered the namespace runs `attach`.
"""

from __future__ import annotations

import errno
import os
import stat

from vgpu.hook.linux import syscalls
from vgpu.hook.linux.rootfs import Rootfs

READ_ONLY_FILE = syscalls.MOUNT_ATTR_RDONLY | syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV
DEVICE = syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NOEXEC
DATA = syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV | syscalls.MOUNT_ATTR_NOEXEC
READ_ONLY_DATA = DATA | syscalls.MOUNT_ATTR_RDONLY

_MISSING = (errno.ENOSYS, errno.EPERM)  # EPERM: the answer of older seccomp profiles to an unknown call
_REMOUNT = syscalls.MS_REMOUNT | syscalls.MS_BIND


class Entry:
    """One entry of a tmpfs: a directory (`content` and `link` None), a file of `content`, or a symlink to `link`.

    A file is as long as its content, or `size` bytes with zeros behind it.
    """

    __slots__ = ("content", "link", "mode", "name", "size")

    def __init__(
        self, name: str, content: bytes | None = None, link: str | None = None, mode: int = 0o755, size: int = 0
    ) -> None:
        self.name = name
        self.content = content
        self.link = link
        self.mode = mode
        self.size = size


class Handle:
    """A mount before it is attached: `fd` (O_PATH source, or the detached mount) and its attributes inside."""

    __slots__ = ("attributes", "entries", "fd", "remount", "size", "source")

    def __init__(
        self, fd: int, attributes: int, source: str = "", entries: tuple[Entry, ...] = (), size: int = 0
    ) -> None:
        self.fd = fd
        self.attributes = attributes
        self.source = source
        self.entries = entries
        self.size = size
        self.remount = False


def choose() -> NewMounts | ClassicMounts:
    """The way of mounting that this kernel, under this seccomp filter, allows."""
    try:
        os.close(syscalls.open_tree(syscalls.AT_FDCWD, "/", syscalls.OPEN_TREE_CLONE))
        os.close(syscalls.fsopen("tmpfs"))
    except OSError as error:
        if error.errno not in _MISSING:
            raise
        return ClassicMounts()
    return NewMounts()


class NewMounts:
    """Linux 5.2 and later."""

    __slots__ = ()

    def bind(self, source: str, attributes: int) -> Handle:
        """A detached clone of the mount at `source`. Its fd is mounted, even if the path leads elsewhere later."""
        clone = syscalls.open_tree(syscalls.AT_FDCWD, source, syscalls.OPEN_TREE_CLONE)
        handle = Handle(clone, attributes, source)
        _set_attributes(handle)
        return handle

    def tmpfs(self, entries: tuple[Entry, ...], size: int, attributes: int) -> Handle:
        """A detached tmpfs of at most `size` bytes with `entries`."""
        context = syscalls.fsopen("tmpfs")
        try:
            for key, value in (("source", "vgpu"), *_limits(entries, size)):
                syscalls.fsconfig_set_string(context, key, value)
            syscalls.fsconfig_create(context)
            fd = syscalls.fsmount(context, attributes & ~syscalls.MOUNT_ATTR_RDONLY)
        finally:
            os.close(context)
        fill(fd, entries)
        handle = Handle(fd, attributes)
        _set_attributes(handle)
        return handle

    def attach(self, handle: Handle, target: int, path: str, root: Rootfs) -> int:
        """Attach the mount inside; returns an fd of its root."""
        syscalls.move_mount(handle.fd, target)
        if handle.remount:
            _remount(handle.fd, handle.attributes)
        return handle.fd


class ClassicMounts:
    """Before Linux 5.2, or where a seccomp filter hides the new calls. Every mount is made inside."""

    __slots__ = ()

    def bind(self, source: str, attributes: int) -> Handle:
        return Handle(os.open(source, os.O_PATH | os.O_CLOEXEC), attributes, source)

    def tmpfs(self, entries: tuple[Entry, ...], size: int, attributes: int) -> Handle:
        return Handle(-1, attributes, "", entries, size)

    def attach(self, handle: Handle, target: int, path: str, root: Rootfs) -> int:
        if handle.fd < 0:
            options = ",".join(f"{key}={value}" for key, value in _limits(handle.entries, handle.size))
            syscalls.mount("vgpu", _proc(target), "tmpfs", _flags(handle.attributes) & ~syscalls.MS_RDONLY, options)
        else:
            _bind_again(handle, target)
        directory = stat.S_ISDIR(
            os.fstat(target).st_mode
        )  # as in Rootfs: links to directories are followed, links to files are not
        mounted = root.open(path, os.O_PATH | (os.O_DIRECTORY if directory else os.O_NOFOLLOW))
        if handle.fd < 0:
            fill(mounted, handle.entries)
        syscalls.mount("", _proc(mounted), "", syscalls.MS_PRIVATE, "")
        _remount(mounted, handle.attributes)
        return mounted


def _limits(entries: tuple[Entry, ...], size: int) -> tuple[tuple[str, str], ...]:
    """Limits that leave room for the entries only: a tenant's files could leave a mapped file without pages."""
    return ("size", str(size)), ("nr_inodes", str(len(entries) + 1)), ("mode", "0755")


def detach(mounted: int) -> None:
    """Detach a mount, even while processes use it."""
    syscalls.umount2(_proc(mounted), syscalls.MNT_DETACH)


def fill(directory: int, entries: tuple[Entry, ...]) -> None:
    """Make `entries`, in their order, below `directory`."""
    for entry in entries:
        if entry.link is not None:
            os.symlink(entry.link, entry.name, dir_fd=directory)
        elif entry.content is None:
            os.mkdir(entry.name, entry.mode, dir_fd=directory)
        else:
            _fill_file(directory, entry, entry.content)


def _fill_file(directory: int, entry: Entry, content: bytes) -> None:
    fd = os.open(entry.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, entry.mode, dir_fd=directory)
    try:
        os.fchmod(fd, entry.mode)  # despite the umask
        os.write(fd, content)
        if entry.size:
            os.ftruncate(fd, entry.size)
    finally:
        os.close(fd)


def _set_attributes(handle: Handle) -> None:
    """Set flags and private propagation on the detached mount. Where that is impossible, `attach` remounts."""
    try:
        syscalls.mount_setattr(handle.fd, handle.attributes, syscalls.MS_PRIVATE)
    except OSError as error:
        if error.errno not in _MISSING:
            os.close(handle.fd)
            raise
        handle.remount = True


def _bind_again(handle: Handle, target: int) -> None:
    here = os.open(handle.source, os.O_PATH | os.O_CLOEXEC)
    try:
        if _identity(here) != _identity(handle.fd):
            reason = "is another file in the container's namespace; the hook must run before pivot_root"
            raise OSError(errno.ESTALE, f"{handle.source} {reason}")
        syscalls.mount(_proc(here), _proc(target), "", syscalls.MS_BIND)
    finally:
        os.close(here)


def _identity(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def _remount(fd: int, attributes: int) -> None:
    """Set the mount's flags with mount(2). Flags that are set already stay, because a user namespace may lock them."""
    kept = os.fstatvfs(fd).f_flag & (os.ST_RDONLY | os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC)
    syscalls.mount("", _proc(fd), "", _REMOUNT | _flags(attributes) | _kept(kept))


def _kept(flags: int) -> int:
    pairs = (
        (os.ST_RDONLY, syscalls.MS_RDONLY),
        (os.ST_NOSUID, syscalls.MS_NOSUID),
        (os.ST_NODEV, syscalls.MS_NODEV),
        (os.ST_NOEXEC, syscalls.MS_NOEXEC),
    )
    return sum(ms for st, ms in pairs if flags & st)


def _flags(attributes: int) -> int:
    """MOUNT_ATTR_* and MS_* have the same values for these four."""
    return attributes & 0xF


def _proc(fd: int) -> str:
    return f"/proc/self/fd/{fd}"
