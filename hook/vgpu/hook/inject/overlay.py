"""The container's overlay: files of the host reach it through a read-only overlay of the host's directories.

Belongs here: which directories become lower layers, the overlay's mount, and the mounts of single files of it. Not
here: which files a container gets (plan). An overlay without an upper layer differs from a bind mount in two ways. A
lease that a process of the container takes is on the overlay's inode, so no open on the host waits for it. And the
kernel refuses `remount,rw`. A mapping still shows what the host writes into the file in place, and shares its pages.

The overlay as a whole is never attached in the container, and never in the host's mount namespace, so no other file of
those directories can be reached. Where the kernel refuses an overlay, the files are bound as they are, with a note.
`NewMounts` clones the files on the host's side. Before Linux 6.15 the kernel clones nothing of a detached mount: there
the child first attaches the overlay in a mount namespace of its own. classic_mounts attaches it in the container's
namespace before pivot_root, on a private mount, and detaches it before the child ends.
"""

from __future__ import annotations

import errno
import os
import stat

from vgpu.config import paths
from vgpu.hook.inject import mounts
from vgpu.hook.inject.mounts import Handle, Mounts, NewMounts
from vgpu.hook.linux import syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from vgpu.hook.linux.selinux import Labels

OVERLAY = "overlay"  #: the file system, by the kernel's name
STAGE_MOUNT, STAGE = "/proc", "/proc/fs"  #: procfs is a mount on every host, and always has this directory
ATTRIBUTES = mounts.READ_ONLY_FILE
MAX_LAYERS = 12  #: fsconfig(2) takes values of at most 255 bytes
MAX_SOURCE = 200  #: characters of a container's id
ATTEMPTS = 100  #: each start on a card replaces a file of all that share the card
_CLONE = syscalls.OPEN_TREE_CLONE | syscalls.AT_SYMLINK_NOFOLLOW
INODE = (1 << 48) - 1  #: the bits of st_ino that overlayfs leaves to the lower file system
LEASES = "processes in the container can take leases on the node's files; vgpu never waits for them"


class Source:
    """A regular file of the host: its path without links, and its status when it was found."""

    __slots__ = ("directory", "name", "status")

    def __init__(self, directory: str, name: str, status: os.stat_result) -> None:
        self.directory = directory
        self.name = name
        self.status = status

    def path(self) -> str:
        return f"{self.directory}/{self.name}"


class Overlay:
    """One overlay: the `layers` below it, topmost first, as (path without links, O_PATH fd), and its mount's `fd` and
    `attributes`."""

    __slots__ = ("_places", "attributes", "fd", "layers")

    def __init__(self, layers: list[tuple[str, int]]) -> None:
        self.layers = layers
        self.fd = -1
        self.attributes = ATTRIBUTES
        self._places: dict[str, str | None] = {}  # a directory of the host -> its path in the overlay and "/"

    def has_on_top(self, source: Source) -> bool:
        return source.directory == self.layers[0][0] or _below(source.directory, self.layers[0][0])

    def with_on_top(self, source: Source) -> Overlay:
        """The same layers, with that of `source` above the others."""
        return Overlay(sorted(self.layers, key=lambda layer: not Overlay([layer]).has_on_top(source)))

    def relative(self, source: Source) -> str:
        """The path of `source` in the overlay, "" when no layer has it."""
        directory = source.directory
        if directory not in self._places:
            layer = next((path for path, _ in self.layers if directory == path or _below(directory, path)), None)
            self._places[directory] = None if layer is None else (directory + "/")[len(layer.rstrip("/")) + 1 :]
        place = self._places[directory]
        return "" if place is None else place + source.name


