"""Executing a plan in a container's mount namespace, completely or not at all.

Belongs here: the order of execution, and that a start that fails leaves nothing. A child opens everything of the host,
enters the namespace and executes the operations, while the hook goes on. The child stays until the whole start has
succeeded and `keep` tells it so. When the start fails at any later step, or the hook is killed, it undoes all
operations, newest first. The parent never enters the namespace. Not here: what an operation does (operations). In the
namespace the child is root beside a container that may be hostile: it imports nothing, parses no JSON and opens no path
of the host.
"""

from __future__ import annotations

import os

from vgpu.config.errors import VgpuError
from vgpu.hook.inject import mounts, overlay
from vgpu.hook.inject.mounts import Handle, Mounts
from vgpu.hook.inject.operations import Inside, Operation, OverlayFile, ReplaceFile
from vgpu.hook.inject.overlay import OverNewMounts
from vgpu.hook.linux import mountinfo, syscalls
from vgpu.hook.linux.rootfs import Rootfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from vgpu.hook.inject.classic_mounts import Staging
    from vgpu.hook.inject.overlay import Sources
    from vgpu.hook.linux.selinux import Labels

MAX_REPORT = 4096
ATTEMPTS = 3
#: For the child, which fanotify could keep waiting for ever. FUSE holds it beyond SIGALRM; then the gate ends it.
MAX_SECONDS = 25

#: What the child reports: all operations are done; one failed, and all are undone; the same, and a file of the host may
#: have been replaced meanwhile; all are undone because there was no KEEP. The reason, or what is left, follows. Behind
#: DONE follow notes, and END.
DONE, FAILED, SOURCE_MAY_BE_GONE, UNDONE = b"0", b"1", b"2", b"3"
_LEFT = "; not undone: "
END = b"\0"
KEEP = b"k"  #: what the parent answers to DONE; the end of its pipe means: undo


