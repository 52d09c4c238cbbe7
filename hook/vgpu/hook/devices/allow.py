"""Opening a container's device cgroup for its GPU nodes. Runs as root, on the host's side, before the container starts.

Belongs here: the operation `AllowDevices`, the order of its steps, and which failures are errors. First systemd, if it
has a unit for the container, because it applies its own list when that changes (systemd). Then the kernel: the
container's cgroup and those up to its unit, as v1 lists (cgroup_v1) or v2 programs (cgroup_v2). Last, where others
restrict devices too, a check of the kernel's decision (access_check). Nothing changes above the unit: a refusal there
is an error that names it.

What only one kind of cgroup needs is imported when it is needed. The hook comes here while its child makes the mounts,
so a start does not wait for these imports. This is the host's side: the process never enters a container's namespaces.
"""

from __future__ import annotations

import errno
import os

from vgpu.config.errors import VgpuError
from vgpu.hook.devices import rules
from vgpu.hook.devices.rules import ContainerRules
from vgpu.hook.linux import cgroup, procfs
from vgpu.hook.linux.cgroup import DeviceCgroup

_DO_ROOT = "the hook has to run as root of the host, outside any container"
_DO_VANISHED = "another program removed this cgroup meanwhile; start the container again"

#: The errors of a cgroup's files, and of bpf(2) on its fd, after the cgroup was removed.
_VANISHED = (errno.ENOENT, errno.ENODEV, errno.EBADF)


class DeviceAccess:
    """The result. `text` is one line for the log. `changed` is False when the devices were open already."""

    __slots__ = ("cgroup", "changed", "text")

    def __init__(self, cgroup: str, changed: bool, text: str) -> None:
        self.cgroup = cgroup
        self.changed = changed
        self.text = text


class AllowDevices:
    """Permit `access` ("rw") to character `devices` (major, minor) to the cgroup of process `pid`.

    `container_rules` are the rules in config.json; on v2 the new program repeats them. `nodes` are the devices' files
    on the host, as far as they are known.
    """

    __slots__ = ("access", "container_rules", "devices", "nodes", "pid")

    def __init__(
        self, pid: int, devices: tuple[tuple[int, int], ...], access: str, container_rules: ContainerRules,
        nodes: dict[tuple[int, int], str] | None = None,
    ) -> None:  # fmt: skip
        self.pid = pid
        self.devices = devices
        self.access = access
        self.container_rules = container_rules
        self.nodes = nodes or {}

    def describe(self) -> str:
        numbers = ", ".join(f"{major}:{minor}" for major, minor in self.devices)
        return f"allow character devices {numbers} ({self.access}) in the device cgroup of process {self.pid}"

    def execute(self, proc: str = "/proc", run: str = "/run") -> DeviceAccess:
        """VgpuError when the devices cannot be opened. Earlier lines of v1 and systemd's list stay then. The runtime
        removes both with the container's cgroup."""
        started = procfs.start_time(self.pid, proc)
        place = cgroup.device_cgroup(self.pid, proc)
        shared = place.path in cgroup.deciding_paths(cgroup.memberships_of("self", proc), place.version)
        try:
            return _Opening(self, place, shared, run).execute()
        except (OSError, VgpuError) as error:
            if not procfs.lives(self.pid, started, proc):
                raise _gone(self.pid, place, error) from error
            if isinstance(error, VgpuError):
                raise
            vanished = error.errno in _VANISHED or not os.path.isdir(place.directory)
            raise VgpuError(
                f"{place.directory}: device rules", found=str(error), do=_DO_VANISHED if vanished else _DO_ROOT
            ) from error


