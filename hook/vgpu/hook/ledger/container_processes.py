"""The processes of a container as the host sees them: pids with their start times.

Belongs here: `ContainerProcesses`, the processes that live now, for the daemon and its lender and metrics. Not here:
changing anything. Where a container has no cgroup of its own, or shares one, its PID namespace and its init's
descendants identify its processes.
"""

from __future__ import annotations

import os

from vgpu.config.claims import Claim
from vgpu.config.errors import VgpuError
from vgpu.hook.linux import cgroup, procfs
from vgpu.hook.linux.cgroup import Mount

TYPE_CHECKING = False
MAX_DEPTH = 64  #: of a process's ancestors


class Populations:
    """The processes in each cgroup, read once from /proc/<pid>/cgroup of all processes.

    Not from cgroup.procs: by fanotify's permission events a container with CAP_SYS_ADMIN can make whoever opens a file
    of its cgroup wait. The kernel refuses such events on procfs.
    """

    __slots__ = ("_only", "_proc", "_texts")

    def __init__(self, proc: str = "/proc", only: set[int] | None = None) -> None:
        self._proc = proc
        self._only = only
        self._texts: list[tuple[int, str]] | None = None

    def of(self, path: str, controllers: str | None = None) -> list[int]:
        """The pids in cgroup `path` and below it: in the hierarchy with `controllers`, or in any."""
        return [
            pid
            for pid, text in self._read()
            if path in text  # most processes are not of this container, and parsing takes longer than reading
            and any(
                cgroup.is_within(item.path, path)
                for item in cgroup.parse_cgroups(text)
                if controllers is None or ",".join(item.controllers) == controllers
            )
        ]

    def _read(self) -> list[tuple[int, str]]:
        if self._texts is None:
            self._texts = []
            for pid in _all_pids(self._proc) if self._only is None else self._only:
                try:
                    self._texts.append((pid, self._of_process(pid)))
                except VgpuError:  # it has ended meanwhile
                    continue
        return self._texts

    def _of_process(self, pid: int) -> str:
        """On v1 a first thread that has ended is in the root cgroups, while its process lives in another thread."""
        found = cgroup.text_of(pid, self._proc)
        v1 = [line for line in found.split("\n") if line and not line.startswith("0::")]
        if not v1 or not all(line.endswith(":/") for line in v1):
            return found
        others = [name for name in entries(f"{self._proc}/{pid}/task") if name != str(pid)]
        return cgroup.text_of(f"{pid}/task/{others[0]}", self._proc) if others else found


def entries(directory: str) -> list[str]:
    """The names in a directory, none when it is gone."""
    try:
        return os.listdir(directory)
    except OSError:
        return []


class ContainerProcesses:
    """The processes of the containers of `claims`. It has all claims, because containers may share a cgroup.

    `proc` is the root of procfs. With `only`, no other processes than these pids and the inits are looked at.
    """

    def __init__(self, claims: list[Claim], proc: str = "/proc", only: set[int] | None = None) -> None:
        self.proc = proc
        self.claims = claims
        self.only = only
        self._populations = Populations(proc, only)
        self._users: dict[str, int] = {}
        self._ancestry = _Ancestry(proc)
        for claim in claims:
            self._users[claim.cgroup] = self._users.get(claim.cgroup, 0) + 1

    def of(self, claim: Claim) -> list[tuple[int, int]]:
        """(pid, start time in clock ticks after boot) of each living process, by pid; [] when its init is gone."""
        if not procfs.lives(claim.pid, claim.start_time, self.proc):
            return []
        pids = self._in_cgroup(claim)
        if not pids:
            among = _all_pids(self.proc) if self.only is None else self.only
            pids = [pid for pid in among if self._ancestry.belongs(pid, claim.pid)]
        elif self._users.get(claim.cgroup, 0) > 1:
            pids = [pid for pid in pids if self._ancestry.belongs(pid, claim.pid)]
        started = ((pid, procfs.start_time(pid, self.proc)) for pid in sorted({*pids, claim.pid}))
        return [(pid, start) for pid, start in started if start]

    def of_budget(self, claim: Claim) -> list[tuple[int, int]]:
        """The same for all containers that share a budget, and so a usage region, with the claim's."""
        if not claim.prepared:
            return self.of(claim)
        sharing = [one for one in self.claims if one.prepared == claim.prepared]
        return sorted({process for one in sharing for process in self.of(one)})

    def _in_cgroup(self, claim: Claim) -> list[int]:
        """The pids in the claim's cgroup; [] when it has none of its own, or this process does not see it."""
        controllers, _, path = claim.cgroup.partition(":")
        return self._populations.of(path, controllers) if path else []


def shows(mount: Mount, controllers: str) -> bool:
    """Whether `mount` shows the hierarchy with these controllers, as a claim names it; "" is cgroup v2's."""
    if not controllers:
        return mount.fstype == "cgroup2"
    return mount.fstype == "cgroup" and set(controllers.split(",")) <= set(mount.options)


def cgroup_mounts(proc: str) -> list[Mount]:
    """The cgroup mounts of this process; VgpuError when procfs does not list them."""
    path = f"{proc}/self/mountinfo"
    try:
        with open(path, "rb") as stream:
            return cgroup.parse_mounts(os.fsdecode(stream.read(cgroup.MAX_MOUNTINFO)))
    except OSError as error:
        raise VgpuError(path, expected="the mounts of this process", found=error.strerror) from error


def _all_pids(proc: str) -> list[int]:
    return [int(name) for name in entries(proc) if name.isdigit()]


class _Ancestry:
    """Whether a process belongs to a container's init: by its ancestors, or by the init's PID namespace.

    A process of `runc exec` has a parent outside, but the init's PID namespace. A process of a nested PID namespace has
    a process of the init's namespace among its ancestors.
    """

    def __init__(self, proc: str) -> None:
        self.proc = proc
        self._parents: dict[int, int] = {}
        self._namespaces: dict[int, str] = {}
        self._host = self._namespace(os.getpid()) if proc == "/proc" else self._namespace(1)

    def belongs(self, pid: int, init: int) -> bool:
        inside = self._namespace(init)
        for _ in range(MAX_DEPTH):
            if pid == init or (inside not in ("", self._host) and self._namespace(pid) == inside):
                return True
            pid = self._parent(pid)
            if pid <= 1:
                return False
        return False

    def _namespace(self, pid: int) -> str:
        if pid not in self._namespaces:
            try:
                self._namespaces[pid] = os.readlink(f"{self.proc}/{pid}/ns/pid")
            except OSError:
                self._namespaces[pid] = ""
        return self._namespaces[pid]

    def _parent(self, pid: int) -> int:
        if pid not in self._parents:
            self._parents[pid] = procfs.parent(pid, self.proc)
        return self._parents[pid]
