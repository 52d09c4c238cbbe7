"""The mounts of older kernels: where calls of Linux 5.2 are missing, and where mount_setattr (5.12) is.

Belongs here: `OverClassicMounts`, the fallback of overlay.OverNewMounts, and `Staging`, where a mount whose flags
mount(2) sets is made complete. The fallback opens the source again inside the container's namespace, which before
pivot_root still shows the host's tree, and goes on only if that is the very file that was opened on the host. mount(2)
sets flags only after mounting, and a path inside the container may then lead to another mount. So each mount is first
made complete in a place that no container sees. A start on a newer kernel does not load this; a child loads it before
it enters the container's namespace.
"""

from __future__ import annotations

import errno
import os

from vgpu.hook.inject.mounts import CONTEXT, DATA, Entry, Handle, Mounts, by_fd, fill, incomplete, label, limits_of
from vgpu.hook.inject.overlay import (
    ATTRIBUTES,
    OVERLAY,
    STAGE,
    STAGE_MOUNT,
    Overlay,
    Source,
    Sources,
    data_of,
    first_accepted,
    is_same,
    overlay_of,
    source_of,
)
from vgpu.hook.linux import syscalls
from vgpu.hook.linux.cgroup import unescape
from vgpu.hook.linux.mountinfo import MountTable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from vgpu.hook.linux.selinux import Labels

_REMOUNT = syscalls.MS_REMOUNT | syscalls.MS_BIND


class ClassicMounts(Mounts):
    """Before Linux 5.2, or where a seccomp filter hides the new calls. Every mount is made inside, and incomplete."""

    __slots__ = ()

    def bind(self, source: str, attributes: int) -> Handle:
        return incomplete(Handle(os.open(source, os.O_PATH | os.O_CLOEXEC), attributes, source))

    def tmpfs(self, entries: tuple[Entry, ...], size: int, attributes: int) -> Handle:
        return incomplete(Handle(-1, attributes, "", entries, size))

    def stage(self, handle: Handle, place: int) -> None:
        if handle.fd < 0:
            pairs = (*limits_of(handle.entries, handle.size), *label(self.labels, handle.attributes))
            options = ",".join(f'{key}="{value}"' if key == CONTEXT else f"{key}={value}" for key, value in pairs)
            syscalls.mount("vgpu", by_fd(place), "tmpfs", _flags(handle.attributes) & ~syscalls.MS_RDONLY, options)
        else:
            _bind_again(handle, place)

    def attach(self, handle: Handle, target: int) -> None:
        """Bind the staged mount, with the flags that it has, to the file of `target`. Nothing is resolved."""
        syscalls.mount(by_fd(handle.staged), by_fd(target), "", syscalls.MS_BIND)


