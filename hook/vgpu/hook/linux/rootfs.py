"""Paths below a container's root, resolved only there, by file descriptor.

Belongs here: lookups and creation under an O_PATH fd of the root file system. Every symlink, in any component, is
followed as in the container. The tree may change meanwhile (another container may write to a volume), so no path is
resolved twice: after the lookup its fd is used. Not here: which files a container gets. Runs as root, on files that a
tenant has made.

openat2 (Linux 5.6) resolves in the kernel. Without it, or where a seccomp filter hides it, the walk below does the same
component by component with O_NOFOLLOW. It keeps the fds of all parents, so that no race of `..` can leave the root.
"""

from __future__ import annotations

import errno
import os
import stat

from vgpu.hook.linux import syscalls, undo
from vgpu.hook.linux.mountinfo import MountTable
from vgpu.hook.linux.undo import NOTHING, Old, like

MAX_LINKS = 40  # as the kernel's
MAX_COMPONENTS = 256
RETRIES = 32  # openat2 answers EAGAIN when a rename races its `..`


class Rootfs:
    """The root file system of one container, below the O_PATH directory `fd`, until `close`.

    `owner` (uid, gid) is the container's root; in a user namespace it is not 0. Created files have to belong to it, so
    the caller first becomes the owner (`syscalls.create_as`): the kernel refuses a file of the host's root on a file
    system that the container's user namespace owns, such as its /dev.

    It creates and changes files only on the root file system itself, and on a tmpfs that the runtime made for this
    container (`table`). Anything else that is mounted there is a volume: it may be the host's or another container's,
    and what the host's root writes there is not what the container's user may write.

    `undo` has the steps that undo creations and replacements; `take_back` runs them, newest first. Each step is there
    before its change is made, and goes when the change fails. `journal` is an fd to which the steps go as well, so that
    another process can `recover` when this one is killed.
    """

    __slots__ = ("_checked", "_openat2", "_parents", "_paths", "_seen", "fd", "journal", "owner", "table", "undo")

    def __init__(self, fd: int, owner: tuple[int, int] = (0, 0), table: MountTable | None = None) -> None:
        self.fd = fd
        self.owner = owner
        self.table = table
        self.undo: list[tuple[str, int, str, Old]] = []
        self.journal = -1
        self._openat2 = True
        self._paths: dict[int, str] = {}  # of the directories held, for the journal
        self._parents: dict[str, int] = {}  # resolved directories, each resolved once and held until `close`
        self._checked: set[int] = set()  # those of them that are not on a volume
        self._seen: dict[str, tuple[int, ...]] = {}  # the identity of each file that was read to be replaced

    def close(self) -> None:
        for fd in self._parents.values():
            os.close(fd)
        self._parents.clear()
        os.close(self.fd)

    def open(self, path: str, flags: int) -> int:
        """An fd of `path` inside the root; OSError as from open(2). O_NOFOLLOW applies to the last component."""
        if self._openat2:
            try:
                return self._in_kernel(path, flags)
            except OSError as error:
                if error.errno not in (errno.ENOSYS, errno.EPERM, errno.E2BIG):
                    raise
                self._openat2 = False
        return self._walk(path, flags, create=False)

    def _in_kernel(self, path: str, flags: int) -> int:
        resolve = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS
        for attempt in range(RETRIES):
            try:
                return syscalls.openat2(self.fd, path, flags, resolve)
            except OSError as error:
                if error.errno != errno.EAGAIN or attempt == RETRIES - 1:
                    raise
        raise AssertionError("unreachable")

    def _walk(self, path: str, flags: int, create: bool) -> int:
        """Resolve without openat2. With `create` make missing directories; every component is then a directory."""
        parents = [os.dup(self.fd)]
        todo = _components(path)
        links = 0
        try:
            while todo:
                name = todo.pop(0)
                if name == "..":
                    if len(parents) > 1:
                        os.close(parents.pop())
                    continue
                here = self._step(parents[-1], name, create)
                parents.append(here)
                if not stat.S_ISLNK(os.fstat(here).st_mode) or (not todo and flags & os.O_NOFOLLOW):
                    continue
                links += 1
                target = os.readlink("", dir_fd=here)
                os.close(parents.pop())
                todo = _components(target) + todo
                if links > MAX_LINKS or len(todo) > MAX_COMPONENTS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                if target.startswith("/"):
                    while len(parents) > 1:
                        os.close(parents.pop())
            return _reopened(parents[-1], flags)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from error
        finally:
            for fd in parents:
                os.close(fd)

    def _step(self, parent: int, name: str, create: bool) -> int:
        flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            return os.open(name, flags, dir_fd=parent)
        except FileNotFoundError:
            if not create:
                raise
        try:
            with _Undoable(self, "rmdir", parent, name):
                os.mkdir(name, 0o755, dir_fd=parent)
        except FileExistsError:
            pass  # made meanwhile, as in `mount_point`; the next line takes no link
        return os.open(name, flags | os.O_DIRECTORY, dir_fd=parent)

    def held(self, path: str) -> int:
        """An O_PATH fd of the directory `path`, resolved once and held until `close`; OSError when there is none."""
        fd = self._parents.get(path)
        if fd is None:
            fd = self._parents[path] = self.open(path or "/", os.O_PATH | os.O_DIRECTORY)
        return fd

    def _parent(self, path: str) -> tuple[int, str]:
        """(directory, name in it) of `path`. The caller must not close the directory."""
        directory, _, name = path.rpartition("/")
        fd = self._parents.get(directory)
        if fd is None:
            fd = self._parents[directory] = self.directory(directory or "/")
        return fd, name

    def volume(self, fd: int) -> str:
        """Where the volume is mounted on which `fd` lies, "" for the container's own file systems."""
        if fd in self._checked:
            return ""
        mount = syscalls.mount_id(fd)
        own = self.table.is_own(mount) if self.table else mount == syscalls.mount_id(self.fd)
        if not own:
            return self.table.place(mount) if self.table else "another mount"
        if fd in self._parents.values():
            self._checked.add(fd)
        return ""

    def refuse_volume(self, fd: int, name: str) -> None:
        """OSError when the directory `fd`, in which `name` is to change, lies on a volume."""
        volume = self.volume(fd)
        if volume:
            reason = f"{name} would be made on the volume that is mounted at {volume}"
            raise OSError(errno.EXDEV, f"{reason}, and vgpu writes only into the container's own root file system")

    def refuse_shared(self, target: int) -> None:
        """OSError when a mount on `target` would appear on the host or in another container too."""
        if self.table and self.table.any_shared and self.table.propagates(mount := syscalls.mount_id(target)):
            reason = f"the volume that is mounted at {self.table.place(mount)} has shared propagation"
            raise OSError(errno.EINVAL, f"{reason}, so this would be mounted on the host too; use rslave or rprivate")

    def directory(self, path: str) -> int:
        """An O_PATH fd of the directory `path`; it and its parents are made where they are missing."""
        flags = os.O_PATH | os.O_DIRECTORY
        try:
            return self.open(path, flags)
        except FileNotFoundError:
            return self._walk(path, flags, create=True)

    def mount_point(self, path: str) -> int:
        """An O_PATH fd of the file `path` to mount on: the existing file, or a new empty one.

        An empty file replaces a symlink in the last place: the mount has to appear under exactly this path, and must
        not cover a file elsewhere to which the link points.
        """
        parent, name = self._parent(path)
        try:
            return self._mount_point(parent, name, path)
        except FileExistsError:  # another container that starts now has the same root, and made the file first
            return self._mount_point(parent, name, path)

    def _mount_point(self, parent: int, name: str, path: str) -> int:
        try:
            found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        except FileNotFoundError:
            return self._new_file(parent, name)
        kind = os.fstat(found).st_mode
        if not stat.S_ISLNK(kind) and not stat.S_ISDIR(kind):
            return found
        os.close(found)
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        self._remove_link(parent, name)
        return self._new_file(parent, name)

    def existing(self, path: str) -> int:
        """An O_PATH fd of the regular file `path` to mount on, -1 when there is none. Nothing is made."""
        directory, _, name = path.rpartition("/")
        try:
            found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.held(directory))
        except (FileNotFoundError, NotADirectoryError):
            return -1
        if stat.S_ISREG(os.fstat(found).st_mode):
            return found
        os.close(found)
        return -1

    def _new_file(self, parent: int, name: str) -> int:
        """An fd of a new empty file; FileExistsError when the name exists, even as a symlink."""
        flags = os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with _Undoable(self, "unlink", parent, name):
            return os.open(name, flags, 0o644, dir_fd=parent)

    def _remove_link(self, parent: int, name: str) -> None:
        target = os.readlink(name, dir_fd=parent)
        with _Undoable(self, "symlink", parent, name, Old(os.fsencode(target))):
            os.unlink(name, dir_fd=parent)

    def symlink(self, path: str, target: str) -> None:
        """Make `path` a symlink to `target`; a rename replaces an existing link. FileExistsError for other files."""
        parent, name = self._parent(path)
        old = _link_target(parent, name)
        if old is None:
            try:
                with _Undoable(self, "unlink", parent, name):
                    os.symlink(target, name, dir_fd=parent)
            except FileExistsError:  # made meanwhile, by the hook of another container with the same root file system
                if _link_target(parent, name) != target:
                    raise
        elif old != target:
            self._replace_link(parent, name, target, old)

    def _replace_link(self, parent: int, name: str, target: str, old: str) -> None:
        with _Undoable(self, "symlink", parent, name, Old(os.fsencode(old))):
            undo.replace_by_link(parent, name, os.fsencode(target))

    def read(self, path: str, limit: int) -> bytes | None:
        """A regular file's bytes; None when there is none or it is longer than `limit`.

        The directory is held from here to `replace`, which compares the file in it with the one that was read here:
        who can exchange the directory or the file meanwhile cannot have one file read and another one replaced.
        """
        directory, _, name = path.rpartition("/")
        try:
            found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.held(directory))
        except (FileNotFoundError, NotADirectoryError):
            self._seen[path] = ()
            return None
        try:
            status = os.fstat(found)
            self._seen[path] = _identity(status)
            if stat.S_ISLNK(status.st_mode):
                return self._read_linked(os.readlink("", dir_fd=found), self.held(directory), limit)
            return _content(found, limit)
        finally:
            os.close(found)

    def _read_linked(self, target: str, directory: int, limit: int) -> bytes | None:
        """The file to which a link in `directory` leads: to an absolute path, or to a name in the same directory."""
        try:
            if target.startswith("/"):
                found = self.open(target, os.O_PATH)
            elif "/" in target:
                return None  # from here it could lead out of the root
            else:
                found = os.open(target, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            return _content(found, limit)
        finally:
            os.close(found)

    def regular(self, path: str) -> int:
        """A regular file, open for reading; FileNotFoundError when `path` leads to anything else.

        The type is checked before the open: an image may have a device node there, and merely opening one can have
        effects (a watchdog starts to count).
        """
        found = self.open(path, os.O_PATH)
        try:
            if not stat.S_ISREG(os.fstat(found).st_mode):
                raise FileNotFoundError(errno.ENOENT, "no regular file", path)
            return _reopened(found, os.O_RDONLY | os.O_NONBLOCK)
        finally:
            os.close(found)

    def why_not_replaced(self, path: str, content: bytes | None) -> str:
        """Why the file `path`, of which `read` returned `content`, has to stay as it is; "" when it may be replaced."""
        if content is None and self._seen.get(path):
            return "it is no regular file, too long, or a link that leads nowhere"
        parent = self._parents.get(path.rpartition("/")[0])
        volume = self.volume(parent) if parent is not None else ""  # else `replace` makes the directory
        return f"it is on the volume that is mounted at {volume}" if volume else ""

    def replace(self, path: str, data: bytes, old: bytes | None) -> None:
        """Replace `path`, whose content was `old`, by a file of `data`, by rename; mode 0644.

        OSError when it is not the file any more that `read` has read. It may be `data` by now, by another container's
        start on the same root file system: then nothing is left to do.
        """
        parent, name = self._parent(path)
        status = _status(parent, name)
        seen = self._seen.get(path)
        if seen is not None and seen != _identity(status):
            if _has_content(parent, name, data):
                return
            raise OSError(errno.ESTALE, f"{path} has changed since it was read; start the container again")
        if status is None:
            change = _Undoable(self, "unlink", parent, name)
        elif stat.S_ISLNK(status.st_mode):
            change = _Undoable(self, "symlink", parent, name, Old(os.fsencode(os.readlink(name, dir_fd=parent))))
        else:
            change = _Undoable(self, "restore", parent, name, Old(old or b"", like(status)))
        with change:
            undo.replace_by_file(parent, name, data)

    def take_back(self) -> list[str]:
        """Undo everything, newest first. A step that fails does not stop the rest; returns a message for each."""
        failed = []
        while self.undo:
            step, parent, name, old = self.undo.pop()
            try:
                try:
                    undo.take_back(step, parent, name, old)
                finally:
                    os.close(parent)
            except OSError as error:
                failed.append(f"{step} {name}: {error.strerror}")
        return failed

    def path_of(self, fd: int) -> str:
        """The path of the directory `fd` below the root, as it is now."""
        path = self._paths.get(fd)
        if path is None:
            top, full = os.readlink(f"/proc/self/fd/{self.fd}"), os.readlink(f"/proc/self/fd/{fd}")
            path = full[len(top) :] if full.startswith(top) else full
            if fd in self._parents.values():
                self._paths[fd] = path
        return path

    def place(self, fd: int) -> str:
        """The path without links of `fd` below the root, as it is now; "" when it is not there."""
        top, full = (os.readlink(f"/proc/self/fd/{item}") for item in (self.fd, fd))
        top = top.rstrip("/")
        return full[len(top) :] if full.startswith(top + "/") else ""

    def recover(self, journal: bytes, pid: int, contents: dict[str, bytes]) -> list[str]:
        """Undo what the process `pid`, which was killed, wrote to its journal. `contents` are those of replaced files,
        by their names.

        The paths are resolved again, so a step that now leads to a volume is left out.
        """
        failed = []
        for step, path, name, old in undo.read(journal):
            if step == "restore":
                old.content = contents[name]
            try:
                parent = self.open(path or "/", os.O_PATH | os.O_DIRECTORY)
            except OSError as error:
                failed.append(f"{step} {path}/{name}: {error.strerror}")
                continue
            if self.volume(parent):
                os.close(parent)
                continue
            self.undo.append((step, parent, name, old))
            self.undo.append(("unlink", os.dup(parent), undo.temporary(name, pid), NOTHING))
        return failed + self.take_back()


class _Undoable:
    """A change of `name` in the directory `parent`, inside a `with`: its undo step is there before it."""

    __slots__ = ("_root",)

    def __init__(self, root: Rootfs, step: str, parent: int, name: str, old: Old = NOTHING) -> None:
        root.refuse_volume(parent, name)
        root.undo.append((step, os.dup(parent), name, old))
        self._root = root
        if root.journal >= 0:
            undo.write(root.journal, step, root.path_of(parent), name, old)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            os.close(self._root.undo.pop()[1])
            if self._root.journal >= 0:
                undo.write(self._root.journal, undo.FAILED, "", "", NOTHING)


def _status(parent: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _identity(status: os.stat_result | None) -> tuple[int, ...]:
    """What changes when another file takes the place of a file, or somebody writes to it."""
    return () if status is None else (status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns)


def _has_content(parent: int, name: str, data: bytes) -> bool:
    try:
        found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    except FileNotFoundError:
        return False
    try:
        return _content(found, len(data)) == data
    finally:
        os.close(found)


def _content(found: int, limit: int) -> bytes | None:
    """The bytes of the O_PATH fd `found`. The type is checked before the open, as in `Rootfs.regular`."""
    status = os.fstat(found)
    if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
        return None
    fd = _reopened(found, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return os.read(fd, limit)
    finally:
        os.close(fd)


def _components(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]


def _link_target(parent: int, name: str) -> str | None:
    """The target of the symlink `name`; None when nothing exists, FileExistsError when it is no link."""
    try:
        return os.readlink(name, dir_fd=parent)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name) from None
        raise


def _reopened(fd: int, flags: int) -> int:
    """Reopen `fd`, an O_PATH one, with `flags`, through /proc, which leads to the very same file."""
    if flags & os.O_PATH:
        mode = os.fstat(fd).st_mode
        if flags & os.O_DIRECTORY and not stat.S_ISDIR(mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        return os.dup(fd)
    if stat.S_ISLNK(os.fstat(fd).st_mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return os.open(f"/proc/self/fd/{fd}", (flags & ~os.O_NOFOLLOW) | os.O_CLOEXEC)
