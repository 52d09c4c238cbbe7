"""The process vgpu-exporter: one exporter of this node, until SIGTERM.

Belongs here: waiting until another exporter has ended, and reading settings that changed.
It needs no right but to read vgpud's record, which belongs to root.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from vgpu.config import settings as node_settings
from vgpu.config.errors import VgpuError
from vgpu.config.settings import Settings
from vgpu.node.service import privilege
from vgpu.node.service.file_signature import signature
from vgpu.node.service.log import Conditions, Log
from vgpu.node.service.sd_notify import Notifier
from vgpu.plugin.exporter.server import Exporter

PROGRAM = "vgpu-exporter"
RETRY = 2.0  #: seconds between two attempts to become the node's exporter, and between two looks at the settings


class Process:
    """`listen` replaces metrics.listen. Call `run` in the main thread."""

    def __init__(self, config_path: str, listen: str, log: Log, notifier: Notifier) -> None:
        self.config_path = config_path
        self.listen = listen
        self.log = log
        self.notifier = notifier
        self.conditions = Conditions(log)
        self.ended = threading.Event()
        self.exporter: Exporter | None = None
        self._file: tuple[int, ...] = ()

    def run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.ended.set())
        settings = self._settings()
        self.notifier.ready()
        while not self.ended.is_set():
            settings = self._changed() or settings
            if self.exporter is None:
                self._start(settings)
            self.notifier.alive()
            self.ended.wait(RETRY)
        self.notifier.stopping()
        self._stop()

    def _settings(self) -> Settings:
        self._file = signature(self.config_path)
        return node_settings.read(self.config_path)

    def _changed(self) -> Settings | None:
        """The settings, if their file has changed and can be read. The exporter then starts again."""
        if signature(self.config_path, self._file) == self._file:
            return None
        try:
            found = self._settings()
        except VgpuError as error:
            self.conditions.set("settings", f"the settings in force stay: {error}")
            return None
        self.conditions.set("settings", "")
        self._stop()
        return found

    def _start(self, settings: Settings) -> None:
        listen = self.listen or settings.text("metrics.listen")
        if not listen:
            self.conditions.set("exporter", "metrics.listen is empty: no address to listen at")
            return
        try:
            self.exporter = Exporter(settings, listen, self.log)
        except (VgpuError, OSError) as error:
            self.conditions.set("exporter", f"waiting: {error}")
            return
        self.conditions.set("exporter", "")
        self.log.info("listens", address=self.exporter.address)

    def _stop(self) -> None:
        if self.exporter is not None:
            self.exporter.close()
            self.exporter = None


def run(config_path: str, listen: str) -> None:
    """Be the exporter until SIGTERM or SIGINT."""
    log = Log(name=PROGRAM)
    try:
        Process(config_path, listen, log, Notifier(os.environ, os.getpid())).run()
    except (VgpuError, OSError) as error:
        log.warning(privilege.line(error, PROGRAM))
        sys.exit(1)
