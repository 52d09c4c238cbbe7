"""The faults of cards that the device plugin records, `<run>/health.json`, as other programs read them.

Belongs here: reading the record. Not here: writing it, and when a fault is over, which are the plugin's
(vgpu.plugin.cards.health_monitor).
"""

from __future__ import annotations

from vgpu.config import paths, records
from vgpu.config.errors import NotKnown, VgpuError
from vgpu.config.fields import Fields

VERSION = 1


def faults(run_dir: str, boot_id: str) -> dict[str, str]:
    """The text of each card's fault, by uuid; {} when nothing is recorded in this boot, or the record is damaged.

    NotKnown when the record cannot be looked at.
    """
    path = paths.health(run_dir)
    try:
        fields = Fields(records.read(path), path)
        fields.version(VERSION)
        if fields.text("boot_id") != boot_id:
            return {}
        return {item.text("card"): item.text("text") for item in fields.objects("faults")}
    except NotKnown:
        raise
    except (FileNotFoundError, VgpuError):
        return {}
