"""The two ways to bring a mount into a container's mount namespace, by file descriptor.

Belongs here: the mechanism. Not here: which mounts a container gets. `NewMounts` (open_tree, fsopen, move_mount: Linux
5.2) clones on the host's side and attaches inside. `ClassicMounts` is the fallback: it opens the source again inside
the container's namespace, which before pivot_root still shows the host's tree, and goes on only if that is the very
file that was opened on the host. Both set flags with mount_setattr (5.12) if the kernel has it. Without it a mount is
first made complete in a place of the host that no container sees (`Staging`), because mount(2) sets flags only after
mounting, and a path inside the container may then lead to another mount. A child that has entered the namespace runs
`stage` and `attach`.
"""

from __future__ import annotations

import errno
import os
import stat

from vgpu.hook.linux import syscalls
from vgpu.hook.linux.cgroup import unescape
from vgpu.hook.linux.mountinfo import MountTable
from vgpu.hook.linux.selinux import UNLABELLED, Labels

READ_ONLY_FILE = syscalls.MOUNT_ATTR_RDONLY | syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV
DEVICE = syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NOEXEC
DATA = syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV | syscalls.MOUNT_ATTR_NOEXEC
READ_ONLY_DATA = DATA | syscalls.MOUNT_ATTR_RDONLY

CONTEXT = "context"  #: the mount option of SELinux

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
    """A mount before it is attached: `fd` (O_PATH source, or the detached mount) and its attributes inside.

    `incomplete`: it has to be staged before it is attached. `staged` is then an fd of the mount in its staging place.
    `regular`: whoever made it has found that `fd` is a regular file.
    """

    __slots__ = ("attributes", "entries", "fd", "incomplete", "regular", "size", "source", "staged")

    def __init__(
        self, fd: int, attributes: int, source: str = "", entries: tuple[Entry, ...] = (), size: int = 0
    ) -> None:
        self.fd = fd
        self.attributes = attributes
        self.source = source
        self.entries = entries
        self.size = size
        self.incomplete = False
        self.regular = False
        self.staged = -1

    def is_directory(self) -> bool:
        return self.fd < 0 or stat.S_ISDIR(os.fstat(self.fd).st_mode)


def choose(labels: Labels = UNLABELLED) -> NewMounts | ClassicMounts:
    """The way of mounting that this kernel, under this seccomp filter, allows."""
    try:
        os.close(syscalls.open_tree(syscalls.AT_FDCWD, "/", 0))  # no clone: the kernel is slow to end one
        os.close(syscalls.fsopen("tmpfs"))
    except OSError as error:
        if error.errno not in _MISSING:
            raise
        return ClassicMounts(labels)
    return NewMounts(labels)


class NewMounts:
    """Linux 5.2 and later. Before 5.12 a mount is incomplete: mount(2) sets its flags, in its staging place."""

    __slots__ = ("labels",)

    def __init__(self, labels: Labels) -> None:
        self.labels = labels

    def bind(self, source: str, attributes: int) -> Handle:
        """A detached clone of the mount at `source`. Its fd is mounted, even if the path leads elsewhere later."""
        clone = syscalls.open_tree(syscalls.AT_FDCWD, source, syscalls.OPEN_TREE_CLONE)
        handle = Handle(clone, attributes, source)
        set_attributes(handle)
        return handle

    def tmpfs(self, entries: tuple[Entry, ...], size: int, attributes: int) -> Handle:
        """A detached tmpfs of at most `size` bytes with `entries`."""
        context = syscalls.fsopen("tmpfs")
        try:
            for key, value in (("source", "vgpu"), *_limits(entries, size), *label(self.labels, attributes)):
                syscalls.fsconfig_set_string(context, key, value)
            syscalls.fsconfig_create(context)
            fd = syscalls.fsmount(context, attributes & ~syscalls.MOUNT_ATTR_RDONLY)
        finally:
            os.close(context)
        handle = Handle(fd, attributes)
        try:
            fill(fd, entries)
        except OSError:
            os.close(fd)
            raise
        set_attributes(handle)
        return handle

    def stage(self, handle: Handle, place: int) -> None:
        syscalls.move_mount(handle.fd, place)

    def attach(self, handle: Handle, target: int) -> None:
        """Attach the complete mount to the file or directory of `target`."""
        syscalls.move_mount(handle.fd, target)


