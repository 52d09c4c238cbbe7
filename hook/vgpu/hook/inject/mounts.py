"""Bringing a mount into a container's mount namespace, by file descriptor.

Belongs here: the mechanism of Linux 5.2 (open_tree, fsopen, move_mount), which clones on the host's side and attaches
inside. Not here: which mounts a container gets, and the fallback for older kernels (classic_mounts). mount_setattr
(5.12) sets a mount's flags before it is attached. Without it a mount is *incomplete*, and is first made complete in a
place of the host that no container sees (classic_mounts.Staging). A child that has entered the namespace runs `stage`
and `attach`.
"""

from __future__ import annotations

import errno
import os
import stat

from vgpu.hook.linux import procfs, syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from vgpu.hook.linux.selinux import Labels

READ_ONLY_FILE = syscalls.MOUNT_ATTR_RDONLY | syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV
DEVICE = syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NOEXEC
DATA = syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV | syscalls.MOUNT_ATTR_NOEXEC
READ_ONLY_DATA = DATA | syscalls.MOUNT_ATTR_RDONLY

CONTEXT = "context"  #: the mount option of SELinux

_MISSING = (errno.ENOSYS, errno.EPERM)  # EPERM: the answer of older seccomp profiles to an unknown call


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


def has_new_calls() -> bool:
    """Whether this kernel, under this seccomp filter, has the calls that NewMounts makes."""
    try:
        os.close(syscalls.open_tree(syscalls.AT_FDCWD, "/", 0))  # no clone: the kernel is slow to end one
        os.close(syscalls.fsopen("tmpfs"))
    except OSError as error:
        if error.errno not in _MISSING:
            raise
        return False
    return True


class Mounts:
    """A way of mounting. `layered` mounts a file of the host so that no process of the container can reach its inode,
    where there is an overlay of it; `notes` says where there is none. `close` closes what was opened on the host.
    """

    __slots__ = ("labels",)
    notes: list[str]

    def __init__(self, labels: Labels | None = None) -> None:
        self.labels = labels

    def bind(self, source: str, attributes: int) -> Handle:
        raise NotImplementedError

    def tmpfs(self, entries: tuple[Entry, ...], size: int, attributes: int) -> Handle:
        raise NotImplementedError

    def layered(self, path: str, attributes: int) -> Handle:
        return self.bind(path, attributes)

    def of_process(self, pid: int, start_time: int, path: str, attributes: int) -> Handle:
        """The mount at `path` in the mount namespace of the process. Only the calls of Linux 5.2 can bring it."""
        del pid, start_time, attributes
        raise OSError(errno.ENOSYS, "containers that share a claim need Linux 5.2", path)

    def stage(self, handle: Handle, place: int) -> None:
        raise NotImplementedError

    def attach(self, handle: Handle, target: int) -> None:
        raise NotImplementedError

    def prepare(self) -> None:
        """In the child, before it enters the container's namespace."""

    def enter(self) -> None:
        """In the child, when it has entered the container's namespace."""

    def leave(self) -> None:
        """In the child, at its end."""

    def close(self) -> None:
        raise NotImplementedError


class NewMounts(Mounts):
    """Linux 5.2 and later. Before 5.12 a mount is incomplete: mount(2) sets its flags, in its staging place."""

    __slots__ = ()

    def bind(self, source: str, attributes: int) -> Handle:
        """A detached clone of the mount at `source`. Its fd is mounted, even if the path leads elsewhere later."""
        clone = syscalls.open_tree(syscalls.AT_FDCWD, source, syscalls.OPEN_TREE_CLONE)
        handle = Handle(clone, attributes, source)
        set_attributes(handle)
        return handle

    def of_process(self, pid: int, start_time: int, path: str, attributes: int) -> Handle:
        """A detached clone, made within the process's namespace: the kernel clones no mount of another one."""
        own, there, root = -1, -1, -1
        try:
            own = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
            root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            there = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
            if procfs.start_time(pid) != start_time:
                raise OSError(errno.ESRCH, "the container whose usage region it shares has ended", path)
            syscalls.setns(there, syscalls.CLONE_NEWNS)
            try:
                clone = syscalls.open_tree(syscalls.AT_FDCWD, path, syscalls.OPEN_TREE_CLONE)
            finally:
                syscalls.setns(own, syscalls.CLONE_NEWNS)
                os.fchdir(root)
                os.chroot(".")
        finally:
            for fd in (own, there, root):
                if fd >= 0:
                    os.close(fd)
        if not syscalls.is_tmpfs(clone):  # root in that container may have mounted something else there
            os.close(clone)
            raise OSError(errno.EINVAL, "the usage region that it shares is on no tmpfs", path)
        handle = Handle(clone, attributes, path)
        set_attributes(handle)
        return handle

    def tmpfs(self, entries: tuple[Entry, ...], size: int, attributes: int) -> Handle:
        """A detached tmpfs of at most `size` bytes with `entries`."""
        context = syscalls.fsopen("tmpfs")
        try:
            for key, value in (("source", "vgpu"), *limits_of(entries, size), *label(self.labels, attributes)):
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


def limits_of(entries: tuple[Entry, ...], size: int) -> tuple[tuple[str, str], ...]:
    """Limits that leave room for the entries only: a tenant's files could leave a mapped file without pages."""
    return ("size", str(size)), ("nr_inodes", str(len(entries) + 1)), ("mode", "0755")


def label(labels: Labels | None, attributes: int) -> tuple[tuple[str, str], ...]:
    """The option that gives a mount its label. mount(2) wants the value in quotes, because it may have commas."""
    if labels is None:
        return ()
    chosen = labels.read_only if attributes & syscalls.MOUNT_ATTR_RDONLY else labels.writable
    return ((CONTEXT, chosen),) if chosen else ()


def detach(target: int) -> None:
    """Detach the uppermost mount on the file of `target`, even while processes use it."""
    syscalls.umount2(by_fd(target), syscalls.MNT_DETACH)


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
        incomplete(handle)


def incomplete(handle: Handle) -> Handle:
    handle.incomplete = True
    return handle


def by_fd(fd: int) -> str:
    return f"/proc/self/fd/{fd}"
