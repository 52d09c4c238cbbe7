"""The health of the node's cards, `<run>/health.json`: which cards no new container should get, and why.

Belongs here: the record, its age, and its reading and writing. vgpud writes it. The ledger reads it before it places a
container, the device plugin for kubelet, `vgpuctl doctor` for an administrator. Not here: when a card is ill, and when
a fault is over (vgpu.node.cards).

Whoever removes the file declares all recorded faults settled.
"""

from __future__ import annotations

from vgpu.config import paths, records
from vgpu.config.errors import NotKnown, VgpuError
from vgpu.config.fields import Fields

VERSION = 2
WITHOUT_REASONS = 1  #: the version that the device plugin wrote before: it has the same faults
EVERY = 10.0  #: seconds after which vgpud writes the record again, also without a change
MAX_AGE = 60.0  #: seconds after which a record is of a vgpud that hangs or has ended


class Health:
    """`reasons`: card uuid -> why the card is ill, without the healthy ones. `known`: whether vgpud could look at the
    cards in its last round. `written` is vgpu.config.clock's time. `faults` are for vgpud itself, as it wrote them.
    """

    __slots__ = ("driver", "faults", "known", "reasons", "written")

    def __init__(
        self,
        reasons: dict[str, str],
        known: bool,
        written: float,
        driver: list[object],
        faults: list[dict[str, object]],
    ) -> None:
        self.reasons = reasons
        self.known = known
        self.written = written
        self.driver = driver
        self.faults = faults

    def is_fresh(self, at: float) -> bool:
        return 0 <= at - self.written <= MAX_AGE


def write(run_dir: str, health: Health, boot_id: str) -> None:
    """Replace the record. OSError when it cannot be written."""
    records.write(paths.health(run_dir), {
        "version": VERSION, "boot_id": boot_id, "driver": health.driver, "written": health.written,
        "known": health.known, "faults": health.faults,
        "reasons": [{"card": uuid, "text": text} for uuid, text in health.reasons.items()],
    })  # fmt: skip


def read(run_dir: str, boot_id: str) -> Health | None:
    """The record; None when there is none of this boot. VgpuError when it is damaged, NotKnown when it is not to be
    looked at.
    """
    path = paths.health(run_dir)
    try:
        fields = Fields(records.read(path), path)
    except FileNotFoundError:
        return None
    old = fields.record.get("version") == WITHOUT_REASONS
    if not old:
        fields.version(VERSION)
    if fields.text("boot_id") != boot_id:
        return None
    faults = [
        {"card": item.text("card"), "text": item.text("text"), "at": item.time("at"), "reset": item.flag("reset")}
        for item in fields.objects("faults")
    ]
    if old:
        return Health({}, False, 0.0, fields.items("driver"), faults)
    reasons = {item.text("card"): item.text("text") for item in fields.objects("reasons")}
    return Health(reasons, fields.flag("known"), fields.time("written"), fields.items("driver"), faults)


def ill(run_dir: str, boot_id: str, at: float) -> dict[str, str]:
    """Why a card is ill, by uuid, for whoever places a container at the time `at`.

    {} when vgpud has not written the record for MAX_AGE or it is damaged: a card is not ill because nobody looks.
    NotKnown when the record is not to be looked at.
    """
    try:
        found = read(run_dir, boot_id)
    except NotKnown:
        raise
    except VgpuError:
        return {}
    return found.reasons if found and found.is_fresh(at) else {}
