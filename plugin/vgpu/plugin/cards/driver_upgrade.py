"""Whether the GPU operator upgrades the driver of this node, as the plugin knows it, and as it tells vgpud.

Belongs here: keeping what the API server's agent has seen, and the record for vgpud while it lasts. Does not belong
here: the labels and the form of the record (vgpu.config.driver_upgrade), and reading the node
(vgpu.plugin.apiserver.node_labels).

Until the agent has seen the node, the record of an earlier plugin counts, as it does for vgpud. A plugin that ends
leaves the record: nobody knows then that the upgrade is over, so vgpud waits until the record is too old.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from vgpu.config import driver_upgrade, paths
from vgpu.config.clock import since_boot
from vgpu.config.errors import NotKnown, VgpuError
from vgpu.hook.linux import staleness

AGAIN = 30.0  #: seconds after which the record is written again; vgpud believes it for ten times as long


class DriverUpgrade:
    """`reason`: why the driver must not be used, or "". `look` changes it; any thread may call `say`."""

    def __init__(
        self, run_dir: str, clock: Callable[[], float] = since_boot, proc: str = "/proc", boot_id: str = ""
    ) -> None:
        self.run_dir = run_dir
        self.clock = clock
        self.boot_id = boot_id or staleness.boot_id(proc)
        self.reason = ""
        self._said: str | None = None  # by the agent, once it has seen the node
        self._written = ("", 0.0)

    def say(self, reason: str) -> None:
        self._said = reason

    def look(self) -> None:
        """Do one round, and write or remove the record. Raises OSError; `reason` is right nevertheless.

        NotKnown when an earlier plugin's record cannot be looked at; `reason` stays then.
        """
        if self._said is None:
            self.reason = self._recorded()
            return
        self.reason = self._said
        if not self.reason:
            self._written = ("", 0.0)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(paths.driver_upgrade(self.run_dir))
        elif self._written[0] != self.reason or self.clock() - self._written[1] >= AGAIN:
            driver_upgrade.write(self.run_dir, self.reason, self.boot_id, self.clock())
            self._written = (self.reason, self.clock())

    def _recorded(self) -> str:
        try:
            return driver_upgrade.read(self.run_dir, self.boot_id, self.clock())
        except NotKnown:
            raise
        except VgpuError:
            return ""
