"""The node's cards according to `<run>/inventory.json`, and the changes of that file.

Belongs here: reading the file again when it has changed, and the health that follows from it. A card that has left the
inventory is unhealthy; so are all cards when the inventory is stale or the driver is not loaded. A card that has left
stays known for the life of this process, so that its ids stay valid and return with it. vgpud takes the inventories.
"""

from __future__ import annotations

from collections.abc import Callable

from vgpu.config import inventory, paths
from vgpu.config.errors import NotKnown, VgpuError
from vgpu.config.inventory import Card
from vgpu.config.settings import Settings
from vgpu.hook.linux import staleness
from vgpu.node.service.file_signature import Signature, signature

GRACE = 10.0  #: seconds that an inventory may be missing or stale; vgpud replaces it within 2 s plus NVML's own time


class InventoryMonitor:
    """`cards`: all cards ever seen; `error`: why there is no usable inventory now, else "".

    `not_known`: why it could not be looked at in the last round, else "". All else then stays as it was.

    With `stale_counts` the cards of a stale inventory are known, too. That is for the time of a driver's upgrade, in
    which nobody takes another one: a plugin that starts then offers them as unhealthy, and kubelet keeps their ids.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float]) -> None:
        self.settings = settings
        self.clock = clock
        self.error = self.not_known = ""
        self.known: dict[str, Card] = {}
        self.present: set[str] = set()
        self.stale_counts = False
        self.ever = False  #: whether there was a usable inventory, even one without cards
        self._file: Signature = (-1,)
        self._found: inventory.Inventory | None = None
        self._had_driver = False
        self._bad_since = -1.0

    @property
    def driver_version(self) -> str:
        """The driver's version in the last inventory, "" before there was one."""
        return self._found.driver_version if self._found else ""

    @property
    def cards(self) -> list[Card]:
        return sorted(self.known.values(), key=lambda card: (card.uuid not in self.present, card.index, card.uuid))

    def look(self) -> None:
        """One round: a stat and two small files of /proc."""
        self.not_known = ""
        try:
            self._read()
            self._check()
        except NotKnown as error:
            self.not_known = f"the cards are as they were known last: {error}"
        except VgpuError as error:
            self.error = str(error)
            if self._bad_since < 0:
                self._bad_since = self.clock()
        else:
            self.error, self._bad_since = "", -1.0

    def reasons(self) -> dict[str, str]:
        """Card uuid -> why the inventory makes the card unhealthy."""
        if self.error and self.clock() - self._bad_since >= GRACE:
            return dict.fromkeys(self.known, self.error)
        return self.lost()

    def lost(self) -> dict[str, str]:
        """The same, without the reasons that concern all cards alike."""
        return {uuid: "no longer in this node's inventory" for uuid in self.known if uuid not in self.present}

    def _read(self) -> None:
        file = signature(paths.inventory(self.settings.run_dir), self._file)
        if file != self._file or self._found is None:
            try:
                self._found = inventory.read(self.settings.run_dir)
            except NotKnown:
                raise
            except VgpuError:
                self._found = None
                raise
            self._file = file

    def _check(self) -> None:
        """Take the inventory's cards as the present ones; VgpuError if the inventory is stale."""
        assert self._found is not None
        proc_root = self.settings.text("driver.proc_root")
        if self.stale_counts:
            self.known = {**{card.uuid: card for card in self._found.cards}, **self.known}
        staleness.check(self._found, proc_root)
        driver = bool(staleness.driver_version(proc_root))
        if self._had_driver and not driver:
            raise VgpuError("driver", expected=f"version {self._found.driver_version} loaded", found="none",
                            do="load it: nvidia-smi, or modprobe nvidia")  # fmt: skip
        self._had_driver = self._had_driver or driver
        self.ever = True
        self.present = {card.uuid for card in self._found.cards}
        self.known.update({card.uuid: card for card in self._found.cards})
