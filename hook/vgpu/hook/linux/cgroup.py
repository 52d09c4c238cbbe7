"""A process's cgroups, and the directory of its device cgroup, from texts of /proc. It only reads, and needs no root.

Belongs here: /proc/<pid>/cgroup, /proc/self/mountinfo, and what follows from the two. Not here: writing device rules
(vgpu.hook.devices). No path is ever built from configuration: `/proc/<pid>/cgroup` shows where the runtime, its cgroup
driver and its version have really put the process.
"""

from __future__ import annotations

import os

from vgpu.config import records
from vgpu.config.errors import VgpuError

PREFERRED = (("devices",), (), ("pids",), ("memory",))  #: the hierarchies in which runtimes put containers, best first
MAX_PATH = 4000
MAX_MOUNTINFO = 16 << 20  # a node with ten thousand mounts has some 3 MiB


class Membership:
    """One line of /proc/<pid>/cgroup; `controllers` is empty for cgroup v2 and `("name=systemd",)` for a named one."""

    __slots__ = ("controllers", "hierarchy", "path")

    def __init__(self, hierarchy: int, controllers: tuple[str, ...], path: str) -> None:
        self.hierarchy = hierarchy
        self.controllers = controllers
        self.path = path


class Mount:
    """A mounted cgroup hierarchy: `root` is the cgroup that appears at `point`, `options` are the hierarchy's."""

    __slots__ = ("fstype", "options", "point", "root")

    def __init__(self, root: str, point: str, fstype: str, options: tuple[str, ...]) -> None:
        self.root = root
        self.point = point
        self.fstype = fstype
        self.options = options

    def directory(self, path: str) -> str | None:
        """The directory of cgroup `path` below this mount; None when the mount does not show it."""
        root = self.root.rstrip("/")
        if path != root and not path.startswith(root + "/"):
            return None
        below = path[len(root) :].strip("/")
        if ".." in below.split("/"):  # outside our cgroup namespace
            return None
        return f"{self.point}/{below}" if below else self.point


class DeviceCgroup:
    """The cgroup that decides on devices. `version` is 1 or 2, `path` is in its hierarchy, `directory` in the mount."""

    __slots__ = ("directory", "path", "version")

    def __init__(self, version: int, path: str, directory: str) -> None:
        self.version = version
        self.path = path
        self.directory = directory

    def levels(self, top: str) -> list[str]:
        """The directories from this cgroup up to its ancestor `top`; only its own when `top` is not visible."""
        below = self.path[len(top) :] if top and self.path.startswith(top) else ""
        above, shown = top.rpartition("/")[2] + below, self.directory.split("/")
        if not top or shown[-above.count("/") - 1 :] != above.split("/"):
            return [self.directory]
        return ["/".join(shown[: len(shown) - count]) for count in range(above.count("/") + 1)]


_MARKER = {1: "devices.allow", 2: "cgroup.procs"}


def parse_cgroups(text: str) -> list[Membership]:
    """The lines of /proc/<pid>/cgroup, `5:devices:/kubepods/pod1/abc`. A path may contain colons."""
    found = []
    for line in text.split("\n"):
        parts = line.split(":", 2)
        if len(parts) == 3 and parts[0].isdigit() and parts[2].startswith("/"):
            controllers = tuple(parts[1].split(",")) if parts[1] else ()
            found.append(Membership(int(parts[0]), controllers, parts[2]))
    return found


def parse_mounts(text: str) -> list[Mount]:
    """The cgroup mounts of a mountinfo, in its order. Fields 4, 5 and, behind the lone `-`, 1 and 3 count."""
    found = []
    for line in text.split("\n"):
        head, separator, tail = line.partition(" - ")
        fields, end = head.split(" "), tail.split(" ")
        if separator and len(fields) >= 6 and len(end) >= 3 and end[0] in ("cgroup", "cgroup2"):
            found.append(Mount(unescape(fields[3]), unescape(fields[4]), end[0], tuple(end[2].split(","))))
    return found


def unescape(field: str) -> str:
    r"""A mountinfo field without escapes: \040 is a blank, \134 a backslash (three octal digits of a byte)."""
    if "\\" not in field:
        return field
    first, *rest = field.split("\\")
    parts = [os.fsencode(first)]
    for item in rest:
        code = item[:3]
        octal = len(code) == 3 and all(c in "01234567" for c in code) and int(code, 8) < 256
        parts.append(bytes([int(code, 8)]) + os.fsencode(item[3:]) if octal else b"\\" + os.fsencode(item))
    return os.fsdecode(b"".join(parts))


