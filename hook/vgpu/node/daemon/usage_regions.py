"""Reads a container's usage region from the host, through the container's root by file descriptor.

Belongs here: opening and reading the region. Does not belong here: decoding it (vgpu.config.usage), and finding the
owners of its slots (vgpu.node.daemon.slot_owners). The container writes the region, so its figures are only what the
container reports.
"""

from __future__ import annotations

import os

from vgpu.config import usage
from vgpu.config.errors import VgpuError
from vgpu.hook.linux.rootfs import Rootfs
from vgpu.node.daemon import slot_owners
from vgpu.node.daemon.slot_owners import Process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def region_of(pid: int, decode: Callable[[bytes], dict[str, int]], proc: str = "/proc") -> dict[str, int]:
    """Bytes by card uuid in the region of the container whose init is `pid`; {} if it has no readable region.

    `decode` is a function of vgpu.config.usage.
    """
    fd = open_region(pid, proc)
    if fd < 0:
        return {}
    try:
        return decode(os.pread(fd, usage.SIZE + 1, 0))
    except (OSError, VgpuError):
        return {}
    finally:
        os.close(fd)


def held(
    pid: int,
    processes: Callable[[], list[Process]],
    proc: str = "/proc",
    decode: Callable[[bytes, str, frozenset[int]], dict[str, int]] = usage.decode,
) -> dict[str, int]:
    """The bytes by card uuid that living processes hold, of the container whose init is `pid`.

    {} if it has no readable region. `decode` is a function of vgpu.config.usage. `processes` lists the container's
    processes; it is called after the region was read, so that it has every process that held something then and still
    lives. What ended processes held stays in the region until another process of the container looks for it, which may
    take long.
    """
    fd = open_region(pid, proc)
    if fd < 0:
        return {}
    try:
        data = os.pread(fd, usage.SIZE + 1, 0)
        owners = usage.owners(data)
        ended = slot_owners.ended(owners, processes(), os.fstat(fd).st_ino, proc) if owners else frozenset()
        return decode(data, "usage", ended)
    except (OSError, VgpuError):
        return {}
    finally:
        os.close(fd)


def open_region(pid: int, proc: str = "/proc") -> int:
    """A descriptor that reads the present region of the container whose init is `pid`; -1 if there is no region."""
    try:
        root = Rootfs(os.open(f"{proc}/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
    except OSError:
        return -1
    try:
        return root.regular(usage.PATH)
    except (OSError, VgpuError):
        return -1
    finally:
        root.close()