class Sources:
    """The host's directories that hold the files of one container, each open as long as this object.

    `spare` is an empty directory that joins where the files lie in one directory only, because the kernel wants two
    layers. It is made when it is needed.
    """

    __slots__ = ("_fds", "_found", "_spare")

    def __init__(self, paths: Iterable[str], spare: str) -> None:
        self._fds: dict[str, int] = {}
        self._found: dict[str, Source] = {}
        self._spare = spare
        real: dict[str, str] = {}
        for path in paths:
            try:
                self._found[path] = self._find(path, real)
            except OSError:
                continue  # whoever mounts it says so

    def close(self) -> None:
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()

    def find(self, path: str) -> Source | None:
        return self._found.get(path)

    def again(self, path: str) -> Source:
        """`path` as it is now."""
        found = self._found[path] = self._find(path, {})
        return found

    def _find(self, path: str, real: dict[str, str]) -> Source:
        directory, _, name = path.rpartition("/")
        if directory not in real:
            real[directory] = self._opened(directory or "/")
        place = real[directory]
        status = self._status(place, name)
        if stat.S_ISLNK(status.st_mode):
            place, _, name = os.path.realpath(path).rpartition("/")
            place = self._opened(place or "/")
            status = self._status(place, name)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "no regular file", path)
        return Source(place, name, status)

    def _opened(self, directory: str) -> str:
        fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        real = os.readlink(f"/proc/self/fd/{fd}")
        if real in self._fds:
            os.close(fd)
        else:
            self._fds[real] = fd
        return real

    def _status(self, place: str, name: str) -> os.stat_result:
        return os.stat(name, dir_fd=self._fds[place], follow_symlinks=False)

    def directories(self) -> list[str]:
        """The directories of all files without those below another, the ones with the fewest files first: a name in two
        layers is the upper one's, and a directory of many files has more names that nobody asked for. Of directories
        with as many files, that one is first which hides none of the others' files."""
        places = [source.directory for source in self._found.values()]
        tops = [place for place in dict.fromkeys(places) if not any(_below(place, other) for other in places)]
        count = {top: sum(place == top or _below(place, top) for place in places) for top in tops}
        alike = {top: [other for other in tops if other != top and count[other] == count[top]] for top in tops}
        return sorted(tops, key=lambda top: (count[top], self._hidden(top, alike[top])))

    def _hidden(self, top: str, others: list[str]) -> int:
        """How many files of `others` an overlay would not show if `top` were above them."""
        names = [source.name for source in self._found.values() if source.directory in others]
        return sum(self._has(top, name) for name in names)

    def _has(self, place: str, name: str) -> bool:
        try:
            self._status(place, name)
        except OSError:
            return False
        return True

    def overlay(self, directories: list[str]) -> Overlay:
        """An overlay of these, not yet mounted. OSError when the kernel could mount none."""
        layers = [(place, self._fds[place]) for place in directories]
        if len(layers) == 1:
            os.makedirs(self._spare, mode=0o700, exist_ok=True)
            spare = self._opened(self._spare)
            if spare != layers[0][0] and not _below(spare, layers[0][0]) and not _below(layers[0][0], spare):
                layers.append((spare, self._fds[spare]))
        if not 2 <= len(layers) <= MAX_LAYERS:
            raise OSError(errno.EINVAL, f"{len(layers)} lower directories")
        return Overlay(layers)

    def choices(self) -> list[tuple[list[str], list[str]]]:
        """(directories for an overlay, directories that it leaves out): all, then without those of one file system."""
        every = self.directories()
        if not every:
            return []
        devices = {place: self.device(place) for place in every}
        found: list[tuple[list[str], list[str]]] = [(every, [])]
        if len(set(devices.values())) > 1:
            for device in sorted(set(devices.values())):
                kept = [place for place in every if devices[place] != device]
                found.append((kept, [place for place in every if devices[place] == device]))
        return found

    def device(self, place: str) -> int:
        return os.fstat(self._fds[place]).st_dev


def _below(path: str, other: str) -> bool:
    return path != other and path.startswith(other.rstrip("/") + "/")


def is_same(found: os.stat_result, source: os.stat_result) -> bool:
    """Whether the overlay's file `found` is the host's file `source`. They have different st_dev."""
    return (
        found.st_ino & INODE == source.st_ino & INODE
        and found.st_mtime_ns == source.st_mtime_ns
        and found.st_size == source.st_size
        and found.st_mode == source.st_mode
    )


def data_of(layers: list[tuple[str, int]]) -> str:
    """The value of `lowerdir`, by descriptor: no path is resolved again, and none has to be quoted."""
    return ":".join(f"/proc/self/fd/{fd}" for _, fd in layers)


def source_of(layers: list[tuple[str, int]]) -> str:
    """What mountinfo names as the mount's source, `vgpu:<container>`: by it the reaper knows that a container lives."""
    names = (path.rpartition("/containers/")[2] for path, _ in layers if "/containers/" in path)
    name = next((name for name in names if paths.is_container_id(name) and len(name) <= MAX_SOURCE), "")
    return paths.mount_source(name) if name else "vgpu"


