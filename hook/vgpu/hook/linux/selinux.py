"""SELinux labels for the file systems that the hook makes for a container.

Belongs here: which label such a mount gets. Not here: what a policy allows with it (packaging/selinux), and the labels
of the host's own files, which nobody changes. The kernel gives all files of such a mount its label, by the mount option
`context`: the driver's files are readable wherever the host keeps them, and the usage region is the container's own.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

CHECK = "/sys/fs/selinux/context"  #: the kernel takes a label that its policy knows, and refuses any other
READ_ONLY_TYPE = (
    "container_ro_file_t"  #: the policies' own: a container reads, maps and executes it, and writes nothing
)


class Labels:
    """The label of mounts that the container may write, and of the others; "" gives a mount no label."""

    __slots__ = ("read_only", "writable")

    def __init__(self, writable: str = "", read_only: str = "") -> None:
        self.writable = writable
        self.read_only = read_only


UNLABELLED = Labels()


def is_known(label: str) -> bool:
    """Whether the running kernel's policy has this label. False without SELinux."""
    try:
        fd = os.open(CHECK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.write(fd, os.fsencode(label) + b"\0") > 0
    except OSError:
        return False
    finally:
        os.close(fd)


def labels(config: dict[str, object], known: Callable[[str], bool] = is_known) -> Labels:
    """The labels by `linux.mountLabel` of config.json, with which the runtime mounts the container's own file systems.

    The container's categories stay: no other container reads the mount. A policy without READ_ONLY_TYPE has the
    runtime's label everywhere.
    """
    linux = config.get("linux")
    label = linux.get("mountLabel") if isinstance(linux, dict) else None
    if not isinstance(label, str) or not label or not known(label):
        return UNLABELLED
    user, role, _, *level = label.split(":", 3)
    read_only = ":".join((user, role, READ_ONLY_TYPE, *level))
    return Labels(label, read_only if known(read_only) else label)
