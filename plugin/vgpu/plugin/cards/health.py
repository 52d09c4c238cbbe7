"""The health of the node's cards as vgpud has recorded it, and whether that is still known.

Belongs here: reading the record in each round. vgpud watches the cards (vgpu.node.cards). A vgpud that is away, or
whose record cannot be read, makes no card ill and none well: what was known stays.
"""

from __future__ import annotations

from collections.abc import Callable

from vgpu.config import health
from vgpu.config.clock import since_boot
from vgpu.config.errors import VgpuError


class CardHealth:
    """`reasons`: card uuid -> why the card is ill, without the healthy ones; replaced as a whole, never modified.

    `not_known`: why the present state is not known, or "".
    """

    def __init__(self, run_dir: str, boot_id: str, clock: Callable[[], float] = since_boot) -> None:
        self.run_dir = run_dir
        self.boot_id = boot_id
        self.clock = clock
        self.reasons: dict[str, str] = {}
        self.not_known = ""

    def look(self) -> None:
        """Do one round: read one small file."""
        try:
            found = health.read(self.run_dir, self.boot_id)
        except VgpuError as error:
            self.not_known = f"the health of the cards is as it was known last: {error}"
            return
        if found is not None:
            self.reasons = found.reasons
        fresh = found is not None and found.is_fresh(self.clock())
        if not fresh:
            self.not_known = "the health of the cards is as it was known last: vgpud does not watch them"
        elif found is not None and not found.known:
            self.not_known = "the health of the cards is as it was known last: vgpud could not look at them"
        else:
            self.not_known = ""