class OverNewMounts(NewMounts):
    """NewMounts whose `layered` mounts a file through an overlay. `notes` says where it could not."""

    __slots__ = ("_attached", "_overlays", "_pending", "_sources", "notes")

    def __init__(self, sources: Sources, labels: Labels | None = None) -> None:
        super().__init__(labels)
        self.notes: list[str] = []
        self._sources = sources
        self._overlays: list[Overlay] = []
        self._pending: list[tuple[Handle, Overlay, str]] = []  # for `prepare`, which clones them
        self._attached = False  # whether an overlay has to be attached before its files can be cloned
        self.notes += first_accepted(sources, self._mount)

    def close(self) -> None:
        for overlay in self._overlays:
            os.close(overlay.fd)
        self._overlays.clear()
        self._sources.close()

    def _mount(self, overlay: Overlay) -> None:
        context = syscalls.fsopen(OVERLAY)
        try:
            pairs = (("source", source_of(overlay.layers)), ("lowerdir", data_of(overlay.layers)))
            for key, value in (*pairs, *mounts.label(self.labels, ATTRIBUTES)):
                syscalls.fsconfig_set_string(context, key, value)
            syscalls.fsconfig_create(context)
            overlay.fd = syscalls.fsmount(context, ATTRIBUTES)
        finally:
            os.close(context)
        self._overlays.append(overlay)

    def layered(self, path: str, attributes: int) -> Handle:
        """A detached mount of the file `path` of an overlay; of the file itself where there is no overlay of it."""
        source = self._sources.find(path)
        for _ in range(ATTEMPTS):
            overlay = overlay_of(source, self._overlays) if source else None
            if source is None or overlay is None:
                return self.bind(path, attributes)
            handle = self._cloned(overlay, source, attributes)
            if handle is not None:
                return handle
            source = self._sources.again(path)  # replaced since it was found
        raise FileNotFoundError(errno.ENOENT, f"{path} is replaced again and again")

    def _cloned(self, overlay: Overlay, source: Source, attributes: int) -> Handle | None:
        """None when the overlay has another file at that place: an upper layer's, or a newer one."""
        handle = self._clone(overlay, source, attributes)
        if handle is not None and is_same(os.fstat(handle.fd), source.status):
            handle.regular = True
            return handle
        if handle is not None:
            self._forget(handle)
        if overlay.has_on_top(source):
            return None
        above = overlay.with_on_top(source)
        self._mount(above)
        return self._cloned(above, source, attributes)

    def _forget(self, handle: Handle) -> None:
        self._pending = [item for item in self._pending if item[0] is not handle]
        os.close(handle.fd)

    def _clone(self, overlay: Overlay, source: Source, attributes: int) -> Handle | None:
        name = overlay.relative(source)
        if not self._attached:
            try:
                return self._clone_now(overlay, name, attributes)
            except FileNotFoundError:
                return None
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._attached = True
        try:
            fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=overlay.fd)
        except FileNotFoundError:
            return None
        handle = Handle(fd, attributes, source.path())
        self._pending.append((handle, overlay, name))
        return handle

    def _clone_now(self, overlay: Overlay, name: str, attributes: int) -> Handle:
        handle = Handle(syscalls.open_tree(overlay.fd, name, _CLONE), attributes, name)
        if attributes != overlay.attributes:  # a clone has the flags of its mount
            mounts.set_attributes(handle)
        return handle

    def prepare(self) -> None:
        """In the child, before it enters the container's namespace: clone what needs an attached overlay."""
        if not self._pending:
            return
        try:
            self._attach_overlays()
        except OSError as error:
            places = self._sources.directories()
            self.notes.append(_refused(places, error))
            clones = [self.bind(handle.source, handle.attributes) for handle, _, _ in self._pending]
        else:
            clones = [self._clone_attached(*item) for item in self._pending]
        for (handle, _, _), clone in zip(self._pending, clones):
            os.close(handle.fd)
            handle.fd, handle.incomplete = clone.fd, clone.incomplete

    def _clone_attached(self, handle: Handle, overlay: Overlay, name: str) -> Handle:
        if handle.attributes != overlay.attributes:  # by mount(2), because mount_setattr is younger than open_tree
            flags = syscalls.MS_REMOUNT | syscalls.MS_BIND | handle.attributes
            syscalls.mount("", f"/proc/self/fd/{overlay.fd}", "", flags)
            overlay.attributes = handle.attributes
        return Handle(syscalls.open_tree(overlay.fd, name, _CLONE), handle.attributes, handle.source)

    def _attach_overlays(self) -> None:
        """Attach them in a mount namespace of this process alone."""
        syscalls.unshare(syscalls.CLONE_NEWNS)
        syscalls.mount("", STAGE_MOUNT, "", syscalls.MS_PRIVATE, "")
        for overlay in self._overlays:
            stage = os.open(STAGE, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                syscalls.move_mount(overlay.fd, stage)
            finally:
                os.close(stage)


def overlay_of(source: Source, overlays: list[Overlay]) -> Overlay | None:
    if len(overlays) == 1 and overlays[0].relative(source):
        return overlays[0]
    having = [overlay for overlay in overlays if overlay.relative(source)]
    return next((overlay for overlay in having if overlay.has_on_top(source)), having[0] if having else None)


def first_accepted(sources: Sources, mount: Callable[[Overlay], None]) -> list[str]:
    """Mount the first choice of directories that the kernel accepts. Returns notes on those that stay outside."""
    first: OSError | None = None
    for directories, left_out in sources.choices():
        try:
            mount(sources.overlay(directories))
        except OSError as error:
            first = first or error
            continue
        return [_refused(left_out, first)] if first else []
    return [_refused(sources.directories(), first)] if first else []


def _refused(directories: list[str], error: OSError) -> str:
    cause = os.strerror(error.errno) if error.errno else str(error)
    return f"no overlay of {', '.join(directories)} ({cause}): {LEASES}"


def over(
    way: Callable[[Sources, Labels | None], Mounts], paths: Iterable[str], spare: str, labels: Labels | None = None
) -> Mounts:
    """The `way` of mounting, with an overlay of the directories that hold `paths`. The caller closes it."""
    sources = Sources(paths, spare)
    try:
        return way(sources, labels)
    except BaseException:
        sources.close()
        raise