class _Opening:
    """One execution of `what` on the cgroup `place`, which the runtime may share."""

    __slots__ = ("opening", "place", "run", "shared", "unit", "what")

    def __init__(self, what: AllowDevices, place: DeviceCgroup, shared: bool, run: str) -> None:
        self.what = what
        self.place = place
        self.shared = shared
        self.run = run
        self.opening = rules.opening(list(what.devices), what.access)
        self.unit = "" if shared else cgroup.unit_path(place.path)

    def execute(self) -> DeviceAccess:
        # A scope belongs to the container alone. A service belongs to whoever started the runtime.
        names = self.place.levels(self.unit) if self.unit.endswith(".scope") else [self.place.directory]
        fds: list[int] = []
        try:
            for name in names:
                fds.append(_open_directory(name))
            if self.place.version == 1:
                return self._open_lists(fds, names)
            return self._open_programs(fds, names)
        finally:
            for fd in fds:
                os.close(fd)

    def _open_lists(self, fds: list[int], names: list[str]) -> DeviceAccess:
        from vgpu.hook.devices import cgroup_v1  # noqa: PLC0415

        listed, remarks, _ = self._allow_in_systemd()
        lines = cgroup_v1.open_levels(fds, names, self.opening, self.shared)
        if listed:
            self._check_kernel(fds[0], "compare devices.list here and above")
        return self._access(lines, remarks, "the devices were open already")

    def _open_programs(self, fds: list[int], names: list[str]) -> DeviceAccess:
        from vgpu.hook.devices import cgroup_v2  # noqa: PLC0415

        levels = [cgroup_v2.Level(fd, name, self.opening, self.what.container_rules) for fd, name in zip(fds, names)]
        listed, remarks, pins = self._allow_in_systemd()
        steps = [
            level.open(listed, self.shared, level is levels[0], pins, lambda: self._permitted(fds[0]))
            for level in levels
        ]
        own, others = cgroup_v2.attached(fds[0])
        strangers = cgroup_v2.foreign(others)
        if strangers:
            remarks.append(f"the kernel also runs: {cgroup_v2.located(strangers, self.place.directory)}")
        if others or listed:
            self._check_kernel(fds[0], remarks[-1] if remarks else "")
        why = "the devices were open already" if own or others else "no device program is attached, nothing to open"
        return self._access([step for step in steps if step], remarks, why)

    def _access(self, lines: list[str], remarks: list[str], otherwise: str) -> DeviceAccess:
        done = lines or [f"{self.place.directory}: {otherwise}"]
        return DeviceAccess(self.place.directory, bool(lines), "; ".join(done + remarks))

    def _allow_in_systemd(self) -> tuple[bool, list[str], tuple[str, ...]]:
        """(whether systemd's list has the devices, remarks for the log, pins of programs that systemd attaches)."""
        if not self.unit:
            return False, [], ()
        name = self.unit.rpartition("/")[2]
        if not os.path.isdir(f"{self.run}/systemd/system"):
            return False, [f"systemd does not run here, {name} is only a name: kernel level only"], ()
        from vgpu.hook.devices import systemd  # noqa: PLC0415

        result = systemd.allow(name, self.what.devices, self.what.access, self.what.nodes, self.run)
        return result.listed, [result.text] if result.text else [], result.pins

    def _permitted(self, fd: int) -> bool:
        """Whether the kernel permits all devices already; False when a device's file is missing."""
        return self.what.nodes.keys() >= set(self.what.devices) and not self._refused(fd)

    def _check_kernel(self, fd: int, others: str) -> None:
        refused = self._refused(fd)
        if refused:
            line = rules.listed(rules.opening(refused, self.what.access))
            raise VgpuError(f"{self.place.directory}: device rules", expected=f"{line}, here and by all cgroups above",
                            found="refused by the kernel", do=others)  # fmt: skip

    def _refused(self, fd: int) -> list[tuple[int, int]]:
        from vgpu.hook.devices import access_check  # noqa: PLC0415

        return access_check.refused(fd, self.place.directory, self.what.nodes, self.what.access)


def _open_directory(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise VgpuError(f"{path}: cannot be opened", found=error.strerror, do=_DO_ROOT) from error


def _gone(pid: int, place: DeviceCgroup, error: Exception) -> VgpuError:
    return VgpuError(
        f"{place.directory}: device rules", expected=f"process {pid}, the container's init, to live until it starts",
        found=f"it has ended ({error})", do="find out what killed it; nothing is left to undo",
    )  # fmt: skip
