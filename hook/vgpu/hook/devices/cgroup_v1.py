"""Device cgroups of v1: `devices.allow`, written and read back. Runs as root, on the host's side.

Belongs here: the kernel's files of one cgroup and of those between it and its systemd unit. Not here: the meaning of
rules (rules). A write is one rule; the kernel keeps the list. A child cannot have what its parent denies, so the
outermost level comes first.
"""

from __future__ import annotations

import errno
import os

from vgpu.config import records
from vgpu.config.errors import VgpuError
from vgpu.hook.devices import rules
from vgpu.hook.devices.rules import Filter, Rule


def open_levels(levels: list[int], names: list[str], opening: list[Rule], shared: bool) -> list[str]:
    """Permit `opening` in the cgroups open as `levels`, the container's own first; returns what was written."""
    if shared:
        return _leave_shared(levels[0], names[0], opening)
    lines: list[str] = []
    for fd, directory in zip(reversed(levels), reversed(names)):
        lines += _open(fd, directory, opening)
    return lines


def read(fd: int) -> Filter:
    list_fd = os.open("devices.list", os.O_RDONLY | os.O_CLOEXEC, dir_fd=fd)
    try:
        return rules.parse_list(os.fsdecode(records.read_fd(list_fd, "devices.list", records.MAX_RECORD)))
    finally:
        os.close(list_fd)


def _leave_shared(fd: int, directory: str, opening: list[Rule]) -> list[str]:
    before = read(fd)
    if not before.default and not before.permit_all(opening):
        rules.refuse_shared(directory)
    return []


def _open(fd: int, directory: str, opening: list[Rule]) -> list[str]:
    before = read(fd)
    if not before.default and before.permit_all(opening):
        return []
    # In a deny-list (`a *:* rwm`) too: there the write removes a denial of that very device, which the kernel hides.
    for rule in opening:
        _write_allow(fd, directory, rule)
    after = read(fd)
    for rule in opening:
        if not after.permit_all([rule]):
            raise VgpuError(f"{directory}/devices.list", expected=f"{rule} after it was written to devices.allow",
                            found="no such line", do="look for another writer of this cgroup's rules")  # fmt: skip
    return [f"{directory}: wrote {rules.listed(opening)} to devices.allow"]


def _write_allow(fd: int, directory: str, rule: Rule) -> None:
    path = f"{directory}/devices.allow"
    try:
        allow = os.open("devices.allow", os.O_WRONLY | os.O_CLOEXEC, dir_fd=fd)
        try:
            os.write(allow, str(rule).encode("ascii"))
        finally:
            os.close(allow)
    except OSError as error:
        if error.errno != errno.EPERM:
            raise OSError(error.errno, f"{path}: {rule}: {error.strerror}") from error
        raise VgpuError(
            f"{path}: cannot add {rule}", expected="a parent cgroup that has this rule itself", found=error.strerror,
            do=f"see {os.path.dirname(directory)}/devices.list; a child cannot have more",
        ) from error  # fmt: skip
