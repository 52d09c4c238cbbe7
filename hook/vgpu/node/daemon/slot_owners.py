"""Which slots of a container's usage region belong to processes that have ended, as the host sees it.

Belongs here: finding a slot's owner among the container's processes. The slot names it as the container does, by pid,
start time and namespaces; the host knows other numbers. Does not belong here: reading the region
(vgpu.node.daemon.usage_regions), and its layout (vgpu.config.usage). In doubt a slot counts: a host that cannot read
something shows too much and never too little. The container writes the slots, so it could as well name a process that
never was, or clear the slot.
"""

from __future__ import annotations

import os

from vgpu.config.usage import Owner

MAX_STATUS = 1 << 16
MAX_MAPS = 1 << 20  #: some ten thousand mappings; a process with more counts
NS = 1_000_000_000

Process = tuple[int, int]  #: pid and start time in clock ticks after boot, both as the host sees them


def ended(owners: list[Owner], processes: list[Process], region_inode: int, proc: str = "/proc") -> frozenset[int]:
    """The slots whose owner is none of the container's `processes`, which were listed after the region was read.

    `region_inode` is the region's file: a process that does not map it any more has executed another program since.
    """
    if not owners:
        return frozenset()
    by_pid: dict[int, list[Process]] = {}
    for process in processes:
        by_pid.setdefault(pid_inside(process[0], proc), []).append(process)
    doubtful = by_pid.get(0, [])  # their pid inside is not known
    return frozenset(
        owner.slot
        for owner in owners
        if owner.reaped
        or not any(_is(owner, item, region_inode, proc) for item in [*by_pid.get(owner.pid, []), *doubtful])
    )


def _is(owner: Owner, process: Process, region_inode: int, proc: str) -> bool:
    """Whether `process`, whose pid inside fits or is not known, may be the owner."""
    thread = _living_thread(process[0], proc)
    inside = _inode(f"{thread}/ns/pid")
    if owner.pid_namespace and inside and inside != owner.pid_namespace:
        return False
    return _start_fits(owner, process, thread, proc) and _maps(thread, region_inode)


def _living_thread(pid: int, proc: str) -> str:
    """The directory of a thread that shows the namespaces and mappings of `pid`. A thread that has ended shows none."""
    own = f"{proc}/{pid}"
    try:
        threads = os.listdir(f"{own}/task")
    except OSError:
        return own
    candidates = (own, *(f"{own}/task/{thread}" for thread in threads))
    return next((path for path in candidates if os.path.exists(f"{path}/ns/mnt")), own)


def pid_inside(pid: int, proc: str = "/proc") -> int:
    """The number of process `pid` in its own PID namespace; 0 when it is not known."""
    try:
        status = _read(f"{proc}/{pid}/status", MAX_STATUS)
    except OSError:
        return 0
    for line in status.split(b"\n"):
        if line.startswith(b"NSpid:"):
            return int(line.split()[-1])
    return 0


def _start_fits(owner: Owner, process: Process, thread: str, proc: str) -> bool:
    """Whether the owner's start time may be the process's. A time namespace shifts what its processes see."""
    pid, started = process
    here, there = _inode(f"{proc}/self/ns/time"), _inode(f"{thread}/ns/time")
    if not owner.start_time or (owner.time_namespace and owner.time_namespace != there):
        return True
    if here == there:
        return owner.start_time == started
    own, other = _boot_offset(f"{proc}/self"), _boot_offset(f"{proc}/{pid}")
    if own is None or other is None:
        return True
    ticks = (other - own) * os.sysconf("SC_CLK_TCK") // NS
    return abs(started + ticks - owner.start_time) <= 1  # an offset may be a part of a tick


def _boot_offset(process: str) -> int | None:
    """The offset of CLOCK_BOOTTIME in the time namespace of a process, in ns; None when that is not known."""
    try:
        lines = _read(f"{process}/timens_offsets", MAX_STATUS).split(b"\n")
    except OSError:
        return None
    for line in lines:
        fields = line.split()
        if len(fields) == 3 and fields[0] == b"boottime":
            return int(fields[1]) * NS + int(fields[2])
    return None


def _maps(thread: str, inode: int) -> bool:
    """Whether the process of `thread` maps the file; True when that cannot be read.

    Only the inode's number is compared, because some file systems show different devices in maps and in stat.
    """
    try:
        text = _read(f"{thread}/maps", MAX_MAPS)
    except OSError:
        return True
    number = str(inode).encode("ascii")
    mapped = (fields[4] for fields in (line.split(None, 5) for line in text.split(b"\n")) if len(fields) > 4)
    return len(text) == MAX_MAPS or number in mapped


def _inode(path: str) -> int:
    """The inode of a namespace; 0 when it is not known."""
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0


def _read(path: str, limit: int) -> bytes:
    with open(path, "rb") as stream:
        return stream.read(limit)
