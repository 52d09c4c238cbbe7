"""Opening a container's device cgroup for its GPU nodes. Runs as root, on the host's side, before the container starts.

Belongs here: the one operation `AllowDevices` and what it does in the kernel. v1: `devices.allow`, read back. v2: the
runtime's program is replaced by one that says the same and permits the new devices as well; adding a second program
would only narrow, because all have to permit. What a runtime's rules are is devicerules', byte code is devicebpf's.

Only the process's own cgroup is changed. What its ancestors refuse stays refused: on v1 that is an error (the kernel
answers EPERM), on v2 the result says that ancestors have programs too.
"""

from __future__ import annotations

import errno
import os

from vgpu.config import records
from vgpu.config.errors import VgpuError
from vgpu.hook import cgroup, devicebpf, devicerules
from vgpu.hook import syscalls_bpf as bpf
from vgpu.hook.devicerules import ContainerRules, Filter, Rule

PROGRAM_NAME = "vgpu_devices"
SYSTEMD_NAME = b"sd_devices"  # the program of a unit's DeviceAllow=


class DeviceAccess:
    """What was done. `text` is one line for the log; `changed` is False when everything was open already."""

    __slots__ = ("cgroup", "changed", "text")

    def __init__(self, cgroup: str, changed: bool, text: str) -> None:
        self.cgroup = cgroup
        self.changed = changed
        self.text = text


class AllowDevices:
    """Permit `access` ("rw") to character `devices` (major, minor) to the cgroup of process `pid`.

    `rules` is what config.json says: on v2 the new program has to repeat it.
    """

    __slots__ = ("access", "devices", "pid", "rules")

    def __init__(self, pid: int, devices: tuple[tuple[int, int], ...], access: str, rules: ContainerRules) -> None:
        self.pid = pid
        self.devices = devices
        self.access = access
        self.rules = rules

    def describe(self) -> str:
        numbers = ", ".join(f"{major}:{minor}" for major, minor in self.devices)
        return f"allow character devices {numbers} ({self.access}) in the device cgroup of process {self.pid}"

    def execute(self, proc: str = "/proc") -> DeviceAccess:
        """VgpuError when the devices cannot be opened; the cgroup is then as it was, v1's earlier lines excepted."""
        place = cgroup.device_cgroup(self.pid, proc)
        opening = devicerules.opening(list(self.devices), self.access)
        shared = place.path in cgroup.deciding_paths(cgroup.memberships_of("self", proc), place.version)
        fd = _open_directory(place.directory)
        try:
            if place.version == 1:
                return _open_v1(fd, place.directory, opening, shared)
            return _Unified(fd, place.directory, opening, self.rules).open(shared)
        except OSError as error:
            raise VgpuError(f"{place.directory}: device rules", found=str(error), do=_DO_ROOT) from error
        finally:
            os.close(fd)


_DO_ROOT = "the hook has to run as root of the host, outside any container"
_DO_OWN = "start the container with a cgroup of its own (podman: not --cgroups=disabled)"


def open_devices(
    pid: int, devices: list[tuple[int, int]], access: str, config: dict[str, object], proc: str = "/proc"
) -> DeviceAccess:
    """`AllowDevices` for an OCI configuration as it was read from config.json."""
    return AllowDevices(pid, tuple(devices), access, devicerules.from_config(config)).execute(proc)


def allowed(
    pid: int, devices: list[tuple[int, int]], access: str, config: dict[str, object], proc: str = "/proc"
) -> bool:
    """Whether the process's own device cgroup permits all `devices`, as far as it can be read.

    VgpuError on v2 when the attached program is none that config.json explains: then nobody can tell.
    """
    place = cgroup.device_cgroup(pid, proc)
    fd = _open_directory(place.directory)
    try:
        if place.version == 1:
            rules = _read_list(fd)
        else:
            said = devicerules.from_config(config)
            rules = _Unified(fd, place.directory, devicerules.opening(devices, access), said).filter()
    except OSError as error:
        raise VgpuError(f"{place.directory}: device rules", found=str(error), do=_DO_ROOT) from error
    finally:
        os.close(fd)
    return all(rules.permits("c", major, minor, access) for major, minor in devices)


