"""Device programs of cgroup v2: the hook replaces a runtime's program by one that permits the devices too. As root.

Belongs here: the programs of one cgroup and of those between it and its systemd unit, and pins of them. An additional
program could only restrict, because all programs have to permit. No program is dumped: dumps are useless under
net.core.bpf_jit_harden. Not here: the runtimes' rules (rules), byte code (bpf_program), and systemd's own programs,
which systemd changes (systemd).
"""

from __future__ import annotations

import errno
import os

from vgpu.config.errors import VgpuError
from vgpu.hook.devices import bpf_program, rules
from vgpu.hook.devices.rules import ContainerRules, Filter, Rule
from vgpu.hook.linux import bpf

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAM_NAME = "vgpu_devices"
SYSTEMD_NAME = b"sd_devices"  # the program of a unit's DeviceAllow=; older ones have no name
PIN_SUFFIX = "-vgpu"


class Known:
    """A program that may be on a container's cgroup: its runtime's name, its rules, and the runtime's encoding."""

    __slots__ = ("mov", "name", "rules")

    def __init__(self, name: str, rules: Filter, mov: int) -> None:
        self.name = name
        self.rules = rules
        self.mov = mov

    def load(self) -> int:
        return bpf.prog_load(bpf_program.program(self.rules, self.mov), PROGRAM_NAME)

    def opened(self, opening: list[Rule]) -> Known:
        return Known(self.name, self.rules.opened(opening), self.mov)


def known_programs(container_rules: ContainerRules) -> list[Known]:
    """The programs of runc and crun for config.json, the likeliest first. runc has none for rules that it refuses."""
    known = []
    for tun, suffix in ((True, ""), (False, " without tun")):
        try:
            runc = rules.runc(container_rules, tun)
        except VgpuError:
            runc = None  # v1 cannot express them, so runc did not start this container
        if runc:
            known.append(Known("runc" + suffix, runc, bpf_program.MOV32_K))
        known.append(Known("crun" + suffix, rules.crun(container_rules, tun), bpf_program.MOV64_K))
    known.append(Known("crun with a blank rule", rules.crun(container_rules, blank=True), bpf_program.MOV64_K))
    return known


def narrowest(container_rules: ContainerRules) -> Known:
    """The program to start from when none is recognised: config.json with the defaults that all runtimes share."""
    names = ("runc without tun", "crun without tun")
    return next(item for name in names for item in known_programs(container_rules) if item.name == name)


