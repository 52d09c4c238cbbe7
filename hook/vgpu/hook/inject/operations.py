"""The operations of a plan: frozen values, each of which can describe and execute itself.

Belongs here: the operations. Not here: which of them a container gets (plan). An operation has two halves, because it
spans two mount namespaces. `open` runs on the host's side and opens file descriptors of all that is needed. `execute`
runs in a child that has entered the container's namespace; it must open no host path and import nothing.
"""

from __future__ import annotations

import errno
import os
import stat

from vgpu.hook.inject import mounts
from vgpu.hook.inject.mounts import Entry, Handle, Mounts
from vgpu.hook.linux.rootfs import Rootfs


class Inside:
    """The place of execution: the container's root, the way of mounting, and the targets of the mounts made so far."""

    __slots__ = ("mounted", "mounts", "root")

    def __init__(self, root: Rootfs, how: Mounts) -> None:
        self.root = root
        self.mounts = how
        self.mounted: list[int] = []

    def attach(self, handle: Handle, target: int) -> None:
        """Attach a complete mount to the file or directory of `target`, an fd that now belongs to this object."""
        try:
            self.root.refuse_shared(target)
            self.mounts.attach(handle, target)
        except BaseException:
            os.close(target)
            raise
        self.mounted.append(target)

    def take_back(self) -> list[str]:
        """Undo all operations; returns a message for each that could not be undone."""
        failed = []
        while self.mounted:
            try:
                mounts.detach(self.mounted.pop())
            except OSError as error:
                failed.append(str(error))
        return failed + self.root.take_back()


class Operation:
    """One operation. `open` returns the handle that `execute` needs, or None."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path  #: in the container

    def describe(self) -> str:
        raise NotImplementedError

    def open(self, how: Mounts) -> Handle | None:
        return None

    def execute(self, inside: Inside, handle: Handle | None) -> None:
        raise NotImplementedError


class Tmpfs(Operation):
    """A small tmpfs of `entries` on the directory `path`, which `execute` makes if it is missing."""

    __slots__ = ("attributes", "entries", "size")

    def __init__(self, path: str, entries: tuple[Entry, ...], size: int, attributes: int) -> None:
        super().__init__(path)
        self.entries = entries
        self.size = size
        self.attributes = attributes

    def describe(self) -> str:
        return f"tmpfs {self.path} {_options(self.attributes)} size={self.size >> 10}k, {len(self.entries)} entries"

    def open(self, how: Mounts) -> Handle:
        return how.tmpfs(self.entries, self.size, self.attributes)

    def execute(self, inside: Inside, handle: Handle | None) -> None:
        assert handle is not None
        inside.attach(handle, inside.root.directory(self.path))


class Bind(Operation):
    """A regular file of the host on the file `path`."""

    __slots__ = ("attributes", "source")

    def __init__(self, source: str, path: str, attributes: int = mounts.READ_ONLY_FILE) -> None:
        super().__init__(path)
        self.source = source
        self.attributes = attributes

    def describe(self) -> str:
        return f"mount {self.source} on {self.path} {_options(self.attributes)}"

    def open(self, how: Mounts) -> Handle:
        handle = self.mount(how)
        if handle.regular:
            return handle
        try:
            self.check(os.fstat(handle.fd))
        except OSError:
            os.close(handle.fd)
            raise
        return handle

    def mount(self, how: Mounts) -> Handle:
        return how.bind(self.source, self.attributes)

    def check(self, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, f"{self.source} is no regular file; run: vgpuctl inventory refresh")

    def execute(self, inside: Inside, handle: Handle | None) -> None:
        assert handle is not None
        inside.attach(handle, inside.root.mount_point(self.path))


class OverlayFile(Bind):
    """A regular file of the host on the file `path`, through the container's overlay: no process there can take a lease
    on the host's inode, nor make it writable."""

    __slots__ = ()

    def mount(self, how: Mounts) -> Handle:
        return how.layered(self.source, self.attributes)

    def execute(self, inside: Inside, handle: Handle | None) -> None:
        assert handle is not None
        if os.fstat(handle.fd).st_nlink == 0:  # of a bind mount the kernel says so when it is attached
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.source)
        super().execute(inside, handle)


class Cover(OverlayFile):
    """The same on a copy that the image or a volume has; nothing to do when that is gone by now."""

    __slots__ = ()

    def execute(self, inside: Inside, handle: Handle | None) -> None:
        assert handle is not None
        target = inside.root.existing(self.path)
        if target >= 0:
            inside.attach(handle, target)