def _open_directory(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise VgpuError(f"{path}: cannot be opened", found=error.strerror, do=_DO_ROOT) from error


def _refuse_shared(directory: str, shared: bool) -> None:
    """A container without a cgroup of its own sits in its runtime's: opening that would open the host's service."""
    if shared:
        raise VgpuError(f"{directory}: the container shares it with the runtime",
                        expected="a device cgroup of the container's own, or one that is open", do=_DO_OWN)  # fmt: skip


# v1


def _open_v1(fd: int, directory: str, opening: list[Rule], shared: bool) -> DeviceAccess:
    before = _read_list(fd)
    if not before.default:
        if _permit(before, opening):
            return DeviceAccess(directory, False, f"{directory}: the devices were open already")
        _refuse_shared(directory, shared)
    elif shared:
        return DeviceAccess(directory, False, f"{directory}: a deny-list of the host, left as it is")
    # Also in a deny-list (`a *:* rwm`): there it takes back a denial of that very device, which the kernel hides.
    for rule in opening:
        _write_allow(fd, directory, rule)
    after = _read_list(fd)
    for rule in opening:
        if not _permit(after, [rule]):
            raise VgpuError(f"{directory}/devices.list", expected=f"{rule} after it was written to devices.allow",
                            found="no such line", do="look for another writer of this cgroup's rules")  # fmt: skip
    return DeviceAccess(directory, True, f"{directory}: wrote {_listed(opening)} to devices.allow")


def _write_allow(fd: int, directory: str, rule: Rule) -> None:
    path = f"{directory}/devices.allow"
    try:
        allow = os.open("devices.allow", os.O_WRONLY | os.O_CLOEXEC, dir_fd=fd)
        try:
            os.write(allow, str(rule).encode("ascii"))
        finally:
            os.close(allow)
    except OSError as error:
        denied = error.errno == errno.EPERM
        raise VgpuError(
            f"{path}: cannot add {rule}",
            expected="a parent cgroup that has this rule itself" if denied else "",
            found=error.strerror,
            do=f"see {os.path.dirname(directory)}/devices.list; a child cannot have more" if denied else _DO_ROOT,
        ) from error


def _read_list(fd: int) -> Filter:
    list_fd = os.open("devices.list", os.O_RDONLY | os.O_CLOEXEC, dir_fd=fd)
    try:
        return devicerules.parse_list(os.fsdecode(records.read_fd(list_fd, "devices.list", records.MAX_RECORD)))
    finally:
        os.close(list_fd)


def _permit(rules: Filter, opening: list[Rule]) -> bool:
    return all(rules.permits(rule.type, rule.major, rule.minor, rule.access) for rule in opening)


def _listed(opening: list[Rule]) -> str:
    return ", ".join(map(str, opening))


# v2


class _Known:
    """A program that can be on a container's cgroup: whose it is, what it says, and how that runtime encodes it."""

    __slots__ = ("mov", "name", "rules")

    def __init__(self, name: str, rules: Filter, mov: int) -> None:
        self.name = name
        self.rules = rules
        self.mov = mov

    def load(self) -> int:
        return bpf.prog_load(devicebpf.program(self.rules, self.mov), PROGRAM_NAME)

    def opened(self, opening: list[Rule]) -> _Known:
        return _Known(self.name, self.rules.opened(opening), self.mov)


def known_programs(said: ContainerRules) -> list[_Known]:
    """What runc and crun make of config.json, the likeliest first. runc has none for rules that it would refuse."""
    known = []
    for tun, suffix in ((True, ""), (False, " without tun")):
        try:
            rules = devicerules.runc(said, tun)
        except VgpuError:
            rules = None  # v1 cannot express them, so it was not runc that started this container
        if rules:
            known.append(_Known("runc" + suffix, rules, devicebpf.MOV32_K))
        known.append(_Known("crun" + suffix, devicerules.crun(said, tun), devicebpf.MOV64_K))
    return known


def _narrowest(said: ContainerRules) -> _Known:
    """What to go by when nobody's program is recognised: config.json with the defaults that all runtimes share."""
    known = known_programs(said)
    return next((item for item in known if item.name == "runc without tun"), known[-1])


class _Unified:
    """A v2 cgroup, open as `fd`; `opening` is wanted besides what config.json `said`."""

    __slots__ = ("directory", "fd", "opening", "said")

    def __init__(self, fd: int, directory: str, opening: list[Rule], said: ContainerRules) -> None:
        self.fd = fd
        self.directory = directory
        self.opening = opening
        self.said = said

    def open(self, shared: bool) -> DeviceAccess:
        ids, flags = bpf.prog_query(self.fd)
        above = _above(self.fd, ids)
        if not ids:
            return self._unchanged(f"no device program is attached, nothing to open{above}")
        _refuse_shared(self.directory, shared)
        if len(ids) > 1:
            raise VgpuError(f"{self.directory}: device programs", expected="one, the runtime's", found=_programs(ids),
                            do="all of them have to permit a device; detach the foreign ones")  # fmt: skip
        old = bpf.prog_get_fd_by_id(ids[0])
        try:
            return self._open_program(ids[0], old, flags, above)
        finally:
            os.close(old)

    def filter(self) -> Filter:
        """What the cgroup's programs say; VgpuError unless there is none, or one that is recognised."""
        ids, _ = bpf.prog_query(self.fd)
        if not ids:
            return Filter([], True)
        found = None
        if len(ids) == 1:
            old = bpf.prog_get_fd_by_id(ids[0])
            try:
                found = self._recognise(bytes(bpf.prog_info(old).tag))
            finally:
                os.close(old)
        if not found:
            where = f"{self.directory}: device programs"
            raise VgpuError(where, expected="one that config.json explains", found=_programs(ids))
        return found.rules

    def _open_program(self, old_id: int, old: int, flags: int, above: str) -> DeviceAccess:
        """Open by way of the only program, `old`."""
        info = bpf.prog_info(old)
        found = self._recognise(bytes(info.tag))
        if found and _permit(found.rules, self.opening):
            return self._unchanged(f"the devices were open already{above}")
        if not found and bytes(info.name) == SYSTEMD_NAME:
            raise VgpuError(f"{self.directory}: device program", expected="the runtime's",
                            found="systemd's own for the unit", do=_DO_OWN)  # fmt: skip
        new_id = self._put_in_place((found or _narrowest(self.said)).opened(self.opening), old, flags)
        whose = f"{found.name}'s" if found else "a program of an unknown runtime, by the rules of config.json"
        text = f"{self.directory}: program {new_id} for {old_id} ({whose}), with {_listed(self.opening)}{above}"
        return DeviceAccess(self.directory, True, text)

    def _put_in_place(self, program: _Known, old: int, flags: int) -> int:
        """The id of `program` once it stands alone where `old` stood."""
        new = program.load()
        try:
            new_id = int(bpf.prog_info(new).id)
            swap(self.fd, new, old, flags)
        finally:
            os.close(new)
        after, _ = bpf.prog_query(self.fd)
        if after != [new_id]:
            raise VgpuError(f"{self.directory}: device programs", expected=f"{new_id} alone after it was put in place",
                            found=_programs(after), do="look for another writer of this cgroup's rules")  # fmt: skip
        return new_id

    def _recognise(self, tag: bytes) -> _Known | None:
        """The known program with this tag, as its runtime loaded it or as an earlier run of ours opened it.

        The kernel itself computes the tags, since what it digests with changed (SHA-1, from Linux 6.18 SHA-256): each
        candidate is loaded, asked for its tag, and forgotten.
        """
        for known in known_programs(self.said):
            for item in (known, known.opened(self.opening)):
                fd = item.load()
                try:
                    if bytes(bpf.prog_info(fd).tag) == tag:
                        return item
                finally:
                    os.close(fd)
        return None

    def _unchanged(self, why: str) -> DeviceAccess:
        return DeviceAccess(self.directory, False, f"{self.directory}: {why}")


def swap(cgroup_fd: int, new: int, old: int, flags: int) -> None:
    """Attach `new` instead of `old`, never with none in between. `flags` are those that `old` was attached with."""
    if not flags & bpf.BPF_F_ALLOW_MULTI:
        bpf.prog_attach(cgroup_fd, new, flags)  # a cgroup that takes one program: attaching replaces it
        return
    try:
        bpf.prog_attach(cgroup_fd, new, bpf.BPF_F_ALLOW_MULTI | bpf.BPF_F_REPLACE, old)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # Before Linux 5.6: both for a moment, which permits what both permit.
        bpf.prog_attach(cgroup_fd, new, bpf.BPF_F_ALLOW_MULTI)
        bpf.prog_detach(cgroup_fd, old)


def _above(fd: int, ids: list[int]) -> str:
    """A remark when cgroups above have device programs: they are asked too."""
    effective, _ = bpf.prog_query(fd, bpf.BPF_F_QUERY_EFFECTIVE)
    more = [item for item in effective if item not in ids]
    return f"; cgroups above have their say as well: {_programs(more)}" if more else ""


def _programs(ids: list[int]) -> str:
    return ", ".join(f"{item} {_name(item)}".strip() for item in ids) or "none"


def _name(prog_id: int) -> str:
    """For messages; a program may be gone by now."""
    try:
        fd = bpf.prog_get_fd_by_id(prog_id)
    except OSError:
        return ""
    try:
        return str(bpf.prog_info(fd).name.decode("ascii", "replace"))
    finally:
        os.close(fd)
