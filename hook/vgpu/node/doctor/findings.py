"""The types of the doctor: a finding, and the context that every check receives.

Belongs here: the two types, and how an error becomes a finding. Does not belong here: the checks, which are in the
other modules of this folder, and their order, which is in vgpu.node.ctl.doctor.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from vgpu.config import inventory as inventories
from vgpu.config.errors import VgpuError
from vgpu.config.inventory import Inventory
from vgpu.config.settings import Settings

OK, WARNING, FAILURE = "ok", "warning", "failure"
#: What the gate of a package starts, and what it starts where that does not exist, as the gate of a checkout does.
INTERPRETERS = ("/usr/lib/vgpu/python3", "/usr/bin/python3")


@dataclass(frozen=True)
class Finding:
    """The result of a check. `expected` and `do` are "" if the check found nothing wrong.

    `cause` is the check that found the cause of this finding, or "". `mended` is what `--fix` did for it, or "".
    """

    check: str
    status: str
    found: str
    expected: str = ""
    do: str = ""
    cause: str = ""
    mended: str = ""


@dataclass(frozen=True)
class CheckContext:
    """The node that the checks examine: its settings, and the roots of its trees.

    `root` contains etc, usr, run and var. `hook` is the path of the gate. `real` is False for a fixture tree; then the
    checks leave out the running kernel.
    """

    config_path: str
    settings: Settings
    root: str = "/"
    proc: str = "/proc"
    hook: str = "/usr/bin/vgpu-hook"
    python: str = field(default_factory=lambda: next(filter(os.path.exists, INTERPRETERS), INTERPRETERS[-1]))
    real: bool = True

    def path(self, path: str) -> str:
        """An absolute path of the node."""
        return os.path.join(self.root, path.lstrip("/"))

    def inventory(self) -> Inventory | None:
        """The node's inventory, or None if it cannot be read. The check "inventory" reports the reason."""
        try:
            return inventories.read(self.settings.run_dir)
        except VgpuError:
            return None


Check = Callable[[CheckContext], "Iterator[Finding]"]


def examine(name: str, check: Check, context: CheckContext) -> list[Finding]:
    """The findings of `check`. An error that the check raises becomes a finding."""
    try:
        return list(check(context))
    except VgpuError as error:
        return [failure(name, error)]
    except OSError as error:
        return [Finding(name, FAILURE, str(error), do="run as root")]


def failure(name: str, error: VgpuError, status: str = FAILURE) -> Finding:
    """`error` as a finding."""
    found = error.what if error.found is None else f"{error.what}: {error.found}"
    return Finding(name, status, found, error.expected, error.do)