class BindDirectory(Bind):
    """A directory of the host on the directory `path`."""

    __slots__ = ()

    def check(self, status: os.stat_result) -> None:
        if not stat.S_ISDIR(status.st_mode):
            raise OSError(0, f"{self.source} is no directory")

    def execute(self, inside: Inside, handle: Handle | None) -> None:
        assert handle is not None
        inside.attach(handle, inside.root.directory(self.path))


class BindDevice(Bind):
    """A character device of the host, whose number is checked, on the file `path`."""

    __slots__ = ("major", "minor")

    def __init__(self, source: str, path: str, major: int, minor: int) -> None:
        super().__init__(source, path, mounts.DEVICE)
        self.major = major
        self.minor = minor

    def describe(self) -> str:
        return f"device {self.path} {self.major}:{self.minor} from {self.source} {_options(self.attributes)}"

    def check(self, status: os.stat_result) -> None:
        expected = os.makedev(self.major, self.minor)
        if not stat.S_ISCHR(status.st_mode) or status.st_rdev != expected:
            found = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
            reason = f"{self.source} is not the character device {self.major}:{self.minor} (found {found})"
            raise OSError(0, reason + "; run: vgpuctl inventory refresh")


class CheckCapability(Operation):
    """No change: the host's file `path` of a MIG instance has the minor of the node that is mounted."""

    __slots__ = ("minor",)

    def __init__(self, path: str, minor: int) -> None:
        super().__init__(path)
        self.minor = minor

    def describe(self) -> str:
        return f"check that {self.path} has minor {self.minor}"

    def open(self, how: Mounts) -> None:
        try:
            with open(self.path, "rb") as stream:
                lines = stream.read(1 << 12).splitlines()
        except FileNotFoundError:
            lines = []
        if b"DeviceFileMinor: %d" % self.minor not in lines:
            raise OSError(
                0, "it does not any more: MIG instances were made or destroyed; run: vgpuctl inventory refresh"
            )

    def execute(self, inside: Inside, handle: Handle | None) -> None:
        pass


class SharedRegion(Operation):
    """The usage region of the container with the init `pid`, which started at `start_time`: its tmpfs on `path`. The
    file of the region has `size` bytes."""

    __slots__ = ("attributes", "pid", "size", "start_time")

    def __init__(self, pid: int, start_time: int, path: str, size: int, attributes: int) -> None:
        super().__init__(path)
        self.pid = pid
        self.start_time = start_time
        self.size = size
        self.attributes = attributes

    def describe(self) -> str:
        return f"share {self.path} of process {self.pid} {_options(self.attributes)}"

    def open(self, how: Mounts) -> Handle:
        handle = how.of_process(self.pid, self.start_time, self.path, self.attributes)
        try:
            found = os.stat(self.path.rpartition("/")[2], dir_fd=handle.fd, follow_symlinks=False)
            if not stat.S_ISREG(found.st_mode) or found.st_size != self.size:
                raise OSError(0, f"{self.path} of process {self.pid} is no usage region")
        except OSError:
            os.close(handle.fd)
            raise
        return handle

    def execute(self, inside: Inside, handle: Handle | None) -> None:
        assert handle is not None
        inside.attach(handle, inside.root.directory(self.path))


class Symlink(Operation):
    """A symlink, which replaces an existing symlink."""

    __slots__ = ("target",)

    def __init__(self, path: str, target: str) -> None:
        super().__init__(path)
        self.target = target

    def describe(self) -> str:
        return f"link {self.path} -> {self.target}"

    def execute(self, inside: Inside, handle: Handle | None) -> None:
        inside.root.symlink(self.path, self.target)


class ReplaceFile(Operation):
    """A file of the container, replaced by rename: the loader's cache or search path."""

    __slots__ = ("data", "old")

    def __init__(self, path: str, data: bytes, old: bytes | None) -> None:
        super().__init__(path)
        self.data = data
        self.old = old

    def describe(self) -> str:
        before = "new" if self.old is None else f"instead of {len(self.old)} bytes"
        return f"write {self.path}, {len(self.data)} bytes, {before}"

    def execute(self, inside: Inside, handle: Handle | None) -> None:
        inside.root.replace(self.path, self.data, self.old)


_OPTIONS = ((1, "ro"), (2, "nosuid"), (4, "nodev"), (8, "noexec"))


def _options(attributes: int) -> str:
    return ",".join(name for bit, name in _OPTIONS if attributes & bit)
