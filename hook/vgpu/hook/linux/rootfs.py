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

from vgpu.hook.linux import syscalls

MAX_LINKS = 40  # as the kernel's
MAX_COMPONENTS = 256
RETRIES = 32  # openat2 answers EAGAIN when a rename races its `..`


class Rootfs:
    """The root file system of one container, below the O_PATH directory `fd`, until `close`.

    `owner` (uid, gid) is the container's root; in a user namespace it is not 0. Created files have to belong to it, so
    the caller first becomes the owner (`syscalls.create_as`): the kernel refuses a file of the host's root on a file
    system that the container's user namespace owns, such as its /dev.
    `undo` collects the steps that undo creations and replacements; `take_back` runs them, newest first.
    """

    __slots__ = ("_openat2", "_parents", "fd", "owner", "undo")

    def __init__(self, fd: int, owner: tuple[int, int] = (0, 0)) -> None:
        self.fd = fd
        self.owner = owner
        self.undo: list[tuple[str, int, str, str]] = []
        self._openat2 = True
        self._parents: dict[str, int] = {}  # resolved directories, each resolved once and held until `close`

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
            raise OSError(error.errno, os.strerror(error.errno or 0), path) from error
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
        os.mkdir(name, 0o755, dir_fd=parent)
        directory = os.open(name, flags | os.O_DIRECTORY, dir_fd=parent)
        self._undoable("rmdir", parent, name)
        return directory

    def _undoable(self, step: str, parent: int, name: str, value: str = "") -> None:
        self.undo.append((step, os.dup(parent), name, value))

    def _parent(self, path: str) -> tuple[int, str]:
        """(directory, name in it) of `path`. The caller must not close the directory."""
        directory, _, name = path.rpartition("/")
        fd = self._parents.get(directory)
        if fd is None:
            fd = self._parents[directory] = self.directory(directory or "/")
        return fd, name

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
            return self._new_file(parent, name)
        except FileExistsError:
            found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        kind = os.fstat(found).st_mode
        if not stat.S_ISLNK(kind) and not stat.S_ISDIR(kind):
            return found
        os.close(found)
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        self._remove_link(parent, name)
        return self._new_file(parent, name)

    def _new_file(self, parent: int, name: str) -> int:
        """An fd of a new empty file; FileExistsError when the name exists, even as a symlink."""
        fd = os.open(name, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=parent)
        self._undoable("unlink", parent, name)
        return fd

    def _remove_link(self, parent: int, name: str) -> None:
        target = os.readlink(name, dir_fd=parent)
        os.unlink(name, dir_fd=parent)
        self._undoable("symlink", parent, name, target)

    def symlink(self, path: str, target: str) -> None:
        """Make `path` a symlink to `target`; a rename replaces an existing link. FileExistsError for other files."""
        parent, name = self._parent(path)
        try:
            os.symlink(target, name, dir_fd=parent)
        except FileExistsError:
            self._replace_link(parent, name, target)
        else:
            self._undoable("unlink", parent, name)

    def _replace_link(self, parent: int, name: str, target: str) -> None:
        old = _link_target(parent, name)
        if old == target:
            return
        temporary = f".vgpu.{os.getpid()}.{name}"
        os.symlink(target, temporary, dir_fd=parent)
        os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
        self._undoable("unlink" if old is None else "symlink", parent, name, old or "")

    def read(self, path: str, limit: int) -> bytes | None:
        """A regular file's bytes; None when there is none or it is longer than `limit`."""
        try:
            fd = self.regular(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            return os.read(fd, limit) if os.fstat(fd).st_size <= limit else None
        finally:
            os.close(fd)

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

    def replace(self, path: str, data: bytes, old: bytes | None) -> None:
        """Replace `path`, whose content was `old`, by a file of `data`, by rename; mode 0644."""
        parent, name = self._parent(path)
        self._rename_over(parent, name, data)
        if old is None:
            self._undoable("unlink", parent, name)
        else:
            self._undoable("restore", parent, name, old.decode("latin-1"))

    def _rename_over(self, parent: int, name: str, data: bytes) -> None:
        temporary = f".vgpu.{os.getpid()}.{name}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(temporary, flags, 0o644, dir_fd=parent)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
        except OSError:
            os.unlink(temporary, dir_fd=parent)
            raise
        finally:
            os.close(fd)

    def take_back(self) -> list[str]:
        """Undo everything, newest first. A step that fails does not stop the rest; returns a message for each."""
        failed = []
        while self.undo:
            step, parent, name, value = self.undo.pop()
            try:
                self._undo(step, parent, name, value)
            except OSError as error:
                failed.append(f"{step} {name}: {error.strerror}")
            finally:
                os.close(parent)
        return failed

    def _undo(self, step: str, parent: int, name: str, value: str) -> None:
        if step == "rmdir":
            os.rmdir(name, dir_fd=parent)
        elif step == "restore":
            self._rename_over(parent, name, value.encode("latin-1"))
        elif step == "unlink" or _link_target(parent, name) is not None:
            os.unlink(name, dir_fd=parent)
        if step == "symlink":
            os.symlink(value, name, dir_fd=parent)

    def keep(self) -> None:
        """Drop the undo steps after success."""
        for _, parent, _, _ in self.undo:
            os.close(parent)
        self.undo.clear()


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