class Level:
    """A v2 cgroup, open as `fd`. `opening` are the rules to add to config.json's `container_rules`."""

    __slots__ = ("before", "container_rules", "directory", "fd", "opening")

    def __init__(self, fd: int, directory: str, opening: list[Rule], container_rules: ContainerRules) -> None:
        self.fd = fd
        self.directory = directory
        self.opening = opening
        self.container_rules = container_rules
        #: The programs before systemd gets the devices. Programs that come later are systemd's.
        self.before = bpf.prog_query(fd)[0]

    def open(self, listed: bool, shared: bool, own: bool, pins: tuple[str, ...], permitted: Callable[[], bool]) -> str:
        """Replace the runtime's program, if it refuses. Returns a line for the log, "" when nothing changed.

        `listed`: systemd's list has the devices, and systemd applies it by programs of its own. `own`: this is the
        container's own cgroup, not one above it. `pins`: the files of programs that systemd attaches here for the
        runtime. `permitted` checks the kernel's decision where an unrecognised program may be systemd's and permit
        the devices already.
        """
        ids, flags = bpf.prog_query(self.fd)
        if not ids:
            return ""
        if shared:
            rules.refuse_shared(self.directory)
        theirs = [_Attached(item, self) for item in ids if not (listed and self._systemds(item))]
        try:
            refusing = [item for item in theirs if not item.permits]
            if listed and any(item.known is None for item in refusing) and permitted():
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
        """The rules of the cgroup's program; VgpuError unless there is none, or one that is recognised."""
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
            raise VgpuError(where, expected="one that matches config.json", found=described(ids))
        return found.rules

    def _systemds(self, prog_id: int) -> bool:
        return prog_id not in self.before or _name(prog_id).encode() == SYSTEMD_NAME

    def _open_program(self, old: _Attached, flags: int, own: bool, pins: tuple[str, ...]) -> str:
        """Replace `old`, the only program that refuses and is not known to be systemd's."""
        found, pin = old.known, _pin_of(old.id, pins)
        if not found and not pin:
            if old.name == SYSTEMD_NAME:
                do = rules.OWN_CGROUP if own else "systemd has to change it, and could not be asked to"
                raise VgpuError(f"{self.directory}: device program", expected="the runtime's",
                                found="systemd's own for the unit", do=do)  # fmt: skip
            if not own:
                return ""  # systemd's, from before it named them, or a foreign one: the later check decides
        new_id = self._put_in_place((found or narrowest(self.container_rules)).opened(self.opening), old, flags, pin)
        owner = f"{found.name}'s" if found else "a program of an unknown runtime, by the rules of config.json"
        pinned = f", also at {pin}" if pin else ""
        opened = rules.listed(self.opening)
        return f"{self.directory}: program {new_id} for {old.id} ({owner}), with {opened}{pinned}"

    def _put_in_place(self, program: Known, old: _Attached, flags: int, pin: str) -> int:
        """Put `program` in the place of `old`, first in the pin that systemd reads again; returns its id."""
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
        """The known program with this tag, as its runtime loaded it or as an earlier run of the hook replaced it.

        The kernel computes the tags, because its digest has changed (SHA-1, from Linux 6.18 SHA-256): each candidate is
        loaded for its tag and closed again.
        """
        for known in known_programs(self.container_rules):
            for item in (known, known.opened(self.opening)):
                fd = item.load()
                try:
                    if bytes(bpf.prog_info(fd).tag) == tag:
                        return item
                finally:
                    os.close(fd)
        return None


class _Attached:
    """A program on the cgroup of `level`, open as `fd`. `known`: the one recognised; `permits`: it permits all."""

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
    """Attach `new` instead of `old`, with no moment without a program. `flags` are those of `old`."""
    if not flags & bpf.BPF_F_ALLOW_MULTI:
        bpf.prog_attach(cgroup_fd, new, flags)  # a cgroup for one program: attaching replaces it
        return
    try:
        bpf.prog_attach(cgroup_fd, new, bpf.BPF_F_ALLOW_MULTI | bpf.BPF_F_REPLACE, old)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # Before Linux 5.6 both are attached for a moment; only what both permit is permitted then.
        bpf.prog_attach(cgroup_fd, new, bpf.BPF_F_ALLOW_MULTI)
        bpf.prog_detach(cgroup_fd, old)


def replace_pin(path: str, fd: int) -> None:
    """Pin `fd` at `path` in a bpf file system, in one step."""
    beside = path + PIN_SUFFIX
    try:
        bpf.obj_pin(beside, fd)
    except FileExistsError:  # left by a hook that was killed here
        os.unlink(beside)
        bpf.obj_pin(beside, fd)
    try:
        os.rename(beside, path)
    except OSError:
        os.unlink(beside)
        raise


def _pin_of(prog_id: int, pins: tuple[str, ...]) -> str:
    """The one of the `pins` that holds this program, "" for none."""
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


# The cgroups above


def attached(fd: int) -> tuple[list[int], list[int]]:
    """The programs that decide on devices of this cgroup: (its own, those of cgroups above)."""
    own, _ = bpf.prog_query(fd)
    effective, _ = bpf.prog_query(fd, bpf.BPF_F_QUERY_EFFECTIVE)
    return own, [item for item in effective if item not in own]


def foreign(ids: list[int]) -> list[int]:
    """Those that the hook did not attach."""
    return [item for item in ids if _name(item) != PROGRAM_NAME]


def located(ids: list[int], directory: str) -> str:
    """`ids`, each with the ancestor of `directory` to which it is attached, if that is visible; for messages."""
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
    """A program's name; "" when it is gone."""
    try:
        fd = bpf.prog_get_fd_by_id(prog_id)
    except OSError:
        return ""
    try:
        return str(bpf.prog_info(fd).name.decode("ascii", "replace"))
    finally:
        os.close(fd)
