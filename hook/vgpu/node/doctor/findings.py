"""A finding, and what the checks are given. Belongs here: the two types and how an error becomes a finding."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from vgpu.config import inventory as inventories
from vgpu.config.errors import VgpuError
from vgpu.config.inventory import Inventory
from vgpu.config.settings import Settings

OK, WARNING, FAILURE = "ok", "warning", "failure"


@dataclass(frozen=True)
class Finding:
    """`found` always; `expected` and `do` where something is not as it should be."""

    check: str
    status: str
    found: str
    expected: str = ""
    do: str = ""


@dataclass(frozen=True)
class CheckContext:
    """A node: its settings, and where its trees are. `root` holds etc, usr, run and var; `hook` is the gate's path.

    `real` is False for a fixture tree: then the running kernel is not asked about itself.
    """

    config_path: str
    settings: Settings
    root: str = "/"
    proc: str = "/proc"
    hook: str = "/usr/bin/vgpu-hook"
    python: str = "/usr/bin/python3"
    real: bool = True

    def path(self, path: str) -> str:
        """An absolute path of the node."""
        return os.path.join(self.root, path.lstrip("/"))

    def inventory(self) -> Inventory | None:
        """The node's inventory, None without a readable one: its own check says why."""
        try:
            return inventories.read(self.settings.run_dir)
        except VgpuError:
            return None


Check = Callable[[CheckContext], "Iterator[Finding]"]


def examine(name: str, check: Check, context: CheckContext) -> list[Finding]:
    """The findings of `check`; an error that it raises is one too."""
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
