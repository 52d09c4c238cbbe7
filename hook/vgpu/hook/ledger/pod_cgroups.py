"""What the cgroups of pods say about pods whose containers have ended: gone, or still there.

Belongs here: from the grants of a pod to the state of the pod's own cgroup, which kubelet makes before the pod's first
container and removes after the last one has ended for good. Not here: what follows from it (commitments). It only
reads procfs and looks whether directories exist: it opens no file of a cgroup, because a container can block that, and
the ledger's lock is held here. A process that does not see kubelet's cgroups, such as a plugin in a container, learns
nothing.
"""

from __future__ import annotations

import os

from vgpu.config.errors import VgpuError
from vgpu.config.grants import Grant
from vgpu.hook.ledger import container_processes
from vgpu.hook.ledger.container_processes import Populations
from vgpu.hook.linux import procfs
from vgpu.hook.linux.cgroup import Mount
from vgpu.hook.request import identity

GONE = "gone"  #: kubelet has removed the pod's cgroup in this boot: no container of it comes back
EMPTY = "empty"  #: it is there without any process: the pod ends, or kubelet makes its sandbox anew
BUSY = "busy"  #: a process of the pod runs, be it only the sandbox's
UNKNOWN = "unknown"  #: no record of this boot, or this process does not see kubelet's cgroups

_WORTH = (BUSY, EMPTY, UNKNOWN, GONE)  #: of several cgroups of one pod the first of these decides


class PodCgroups:
    """The states of pods in the boot `boot_id`, each found once. `proc` is the root of procfs."""

    __slots__ = ("_mounts", "_populations", "_states", "boot_id", "proc")

    def __init__(self, boot_id: str, proc: str = "/proc") -> None:
        self.boot_id = boot_id
        self.proc = proc
        self._mounts: list[Mount] | None = None
        self._populations = Populations(proc)
        self._states: dict[str, str] = {}

    def state(self, pod: list[Grant]) -> str:
        """The state of the pod that has the grants `pod`.

        After a reboot a pod has no cgroup until kubelet starts it again. So only records of this boot count.
        """
        found = {self._state_of(cgroup) for cgroup in self._recorded(pod)}
        return next((state for state in _WORTH if state in found), UNKNOWN)

    def directories(self, pod: list[Grant]) -> list[str]:
        """The directories of the pod's cgroup, which kubelet is going to remove when the pod ends."""
        return [path for cgroup in self._recorded(pod) for path in self._shown(*_parts(cgroup))]

    def _recorded(self, pod: list[Grant]) -> set[str]:
        return {grant.pod_cgroup for grant in pod if grant.pod_cgroup and grant.boot_id == self.boot_id != ""}

    def _state_of(self, cgroup: str) -> str:
        if cgroup not in self._states:
            self._states[cgroup] = self._look(*_parts(cgroup))
        return self._states[cgroup]

    def _look(self, path: str, controllers: str) -> str:
        """On v1 the recorded hierarchy shows whether the pod is there, and all of them whether a process is."""
        if self._shown(path) and self._has_process(path):
            return BUSY
        if self._shown(path, controllers):
            return EMPTY
        parent = path.rpartition("/")[0]
        return GONE if identity.KUBEPODS in parent and self._shown(parent, controllers) else UNKNOWN

    def _has_process(self, path: str) -> bool:
        """Whether a process that is no zombie is in the cgroup, or below it, of any hierarchy."""
        return any(procfs.start_time(pid, self.proc) for pid in self._populations.of(path))

    def _shown(self, path: str, controllers: str | None = None) -> list[str]:
        """The directories of cgroup `path`: in the hierarchy with `controllers`, or in every one."""
        if self._mounts is None:
            try:
                self._mounts = container_processes.cgroup_mounts(self.proc)
            except VgpuError:
                self._mounts = []
        found = [
            mount.directory(path)
            for mount in self._mounts
            if controllers is None or container_processes.shows(mount, controllers)
        ]
        return [directory for directory in found if directory and os.path.isdir(directory)]


def _parts(cgroup: str) -> tuple[str, str]:
    """(path, controllers) of a cgroup as a claim names it."""
    controllers, _, path = cgroup.partition(":")
    return path, controllers