class ClassicMounts:
    """Before Linux 5.2, or where a seccomp filter hides the new calls. Every mount is made inside, and incomplete."""

    __slots__ = ("labels",)

    def __init__(self, labels: Labels) -> None:
        self.labels = labels

    def bind(self, source: str, attributes: int) -> Handle:
        return _incomplete(Handle(os.open(source, os.O_PATH | os.O_CLOEXEC), attributes, source))

    def tmpfs(self, entries: tuple[Entry, ...], size: int, attributes: int) -> Handle:
        return _incomplete(Handle(-1, attributes, "", entries, size))

    def stage(self, handle: Handle, place: int) -> None:
        if handle.fd < 0:
            pairs = (*_limits(handle.entries, handle.size), *label(self.labels, handle.attributes))
            options = ",".join(f'{key}="{value}"' if key == CONTEXT else f"{key}={value}" for key, value in pairs)
            syscalls.mount("vgpu", _proc(place), "tmpfs", _flags(handle.attributes) & ~syscalls.MS_RDONLY, options)
        else:
            _bind_again(handle, place)

    def attach(self, handle: Handle, target: int) -> None:
        """Bind the staged mount, with the flags that it has, to the file of `target`. Nothing is resolved."""
        syscalls.mount(_proc(handle.staged), _proc(target), "", syscalls.MS_BIND)


class Staging:
    """A tmpfs on the host's directory `path`, in the container's namespace only, where incomplete mounts are completed.

    No container sees it: pivot_root takes the host's tree away, and `end` detaches it before that. `table` is the
    namespace's: where mounts on the directory would appear in the host's namespace as well, its mount is made private.
    """

    __slots__ = ("_count", "_fd")

    def __init__(self, path: str, places: int, table: MountTable | None) -> None:
        before = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        mount = syscalls.mount_id(before)
        os.close(before)
        if table and table.propagates(mount):
            syscalls.mount("", unescape(table.place(mount)), "", syscalls.MS_PRIVATE, "")
        options = f"size=4k,nr_inodes={places + 1},mode=0700"
        syscalls.mount("vgpu", path, "tmpfs", _flags(DATA), options)
        self._count = 0
        try:
            self._fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            syscalls.umount2(path, syscalls.MNT_DETACH)
            raise

    def complete(self, handle: Handle, how: NewMounts | ClassicMounts) -> None:
        """Make the mount complete: with its content, its flags and private propagation."""
        name = str(self._count)
        self._count += 1
        if handle.is_directory():
            os.mkdir(name, 0o700, dir_fd=self._fd)
        else:
            os.mknod(name, 0o600, dir_fd=self._fd)
        place = os.open(name, os.O_PATH | os.O_CLOEXEC, dir_fd=self._fd)
        try:
            how.stage(handle, place)
        finally:
            os.close(place)
        handle.staged = os.open(name, os.O_PATH | os.O_CLOEXEC, dir_fd=self._fd)
        if handle.fd < 0:
            fill(handle.staged, handle.entries)
        syscalls.mount("", _proc(handle.staged), "", syscalls.MS_PRIVATE, "")
        _remount(handle.staged, handle.attributes)

    def end(self) -> None:
        """Detach it and what is left in it."""
        syscalls.umount2(_proc(self._fd), syscalls.MNT_DETACH)
        os.close(self._fd)


def _limits(entries: tuple[Entry, ...], size: int) -> tuple[tuple[str, str], ...]:
    """Limits that leave room for the entries only: a tenant's files could leave a mapped file without pages."""
    return ("size", str(size)), ("nr_inodes", str(len(entries) + 1)), ("mode", "0755")


def label(labels: Labels, attributes: int) -> tuple[tuple[str, str], ...]:
    """The option that gives a mount its label. mount(2) wants the value in quotes, because it may have commas."""
    chosen = labels.read_only if attributes & syscalls.MOUNT_ATTR_RDONLY else labels.writable
    return ((CONTEXT, chosen),) if chosen else ()


def detach(target: int) -> None:
    """Detach the uppermost mount on the file of `target`, even while processes use it."""
    syscalls.umount2(_proc(target), syscalls.MNT_DETACH)


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
        if content:
            os.write(fd, content)
        if entry.size:
            os.ftruncate(fd, entry.size)
    finally:
        os.close(fd)


def set_attributes(handle: Handle) -> None:
    """Set flags and private propagation on the detached mount. Where that is impossible, it is incomplete."""
    try:
        syscalls.mount_setattr(handle.fd, handle.attributes, syscalls.MS_PRIVATE)
    except OSError as error:
        if error.errno not in _MISSING:
            os.close(handle.fd)
            raise
        _incomplete(handle)


def _incomplete(handle: Handle) -> Handle:
    handle.incomplete = True
    return handle


def _bind_again(handle: Handle, place: int) -> None:
    here = os.open(handle.source, os.O_PATH | os.O_CLOEXEC)
    try:
        if _identity(here) != _identity(handle.fd):
            reason = "is another file in the container's namespace; the hook must run before pivot_root"
            raise OSError(errno.ESTALE, f"{handle.source} {reason}")
        syscalls.mount(_proc(here), _proc(place), "", syscalls.MS_BIND)
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
