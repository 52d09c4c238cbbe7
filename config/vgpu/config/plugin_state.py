"""The device plugin's own state, `<run>/plugin.json`: whether it makes progress, serves kubelet, and sees its cards.

Belongs here: the record, its age, and its reading and writing. The device plugin writes it, and vgpud puts it into the
record of its rounds, from which the exporter shows it. The doctor reads it, too. Not here: what makes the plugin ready
(vgpu.plugin.main).
"""

from __future__ import annotations

from vgpu.config import paths, records
from vgpu.config.errors import NotKnown, VgpuError
from vgpu.config.fields import Fields

VERSION = 1
EVERY = 10.0  #: seconds after which the plugin writes the record again, also without a change
MAX_AGE = 60.0  #: seconds after which a record is of a plugin that hangs or has ended

State = dict[str, object]  #: alive, ready, health_known, warnings, and the node's name in Kubernetes, "" if not known


def write(run_dir: str, state: State, boot_id: str, at: float) -> None:
    """Replace the record. `at` is vgpu.config.clock's time. OSError when it cannot be written."""
    records.write(paths.plugin_state(run_dir), {"version": VERSION, "boot_id": boot_id, "written": at, **state})


def read(run_dir: str, boot_id: str, at: float) -> State:
    """The state; neither alive nor ready when the record is old, {} when no plugin has written one in this boot.

    NotKnown when the record cannot be looked at. A damaged record counts as none: the plugin replaces it.
    """
    path = paths.plugin_state(run_dir)
    try:
        fields = Fields(records.read(path), path)
        fields.version(VERSION)
        if fields.text("boot_id") != boot_id:
            return {}
        fresh = 0 <= at - fields.time("written") <= MAX_AGE
        found: State = {"alive": fields.flag("alive") and fresh, "ready": fields.flag("ready") and fresh}
        if fields.record.get("node"):
            found["node"] = fields.text("node")  # also when the plugin is away
        if fresh:
            found["health_known"] = fields.flag("health_known")
            found["warnings"] = fields.texts("warnings") if "warnings" in fields.record else []
        return found
    except NotKnown:
        raise
    except (FileNotFoundError, VgpuError):
        return {}
