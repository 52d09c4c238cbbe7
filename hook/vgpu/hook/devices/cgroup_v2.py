"""Device programs of cgroup v2: what a runtime attached is replaced by what says the same and permits more. As root.

Belongs here: the programs of one cgroup, of those between it and its systemd unit, and pins of them. Adding a program
would only narrow, because all have to permit; and no program is dumped, which tells nothing under
net.core.bpf_jit_harden. What a runtime's rules are is devicerules', byte code is devicebpf's, and systemd's own
programs are changed by systemd (systemdunit).
"""

from __future__ import annotations

import errno
import os

from vgpu.config.errors import VgpuError
from vgpu.hook.devices import bpf_program
from vgpu.hook.devices import rules as devicerules
from vgpu.hook.devices.rules import ContainerRules, Filter, Rule
from vgpu.hook.linux import bpf

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAM_NAME = "vgpu_devices"
SYSTEMD_NAME = b"sd_devices"  # the program of a unit's DeviceAllow=; older ones have no name
PIN_SUFFIX = "-vgpu"


class Known:
    """A program that can be on a container's cgroup: whose it is, what it says, and how that runtime encodes it."""

    __slots__ = ("mov", "name", "rules")

    def __init__(self, name: str, rules: Filter, mov: int) -> None:
        self.name = name
        self.rules = rules
        self.mov = mov

    def load(self) -> int:
        return bpf.prog_load(bpf_program.program(self.rules, self.mov), PROGRAM_NAME)

    def opened(self, opening: list[Rule]) -> Known:
        return Known(self.name, self.rules.opened(opening), self.mov)


def known_programs(said: ContainerRules) -> list[Known]:
    """What runc and crun make of config.json, the likeliest first. runc has none for rules that it would refuse."""
    known = []
    for tun, suffix in ((True, ""), (False, " without tun")):
        try:
            rules = devicerules.runc(said, tun)
        except VgpuError:
            rules = None  # v1 cannot express them, so it was not runc that started this container
        if rules:
            known.append(Known("runc" + suffix, rules, bpf_program.MOV32_K))
        known.append(Known("crun" + suffix, devicerules.crun(said, tun), bpf_program.MOV64_K))
    known.append(Known("crun with a blank rule", devicerules.crun(said, blank=True), bpf_program.MOV64_K))
    return known


def narrowest(said: ContainerRules) -> Known:
    """What to go by when nobody's program is recognised: config.json with the defaults that all runtimes share."""
    names = ("runc without tun", "crun without tun")
    return next(item for name in names for item in known_programs(said) if item.name == name)


class Level:
    """A v2 cgroup, open as `fd`; `opening` is wanted besides what config.json `said`."""

    __slots__ = ("before", "directory", "fd", "opening", "said")

    def __init__(self, fd: int, directory: str, opening: list[Rule], said: ContainerRules) -> None:
        self.fd = fd
        self.directory = directory
        self.opening = opening
        self.said = said
        #: The programs before systemd was told of the devices: what is new then is systemd's.
        self.before = bpf.prog_query(fd)[0]

    def open(self, told: bool, shared: bool, own: bool, pins: tuple[str, ...], permitted: Callable[[], bool]) -> str:
        """Replace the runtime's program, if it refuses; returns what was done, "" when it was nothing.

        `told`: systemd applies its list, which has the devices, by programs of its own. `own`: the container's very
        cgroup, not one above it. `pins`: the files of programs that systemd attaches here for the runtime.
        `permitted`: asks the kernel, where a program is not recognised that may be systemd's and permit already.
        """
        ids, flags = bpf.prog_query(self.fd)
        if not ids:
            return ""
        if shared:
            devicerules.refuse_shared(self.directory)
        theirs = [_Attached(item, self) for item in ids if not (told and self._systemds(item))]
        try:
            refusing = [item for item in theirs if not item.permits]
            if told and any(item.known is None for item in refusing) and permitted():
                return ""
            if len(refusing) > 1:
                raise VgpuError(
                    f"{self.directory}: device programs", expected="one, the runtime's",
                    found=described([item.id for item in refusing]),
                    do="all of them have to permit a device; detach the foreign ones",
                )  # fmt: skip
            return self._open_program(refusing[0], flags, own, pins) if refusing else ""
        finally:
            for item in theirs:
                os.close(item.fd)

    def filter(self) -> Filter:
        """What the cgroup's programs say; VgpuError unless there is none, or one that is recognised."""
        ids, _ = bpf.prog_query(self.fd)
        if not ids:
            return Filter([], True)
        found = None
        if len(ids) == 1:
            old = bpf.prog_get_fd_by_id(ids[0])
            try:
                found = self.recognise(bytes(bpf.prog_info(old).tag))
            finally:
                os.close(old)
        if not found:
            where = f"{self.directory}: device programs"
            raise VgpuError(where, expected="one that config.json explains", found=described(ids))
        return found.rules

    def _systemds(self, prog_id: int) -> bool:
        return prog_id not in self.before or _name(prog_id).encode() == SYSTEMD_NAME

    def _open_program(self, old: _Attached, flags: int, own: bool, pins: tuple[str, ...]) -> str:
        """Open by way of `old`, the only program that refuses and is not known to be systemd's."""
        found, pin = old.known, _pin_of(old.id, pins)
        if not found and not pin:
            if old.name == SYSTEMD_NAME:
                do = devicerules.OWN_CGROUP if own else "systemd has to change it, and could not be told"
                raise VgpuError(f"{self.directory}: device program", expected="the runtime's",
                                found="systemd's own for the unit", do=do)  # fmt: skip
            if not own:
                return ""  # systemd's, before it named them, or a stranger's: the kernel will tell
        new_id = self._put_in_place((found or narrowest(self.said)).opened(self.opening), old, flags, pin)
        whose = f"{found.name}'s" if found else "a program of an unknown runtime, by the rules of config.json"
        pinned = f", also at {pin}" if pin else ""
        rules = devicerules.listed(self.opening)
        return f"{self.directory}: program {new_id} for {old.id} ({whose}), with {rules}{pinned}"

    def _put_in_place(self, program: Known, old: _Attached, flags: int, pin: str) -> int:
        """The id of `program` once it stands where `old` stood, first in the pin that systemd reads again."""
        new = program.load()
        try:
            new_id = int(bpf.prog_info(new).id)
            if pin:
                replace_pin(pin, new)
            swap(self.fd, new, old.fd, flags)
        finally:
            os.close(new)
        after, _ = bpf.prog_query(self.fd)
        if new_id not in after or old.id in after:
            raise VgpuError(f"{self.directory}: device programs", expected=f"{new_id} after it was put in place",
                            found=described(after), do="look for another writer of this cgroup's rules")  # fmt: skip
        return new_id

    def recognise(self, tag: bytes) -> Known | None:
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


