"""The line for an exception that no step of the hook has turned into an error of its own.

Belongs here: what such an exception means to the administrator, and what to do. Not here: errors that a step expects,
which are VgpuErrors with a line of their own.
"""

from __future__ import annotations

import errno
import os

from vgpu.config.errors import NotKnown, VgpuError, escaped

#: What an error of the kernel says about the node: its name, what was found, what to do.
_CAUSES = """
ELOOP | a symbolic link, which vgpu follows nowhere in its own directories | find out who made it, and remove it
ENOSPC | no space on its file system | make room there
EDQUOT | no quota left on its file system | make room there
EROFS | a read-only file system | mount it read-write; paths.state and paths.run name other directories
EFBIG | the limit of this process on the size of files (RLIMIT_FSIZE)\
 | raise it in the service that runs the container runtime (LimitFSIZE=)
EMFILE | the limit of this process on open files (RLIMIT_NOFILE)\
 | raise it in the service that runs the container runtime (LimitNOFILE=)
ENFILE | the limit of this host on open files | raise fs.file-max
ENOMEM | no memory left | free memory of this host, or of the runtime's cgroup
EAGAIN | a limit of this host or of the runtime's cgroup (processes, memory, locks) | raise it
EIO | an input/output error | look into the kernel's log, and check the disk
EACCES | no permission | check its mode and owner, and the host's security module
EPERM | an operation that the kernel does not permit | check its attributes, and the host's security module
ENOENT | nothing there | run: vgpuctl doctor
ENOTDIR | something else than a directory in its path | run: vgpuctl doctor
EISDIR | a directory | remove it
EPIPE | a reader that has gone | start the container again
ENOSYS | a system call that this kernel or a filter does not allow | run: vgpuctl doctor
"""
_MORE = "run: vgpuctl doctor; if it finds nothing, report this line"


def line(step: str, error: BaseException) -> str:
    """`<step>: <what>: expected ..., found ...; <what to do>`, on one line."""
    return f"{step}: {meaning(step, error)}"


def meaning(step: str, error: BaseException) -> VgpuError:
    """The same as an error, without the step."""
    cause, what = (error.__cause__, error.what) if isinstance(error, NotKnown) else (error, "")
    if isinstance(cause, OSError) and cause.errno:
        return _of_system_call(cause, cause.errno, what)
    if isinstance(error, VgpuError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return VgpuError("vgpu-hook", expected="to finish", found="the signal SIGINT", do="start the container again")
    if isinstance(error, MemoryError):
        found, do = _cause("ENOMEM")
        return VgpuError("vgpu-hook", expected="memory", found=found, do=do)
    if isinstance(error, ImportError):
        return VgpuError(error.name or "a module", expected="it to be installed", found=str(error),
                         do="install vgpu again, and python3 with its whole standard library")  # fmt: skip
    found = f"{type(error).__name__}: {error}{_place(error)}"
    return VgpuError("vgpu-hook", expected=f"the step {step} to end", found=found, do=_MORE)


def _of_system_call(error: OSError, number: int, what: str = "") -> VgpuError:
    meaning = os.strerror(number)
    name = errno.errorcode.get(number, str(number))
    cause, do = _cause(name) or (meaning, _MORE)
    names = [escaped(str(name)) for name in (error.filename, error.filename2) if name is not None]
    call = (error.strerror or "").removesuffix(meaning).rstrip(": ")  # vgpu.hook.linux.syscalls puts the call there
    what = what or " -> ".join(names) or call or "a system call"
    return VgpuError(what, expected="no error", found=f"{cause} ({name})", do=do)


def _cause(name: str) -> tuple[str, ...]:
    """(found, do) of the error with this name, () when the table has no such line."""
    lines = (line.split(" | ") for line in _CAUSES.splitlines())
    return next((tuple(line[1:]) for line in lines if line[0] == name), ())


def _place(error: BaseException) -> str:
    """The innermost line of the traceback, for a report."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f" in {trace.tb_frame.f_code.co_name}, line {trace.tb_lineno}" if trace else ""
