"""The staleness check: whether an inventory still describes this node, by driver version and boot id in /proc.

Belongs here: reading the two and comparing them. Not here: taking an inventory (vgpu.node.driver.discover). The hook
runs this before it uses anything of the inventory: after an update of the driver it would mount files that are gone.
"""

from __future__ import annotations

from vgpu.config import records
from vgpu.config.errors import VgpuError, is_absent, not_known

TYPE_CHECKING = False
if TYPE_CHECKING:  # not at run time: a stop asks for the boot's id only, and has no inventory
    from vgpu.config.inventory import Inventory

_MAX_TEXT = 1 << 16


def check(inventory: Inventory, proc_root: str = "/proc") -> None:
    """VgpuError when `inventory` is of another driver or of an earlier boot. What is not there is not compared.

    NotKnown when it cannot be looked at.
    """
    boot, version = boot_id(proc_root), driver_version(proc_root)
    if boot and inventory.boot_id and boot != inventory.boot_id:
        raise _stale(f"one of this boot ({boot})", inventory.boot_id)
    if version and version != inventory.driver_version:
        raise _stale(f"one of the loaded driver {version}", inventory.driver_version)


def _stale(expected: str, found: str) -> VgpuError:
    from vgpu.config.inventory import DO  # noqa: PLC0415

    return VgpuError("inventory", expected=expected, found=found, do=DO)


def driver_version(proc_root: str = "/proc") -> str:
    """The version of the loaded kernel module, "" without one; NotKnown when that cannot be found out.

    `NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar ...`, or, of the open kernel module,
    `NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build ...`.
    """
    for line in _text(proc_root + "/driver/nvidia/version").splitlines():
        if line.startswith("NVRM version:"):
            return next((word for word in line.split() if is_version(word)), "")
    return ""


def is_version(text: str) -> bool:
    """Whether `text` has the form of a driver's version: 390.157, 550.54.15."""
    parts = text.split(".")
    return len(parts) > 1 and all(part.isascii() and part.isdigit() for part in parts)


def boot_id(proc_root: str = "/proc", fallback: str = "/proc") -> str:
    """This boot's id. A `proc_root` of the driver's own may lack it; the kernel's never does."""
    name = "/sys/kernel/random/boot_id"
    return _text(proc_root + name).strip() or _text(fallback + name).strip()


def _text(path: str) -> str:
    """The file's text, "" without such a file; NotKnown when it cannot be looked at."""
    try:
        return records.read_bounded(path, _MAX_TEXT).decode("ascii", "replace")
    except OSError as error:
        if is_absent(error):
            return ""
        raise not_known(path, error) from error
