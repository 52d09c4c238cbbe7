"""How many of the node's registrations of the hook work, for the record of the rounds.

Belongs here: when vgpud looks at them, and what counts as broken. Does not belong here: where they are
(vgpu.node.runtimes.places), and the doctor's words for them.
"""

from __future__ import annotations

from collections.abc import Callable

from vgpu.config import cdi_device
from vgpu.config.clock import since_boot
from vgpu.config.settings import Settings
from vgpu.node.runtimes import places

EVERY = 60.0  #: seconds between two looks


class Registrations:
    """`counts`: registrations by their state, working or broken. One that is broken keeps containers from starting."""

    def __init__(self, settings: Settings, root: str = "/", clock: Callable[[], float] = since_boot) -> None:
        self.settings = settings
        self.root = root
        self.clock = clock
        self.counts: dict[str, int] = {}
        self._due = 0.0

    def look(self) -> None:
        if self.clock() < self._due:
            return
        self._due = self.clock() + EVERY
        work = [places.is_program(self.root, program) for _, program in places.named(self.root)]
        undefined = self.settings.flag("plugin.cdi") and not places.defined(self.root, cdi_device.KIND)
        self.counts = {"working": work.count(True), "broken": work.count(False) + undefined}