class OverClassicMounts(ClassicMounts):
    """ClassicMounts whose `layered` mounts a file through an overlay. `notes` says where it could not."""

    __slots__ = ("_layered", "_overlays", "_sources", "notes")

    def __init__(self, sources: Sources, labels: Labels | None = None) -> None:
        super().__init__(labels)
        self.notes: list[str] = []
        self._sources = sources
        self._layered: dict[int, Source] = {}  # by the handle's fd
        self._overlays: list[Overlay] = []

    def close(self) -> None:
        self._sources.close()

    def layered(self, path: str, attributes: int) -> Handle:
        handle = self.bind(path, attributes)
        source = self._sources.find(path)
        if source is not None:
            self._layered[handle.fd] = source
        return handle

    def enter(self) -> None:
        """In the child, when it has entered the container's namespace: mount the overlay on a private mount."""
        self.notes += first_accepted(self._sources, self._mount)

    def _mount(self, overlay: Overlay) -> None:
        here: list[tuple[str, int]] = []
        try:
            for path, fd in overlay.layers:
                here.append((path, _opened_again(path, fd)))
            syscalls.mount("", STAGE_MOUNT, "", syscalls.MS_PRIVATE, "")
            flags = ATTRIBUTES  # MOUNT_ATTR_* and MS_* have the same values for these
            given = "".join(f',{key}="{value}"' for key, value in label(self.labels, ATTRIBUTES))
            syscalls.mount(source_of(here), STAGE, OVERLAY, flags, f"lowerdir={data_of(here)}{given}")
        finally:
            for _, fd in here:
                os.close(fd)
        overlay.fd = os.open(STAGE, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._overlays.append(overlay)

    def stage(self, handle: Handle, place: int) -> None:
        source = self._layered.get(handle.fd)
        overlay = overlay_of(source, self._overlays) if source else None
        if source is None or overlay is None:
            super().stage(handle, place)
        elif not self._bind_from(overlay, source, handle, place):
            above = overlay.with_on_top(source)
            self._mount(above)
            if not self._bind_from(above, source, handle, place):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source.path())

    def _bind_from(self, overlay: Overlay, source: Source, handle: Handle, place: int) -> bool:
        """False when the overlay has another file at that place: an upper layer's, or a newer one."""
        try:
            fd = os.open(overlay.relative(source), os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=overlay.fd)
        except FileNotFoundError:
            return False
        try:
            if is_same(os.fstat(fd), os.fstat(handle.fd)):
                syscalls.mount(f"/proc/self/fd/{fd}", f"/proc/self/fd/{place}", "", syscalls.MS_BIND)
                return True
            return False
        finally:
            os.close(fd)

    def leave(self) -> None:
        """In the child, at its end: detach the overlays. The mounts of their files stay."""
        while self._overlays:
            syscalls.umount2(STAGE, syscalls.MNT_DETACH)
            os.close(self._overlays.pop().fd)


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

    def complete(self, handle: Handle, how: Mounts) -> None:
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
        syscalls.mount("", by_fd(handle.staged), "", syscalls.MS_PRIVATE, "")
        _remount(handle.staged, handle.attributes)

    def end(self) -> None:
        """Detach it and what is left in it."""
        syscalls.umount2(by_fd(self._fd), syscalls.MNT_DETACH)
        os.close(self._fd)


def _bind_again(handle: Handle, place: int) -> None:
    here = os.open(handle.source, os.O_PATH | os.O_CLOEXEC)
    try:
        if _identity(here) != _identity(handle.fd):
            reason = "is another file in the container's namespace; the hook must run before pivot_root"
            raise OSError(errno.ESTALE, f"{handle.source} {reason}")
        syscalls.mount(by_fd(here), by_fd(place), "", syscalls.MS_BIND)
    finally:
        os.close(here)


def _identity(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def _remount(fd: int, attributes: int) -> None:
    """Set the mount's flags with mount(2). Flags that are set already stay, because a user namespace may lock them."""
    kept = os.fstatvfs(fd).f_flag & (os.ST_RDONLY | os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC)
    syscalls.mount("", by_fd(fd), "", _REMOUNT | _flags(attributes) | _kept(kept))


def _kept(flags: int) -> int:
    pairs = (
        (os.ST_RDONLY, syscalls.MS_RDONLY),
        (os.ST_NOSUID, syscalls.MS_NOSUID),
        (os.ST_NODEV, syscalls.MS_NODEV),
        (os.ST_NOEXEC, syscalls.MS_NOEXEC),
    )
    return sum(ms for st, ms in pairs if flags & st)


def _opened_again(path: str, host: int) -> int:
    """The host's directory `path` in the container's mount namespace; it has to be the very same."""
    fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    here, there = os.fstat(fd), os.fstat(host)
    if (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino):
        return fd
    os.close(fd)
    raise OSError(errno.ESTALE, f"{path} is another directory in the container's namespace")


def _flags(attributes: int) -> int:
    """MOUNT_ATTR_* and MS_* have the same values for these four."""
    return attributes & 0xF