def candidates(memberships: list[Membership], mounts: list[Mount]) -> list[DeviceCgroup]:
    """Every directory that shows the device cgroup, in the order of the mounts.

    A hybrid machine has both hierarchies. v1 decides when its devices controller is mounted and the process has a place
    in it. No runtime uses a v1 hierarchy that is not mounted here.
    """
    version, shown = 1, [mount for mount in mounts if mount.fstype == "cgroup" and "devices" in mount.options]
    if not shown or not deciding_paths(memberships, 1):
        version, shown = 2, [mount for mount in mounts if mount.fstype == "cgroup2"]
    found = []
    for path in deciding_paths(memberships, version):
        for mount in shown:
            directory = mount.directory(path)
            if directory is not None:
                found.append(DeviceCgroup(version, path, directory))
    return found


def deciding_paths(memberships: list[Membership], version: int) -> list[str]:
    """The path in the hierarchy that holds device rules: v1's with the devices controller, or the unified one."""
    if version == 1:
        return [item.path for item in memberships if "devices" in item.controllers]
    return [item.path for item in memberships if item.hierarchy == 0 and not item.controllers]


def unit_path(path: str) -> str:
    """The cgroup of the systemd unit around `path`, "" when there is none.

    Units are in slices or in the root. The last unit counts: when the runtime runs in a container itself, the outer
    ones belong to a systemd outside. Below its unit a runtime makes cgroups of its own (crun: `container`).
    """
    parts = path.split("/")
    for index in range(len(parts) - 1, 0, -1):
        if parts[index].endswith((".scope", ".service")) and (index == 1 or parts[index - 1].endswith(".slice")):
            return "/".join(parts[: index + 1])
    return ""


def memberships_of(pid: int | str, proc: str = "/proc") -> list[Membership]:
    """The lines of /proc/<pid>/cgroup; VgpuError when the process is gone."""
    return parse_cgroups(text_of(pid, proc))


def text_of(pid: int | str, proc: str = "/proc") -> str:
    """/proc/<pid>/cgroup as it is; VgpuError when the process is gone."""
    return _text(f"{proc}/{pid}/cgroup", records.MAX_RECORD)


def paths_of(pid: int | str, proc: str = "/proc") -> list[str]:
    """All cgroup paths of a process, each once. In a container of Kubernetes some of them contain `kubepods`."""
    return list(dict.fromkeys(item.path for item in memberships_of(pid, proc)))


def own_of(pid: int, proc: str = "/proc") -> str:
    """`<controllers>:<path>` of the cgroup that the runtime made for `pid`; "" when `pid` shares the runtime's own.

    The hook reads it at claim time, because an init such as systemd moves itself later.
    """
    ours = {item.controllers: item.path for item in memberships_of("self", proc)}
    own = [
        item
        for item in memberships_of(pid, proc)
        if item.path.isprintable()
        and len(item.path) < MAX_PATH
        and not is_within(ours.get(item.controllers), item.path)
    ]
    if not own:
        return ""
    best = min(own, key=_rank)
    return f"{','.join(best.controllers)}:{best.path}"


def _rank(item: Membership) -> int:
    """A hierarchy's place in PREFERRED. v1's controllers may be mounted together: cpu,cpuacct."""
    for rank, controllers in enumerate(PREFERRED):
        if item.controllers == controllers or (controllers and controllers[0] in item.controllers):
            return rank
    return len(PREFERRED)


def is_within(path: str | None, top: str) -> bool:
    """Whether cgroup `path` is `top` or below it. Every path is below /."""
    return top == "/" or (path is not None and (path == top or path.startswith(top + "/")))


def device_cgroup(pid: int | str, proc: str = "/proc") -> DeviceCgroup:
    """The device cgroup of a process; VgpuError when no visible mount shows it."""
    memberships = memberships_of(pid, proc)
    mounts = parse_mounts(_text(f"{proc}/self/mountinfo", MAX_MOUNTINFO))
    found = candidates(memberships, mounts)
    for item in found:
        # A later mount may hide this one. The directory then belongs to another file system and lacks the file.
        if os.path.exists(f"{item.directory}/{_MARKER[item.version]}"):
            return item
    raise VgpuError(
        f"device cgroup of process {pid}",
        expected="its directory below a cgroup mount of this host",
        found=", ".join(item.directory for item in found) or _described(memberships),
        do=f"compare {proc}/{pid}/cgroup with {proc}/self/mountinfo; run the hook in the host's cgroup namespace",
    )


def _described(memberships: list[Membership]) -> str:
    own = deciding_paths(memberships, 1) + deciding_paths(memberships, 2)
    return "no mount that shows " + (" or ".join(own) or "a device cgroup")


def _text(path: str, limit: int) -> str:
    try:
        return os.fsdecode(records.read_bounded(path, limit))
    except OSError as error:
        raise VgpuError(f"{path}: cannot be read", found=error.strerror, do="the container's init is gone") from error