def open_rootfs(pid: int, path: str, proc: str = "/proc") -> Rootfs:
    """The root file system at `path` in the mount namespace of `pid`, before its pivot_root."""
    namespace = Rootfs(os.open(f"{proc}/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
    try:
        fd = namespace.open(path, os.O_PATH | os.O_DIRECTORY)
    except OSError as error:
        expected = "the container's root in its mount namespace, before pivot_root"
        raise VgpuError(path, expected=expected, found=error.strerror, do="run as prestart or createRuntime") from None
    finally:
        os.close(namespace.fd)
    owner = _mapped(f"{proc}/{pid}/uid_map"), _mapped(f"{proc}/{pid}/gid_map")
    return Rootfs(fd, owner, mountinfo.read(pid, fd, proc))


def open_running(pid: int, proc: str = "/proc") -> Rootfs:
    """The root of a container that runs already, as process `pid`; for inspection only."""
    return Rootfs(os.open(f"{proc}/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))


def _mapped(path: str) -> int:
    """The host's id for the container's id 0, by the map of its user namespace."""
    with open(path, "rb") as stream:
        for line in stream:
            inside, outside, _ = line.split()
            if int(inside) == 0:
                return int(outside)
    raise VgpuError(path, expected="a mapping of 0", found="none", do="map the container's root")


def way_of_mounting() -> Callable[[Sources, Labels | None], Mounts]:
    """The way that this kernel, under this seccomp filter, allows."""
    if mounts.has_new_calls():
        return OverNewMounts
    from vgpu.hook.inject.classic_mounts import OverClassicMounts  # noqa: PLC0415

    return OverClassicMounts


class Execution:
    """The execution of `operations` in a container's mount namespace, until `keep` or `undo`, which close `root`.

    `staging` is a directory of the host for mounts that are incomplete (mounts.Staging); it is made when it is needed.
    `labels` are those of the mounts, where SELinux runs.
    `notes` are lines for the log after `finish`.
    `begin` does not wait for the child, `finish` does: the caller may do other work between them.
    """

    __slots__ = (
        "_answer",
        "_child",
        "_journal",
        "_namespace",
        "_report",
        "_step",
        "_way",
        "labels",
        "notes",
        "operations",
        "root",
        "staging",
    )

    def __init__(
        self, operations: tuple[Operation, ...], root: Rootfs, staging: str, labels: Labels | None = None
    ) -> None:
        self.operations = operations
        self.root = root
        self.staging = staging
        self.labels = labels
        self._way = way_of_mounting()
        self._namespace = self._report = self._answer = self._journal = -1
        self._child = 0
        self._step: Operation | None = None
        self.notes: list[str] = []

    def begin(self, pid: int, proc: str = "/proc") -> None:
        """Start the child, which opens everything of the host and enters the namespace of `pid`."""
        self._namespace = os.open(f"{proc}/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        self._start()

    def finish(self) -> None:
        """Wait until all operations are done. If one fails, VgpuError, and they are undone.

        A package manager may replace a file of the host between its opening and its mounting; the kernel refuses to
        mount the old one with ENOENT. Then everything is opened and executed again, at most ATTEMPTS times.
        """
        for attempt in range(1, ATTEMPTS + 1):
            report = os.read(self._report, MAX_REPORT)
            if report[:1] == DONE:
                self.notes = report[1:].rstrip(END).decode("utf-8", "replace").splitlines()
                return
            if not report:
                raise VgpuError("child in the mount namespace", expected="its report", found="its end; it was killed")
            self._wait()
            if report[:1] != SOURCE_MAY_BE_GONE or attempt == ATTEMPTS:
                raise VgpuError(report[1:].decode("utf-8", "replace"))
            self._start()

    def keep(self) -> None:
        """The start has succeeded: everything stays as it is. The caller then ends.

        OSError when the child could not be told; the caller has to `undo`. After that no failure counts any more.

        It waits for the child's end. The runtime would get an orphan as its own child, and crun 1.8 waits for a hook by
        SIGCHLD: where the orphan has ended first, crun misses the end of the hook and waits until its timeout.
        """
        try:  # noqa: SIM105 - contextlib would cost the hook's process time
            os.write(self._answer, KEEP)
        except BrokenPipeError:
            pass  # the child has ended after its report: nobody undoes anything any more
        try:  # noqa: SIM105
            self._close()
        except OSError:
            pass
        try:  # noqa: SIM105
            self._wait()
        except OSError:
            pass

    def undo(self) -> str:
        """The start has failed: undo what is done. Returns what could not be undone."""
        try:
            return self._undone() if self._child else ""
        finally:
            self._close()

    def _undone(self) -> str:
        self._answer = _closed(self._answer)
        report = b""
        while part := os.read(self._report, MAX_REPORT):
            report += part
        child = self._child
        self._wait()
        report = report.rpartition(END)[2]
        if not report:
            return "; ".join(self._recovered(child))
        text = report.decode("utf-8", "replace")
        return text[1:] if report[:1] == UNDONE else text.partition(_LEFT)[2]

    def _recovered(self, child: int) -> list[str]:
        """Undo, by its journal, what a child that was killed has done. Its mounts go with the namespace."""
        journal = b""
        while part := os.read(self._journal, MAX_REPORT):
            journal += part
        replaced = [item for item in self.operations if isinstance(item, ReplaceFile)]
        contents = {item.path.rpartition("/")[2]: item.old or b"" for item in replaced}
        return self.root.recover(journal, child, contents)

    def _close(self) -> None:
        self._namespace, self._journal = _closed(self._namespace), _closed(self._journal)
        self.root.close()

    def _start(self) -> None:
        self._report, report = os.pipe()
        answer, self._answer = os.pipe()
        _closed(self._journal)
        self._journal, journal = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._child = os.fork()
        if self._child == 0:
            try:
                self.root.journal = journal
                os.close(self._answer)  # its end has to be seen here when the parent dies
                self._in_child(report, answer)
            finally:
                os._exit(0)  # nothing may escape into the parent's stack, such as EPIPE after the parent's death
        for fd in (report, answer, journal):
            os.close(fd)

    def _wait(self) -> int:
        """The child's exit status (negative: the signal that ended it)."""
        child, self._child = self._child, 0
        status = os.waitpid(child, 0)[1]
        self._answer, self._report = _closed(self._answer), _closed(self._report)
        return os.waitstatus_to_exitcode(status)

    # In the child

    def _in_child(self, report: int, answer: int) -> None:
        inside: Inside | None = None
        try:
            syscalls.end_after(MAX_SECONDS)
            handles, over = self._opened()
            inside = Inside(self.root, over)
            self._execute(inside, over, handles)
            notes = "\n".join(over.notes).encode("utf-8", "replace").replace(END, b"?")
            os.write(report, DONE + notes[: MAX_REPORT - 2] + END)
            _close(over, handles)
            if _is_kept(answer):
                return
            left = "; ".join(inside.take_back())
            os.write(report, UNDONE + left.encode("utf-8", "replace")[: MAX_REPORT - 1])
        except BaseException as error:
            undone = inside.take_back() if inside else []
            left = _LEFT + "; ".join(undone) if undone else ""
            kind = SOURCE_MAY_BE_GONE if isinstance(error, FileNotFoundError) and not left else FAILED
            os.write(report, kind + f"{self._cause(error)}{left}".encode("utf-8", "replace")[: MAX_REPORT - 1])

    def _cause(self, error: BaseException) -> str:
        if isinstance(error, VgpuError):
            return str(error)
        cause = (error.strerror if isinstance(error, OSError) else "") or f"{type(error).__name__} {error}"
        return f"{self._step.describe() if self._step else 'entering the mount namespace'}: {cause}"

    def _opened(self) -> tuple[list[Handle | None], Mounts]:
        """Everything of the host that the operations need, before the child enters the namespace."""
        layered = [operation.source for operation in self.operations if isinstance(operation, OverlayFile)]
        over = overlay.over(self._way, layered, self.staging, self.labels)
        handles: list[Handle | None] = []
        for operation in self.operations:
            try:
                handles.append(operation.open(over))
            except OSError as error:
                raise VgpuError(operation.describe(), found=error.strerror) from error
        if any(handle is not None and handle.incomplete for handle in handles):
            os.makedirs(self.staging, mode=0o700, exist_ok=True)
        return handles, over

    def _execute(self, inside: Inside, over: Mounts, handles: list[Handle | None]) -> None:
        over.prepare()
        incomplete = sum(handle is not None and handle.incomplete for handle in handles)
        make = _staging_class() if incomplete else None
        syscalls.setns(self._namespace, syscalls.CLONE_NEWNS)
        over.enter()
        staging = make(self.staging, incomplete, self.root.table) if make else None
        try:
            if staging:
                self._stage(staging, over, handles)
            if self.root.owner != (0, 0):
                syscalls.create_as(*self.root.owner)
            for operation, handle in zip(self.operations, handles):
                self._step = operation
                operation.execute(inside, handle)
        finally:
            over.leave()
            if staging:
                staging.end()

    def _stage(self, staging: Staging, over: Mounts, handles: list[Handle | None]) -> None:
        for operation, handle in zip(self.operations, handles):
            if handle is not None and handle.incomplete:
                self._step = operation
                staging.complete(handle, over)


def _staging_class() -> type[Staging]:
    """Imported on the host's side."""
    from vgpu.hook.inject.classic_mounts import Staging  # noqa: PLC0415

    return Staging


def _is_kept(answer: int) -> bool:
    """Whether the parent answered KEEP. An error says nothing about that, so the answer is read again."""
    for _ in range(ATTEMPTS):
        try:
            return os.read(answer, len(KEEP)) == KEEP
        except OSError:
            continue
    return False


def _close(over: Mounts, handles: list[Handle | None]) -> None:
    """Close what was opened, while the parent still works: the kernel takes a millisecond for an unattached overlay."""
    try:
        over.close()
        for handle in handles:
            if handle is not None and handle.fd >= 0:
                os.close(handle.fd)
    except OSError:
        return  # the mounts are attached


def _closed(fd: int) -> int:
    if fd >= 0:
        os.close(fd)
    return -1
