"""The exporter as a service of the device plugin's process.

Belongs here: starting it in a thread. Its libraries take a second to load, and the plugin's main loop must not wait:
NVML reports no event of the time before the health monitor has registered for it, so whatever delays that start loses
faults of cards. Not here: the server (vgpu.plugin.exporter.server), and when to try again (vgpu.plugin.background).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from vgpu.config.errors import VgpuError
from vgpu.config.settings import Settings

if TYPE_CHECKING:
    from vgpu.plugin.exporter.server import Check, Exporter


class ExporterService:
    """One attempt to be the node's exporter. `problem`: None while it starts, "" once it listens, else why it does not.

    `close` waits for a start in progress, which is bounded, so that the next attempt finds lock and address free.
    """

    def __init__(self, settings: Settings, listen: str, checks: dict[str, Check]) -> None:
        self.settings = settings
        self.listen = listen
        self.checks = checks
        self.problem: str | None = None
        self._exporter: Exporter | None = None
        self._thread = threading.Thread(target=self._start, name="exporter-start", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._thread.join()
        if self._exporter is not None:
            self._exporter.close()
            self._exporter = None

    def _start(self) -> None:
        try:
            from vgpu.plugin.exporter.server import Exporter  # noqa: PLC0415  # the import that takes a second

            self._exporter = Exporter(self.settings, self.listen, self.checks)
        except (VgpuError, OSError, ImportError) as error:
            self.problem = str(error)
        else:
            self.problem = ""
