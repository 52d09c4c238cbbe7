"""Opening a container's device cgroup for its GPU nodes. Runs as root, on the host's side, before the container starts.

Belongs here: the one operation `AllowDevices`, the order of its steps, and what is an error. First systemd, if it has a
unit for the container, because it applies its own list when it is told (systemdunit); then the kernel, the container's
cgroup and those up to its unit: v1 lists (devicelists) or v2 programs (deviceprograms); then, where others have their
say, the kernel's verdict (deviceverdict). Above the unit nothing is changed: what refuses there is an error that
names it.
"""

from __future__ import annotations

import errno
import os

from vgpu.config.errors import VgpuError
from vgpu.hook.devices import cgroup_v1, cgroup_v2
from vgpu.hook.devices import rules as devicerules
from vgpu.hook.devices.rules import ContainerRules
from vgpu.hook.linux import cgroup, procfs
from vgpu.hook.linux.cgroup import DeviceCgroup

_DO_ROOT = "the hook has to run as root of the host, outside any container"
_DO_VANISHED = "another program removed this cgroup meanwhile; start the container again"

#: What the files of a cgroup, and bpf(2) for its fd, answer once it has been removed.
_VANISHED = (errno.ENOENT, errno.ENODEV, errno.EBADF)


class DeviceAccess:
    """What was done. `text` is one line for the log; `changed` is False when the kernel had everything open already."""

    __slots__ = ("cgroup", "changed", "text")

    def __init__(self, cgroup: str, changed: bool, text: str) -> None:
        self.cgroup = cgroup
        self.changed = changed
        self.text = text


class AllowDevices:
    """Permit `access` ("rw") to character `devices` (major, minor) to the cgroup of process `pid`.

    `rules` is what config.json says: on v2 the new program has to repeat it. `nodes` are the devices' files on the
    host, where they are known.
    """

    __slots__ = ("access", "devices", "nodes", "pid", "rules")

    def __init__(
        self, pid: int, devices: tuple[tuple[int, int], ...], access: str, rules: ContainerRules,
        nodes: dict[tuple[int, int], str] | None = None,
    ) -> None:  # fmt: skip
        self.pid = pid
        self.devices = devices
        self.access = access
        self.rules = rules
        self.nodes = nodes or {}

    def describe(self) -> str:
        numbers = ", ".join(f"{major}:{minor}" for major, minor in self.devices)
        return f"allow character devices {numbers} ({self.access}) in the device cgroup of process {self.pid}"

    def execute(self, proc: str = "/proc", run: str = "/run") -> DeviceAccess:
        """VgpuError when the devices cannot be opened. What was written before stays then: v1's earlier lines, and
        systemd's list. Both go with the container's cgroup."""
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
    """`what` is to be done at `place`, which is `shared` with the runtime or not."""

    __slots__ = ("opening", "place", "run", "shared", "unit", "what")

    def __init__(self, what: AllowDevices, place: DeviceCgroup, shared: bool, run: str) -> None:
        self.what = what
        self.place = place
        self.shared = shared
        self.run = run
        self.opening = devicerules.opening(list(what.devices), what.access)
        self.unit = "" if shared else cgroup.unit_path(place.path)

    def execute(self) -> DeviceAccess:
        # Above the container's own cgroup only a scope is its own; a service is that of whoever started the runtime.
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
        told, remarks, _ = self._tell()
        lines = cgroup_v1.open_levels(fds, names, self.opening, self.shared)
        if told:
            self._ask_kernel(fds[0], "see devices.list here and above")
        return self._access(lines, remarks, "the devices were open already")

    def _open_programs(self, fds: list[int], names: list[str]) -> DeviceAccess:
        levels = [cgroup_v2.Level(fd, name, self.opening, self.what.rules) for fd, name in zip(fds, names)]
        told, remarks, pins = self._tell()
        steps = [
            level.open(told, self.shared, level is levels[0], pins, lambda: self._permitted(fds[0])) for level in levels
        ]
        own, others = cgroup_v2.attached(fds[0])
        strangers = cgroup_v2.foreign(others)
        if strangers:
            remarks.append(f"asked as well: {cgroup_v2.located(strangers, self.place.directory)}")
        if others or told:
            self._ask_kernel(fds[0], remarks[-1] if remarks else "")
        why = "the devices were open already" if own or others else "no device program is attached, nothing to open"
        return self._access([step for step in steps if step], remarks, why)

    def _access(self, lines: list[str], remarks: list[str], otherwise: str) -> DeviceAccess:
        done = lines or [f"{self.place.directory}: {otherwise}"]
        return DeviceAccess(self.place.directory, bool(lines), "; ".join(done + remarks))

    def _tell(self) -> tuple[bool, list[str], tuple[str, ...]]:
        """(whether systemd has the devices in its list, remarks for the log, pins of programs that it attaches)."""
        if not self.unit:
            return False, [], ()
        name = self.unit.rpartition("/")[2]
        if not os.path.isdir(f"{self.run}/systemd/system"):
            return False, [f"systemd does not run here, {name} is but a name: kernel level only"], ()
        # Imported here, on the host's side, in the process that never enters a container's namespaces: without systemd
        # a start does not pay for the bus (1 ms).
        from vgpu.hook.devices import systemd  # noqa: PLC0415

        notice = systemd.tell(name, self.what.devices, self.what.access, self.what.nodes, self.run)
        return notice.told, [notice.text] if notice.text else [], notice.pins

    def _permitted(self, fd: int) -> bool:
        """Whether the kernel permits all devices already; False when a file is missing to ask with."""
        return self.what.nodes.keys() >= set(self.what.devices) and not self._refused(fd)

    def _ask_kernel(self, fd: int, others: str) -> None:
        refused = self._refused(fd)
        if refused:
            rules = devicerules.listed(devicerules.opening(refused, self.what.access))
            raise VgpuError(f"{self.place.directory}: device rules", expected=f"{rules}, here and by all cgroups above",
                            found="refused by the kernel", do=others)  # fmt: skip

    def _refused(self, fd: int) -> list[tuple[int, int]]:
        from vgpu.hook.devices import access_check  # noqa: PLC0415 - as in _tell

        return access_check.refused(fd, self.place.directory, self.what.nodes, self.what.access)


def _open_directory(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise VgpuError(f"{path}: cannot be opened", found=error.strerror, do=_DO_ROOT) from error


def _gone(pid: int, place: DeviceCgroup, error: Exception) -> VgpuError:
    return VgpuError(
        f"{place.directory}: device rules", expected=f"process {pid}, the container's init, to live until it starts",
        found=f"it has ended ({error})", do="who killed it says why; nothing is left to undo",
    )  # fmt: skip