class _Attached:
    """A program on the cgroup of `level`, open as `fd`: the `known` one that it is, and whether that permits all."""

    __slots__ = ("fd", "id", "known", "name", "permits")

    def __init__(self, prog_id: int, level: Level) -> None:
        self.id = prog_id
        self.fd = bpf.prog_get_fd_by_id(prog_id)
        try:
            info = bpf.prog_info(self.fd)
            self.name = bytes(info.name)
            self.known = level.recognise(bytes(info.tag))
        except BaseException:
            os.close(self.fd)
            raise
        self.permits = self.known is not None and self.known.rules.permit_all(level.opening)


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


def replace_pin(path: str, fd: int) -> None:
    """Have `path` in a bpf file system mean `fd`, in one step."""
    beside = path + PIN_SUFFIX
    try:
        bpf.obj_pin(beside, fd)
    except FileExistsError:  # of a hook that was killed here
        os.unlink(beside)
        bpf.obj_pin(beside, fd)
    try:
        os.rename(beside, path)
    except OSError:
        os.unlink(beside)
        raise


def _pin_of(prog_id: int, pins: tuple[str, ...]) -> str:
    """Which of the `pins` holds this program; "" for none, or one that is gone."""
    for path in pins:
        try:
            fd = bpf.obj_get(path)
        except OSError:
            continue
        try:
            if int(bpf.prog_info(fd).id) == prog_id:
                return path
        finally:
            os.close(fd)
    return ""


# What lies above


def attached(fd: int) -> tuple[list[int], list[int]]:
    """The programs that a device of this cgroup has to pass: (its own, those of cgroups above)."""
    own, _ = bpf.prog_query(fd)
    effective, _ = bpf.prog_query(fd, bpf.BPF_F_QUERY_EFFECTIVE)
    return own, [item for item in effective if item not in own]


def foreign(ids: list[int]) -> list[int]:
    """Those which no run of ours attached."""
    return [item for item in ids if _name(item) != PROGRAM_NAME]


def located(ids: list[int], directory: str) -> str:
    """`ids`, each with the ancestor of `directory` that it is attached to, as far as they can be seen; for messages."""
    places: dict[int, str] = {}
    while directory.count("/") > 1:
        directory = os.path.dirname(directory)
        try:
            fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            break
        try:
            found = bpf.prog_query(fd)[0]
        except OSError:  # above the mount of the cgroups
            break
        finally:
            os.close(fd)
        for item in found:
            places.setdefault(item, directory)
    return ", ".join(f"{described([item])} on {places.get(item, 'a cgroup that is not shown here')}" for item in ids)


def described(ids: list[int]) -> str:
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
