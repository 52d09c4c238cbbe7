"""A container's usage region, read by the host: through the container's root by file descriptor.

Belongs here: the reading alone. The container writes the region, so what it says is that container's word.
"""

from __future__ import annotations

import os

from vgpu.config import usage
from vgpu.config.errors import VgpuError
from vgpu.hook.linux.rootfs import Rootfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def region_of(pid: int, decode: Callable[[bytes], dict[str, int]], proc: str = "/proc") -> dict[str, int]:
    """Bytes by card uuid as `decode` (of vgpu.config.usage) finds them for the container of init `pid`.

    {} when it has no readable region.
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


def open_region(pid: int, proc: str = "/proc") -> int:
    """A descriptor to read the region of the container of init `pid`, as it is at its place now; -1: there is none."""
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
