"""CDI: one specification that adds the hook to the containers whose runtime is asked for its device.

Belongs here: the content of the file and its place. The runtime reads it by itself: no configuration of the runtime
changes, and nothing restarts. Does not belong here: who asks for the device, which is the device plugin.
"""

from __future__ import annotations

import json
from typing import Any

from vgpu.config import cdi_device
from vgpu.node.runtimes import base_spec, json_text, registered_files
from vgpu.node.runtimes.registered_files import OWN, Draft, Record
from vgpu.node.runtimes.registration import Registration, Wish

NAME = "cdi"  #: in the records of what was written, beside the names of runtimes
DIRECTORY = "/etc/cdi"
FILE = "vgpu.json"
#: The first version with hooks in the form that all later ones have.
VERSION = "0.3.0"
NOTES = (
    "containerd 1.7 needs enable_cdi = true in its CRI plugin's section; 2.x has CDI on, and 1.6 has none",
    "kubelet's containers: set plugin.cdi: true in /etc/vgpu/config.yaml and run vgpuctl config apply",
)
APPLIES = f"containers for which the CDI device {cdi_device.DEVICE} is asked, created from now on"


def registration(wish: Wish, record: Record) -> Registration:
    directory = wish.config.rstrip("/") or DIRECTORY
    return Registration((Draft(f"{directory}/{FILE}", text(wish), OWN),), APPLIES, notes=NOTES)


def text(wish: Wish) -> str:
    hooks = [{"hookName": stage, **base_spec.hook(wish, stage)} for stage in base_spec.STAGES]
    device: dict[str, Any] = {"name": cdi_device.NAME, "containerEdits": {"hooks": hooks}}
    return json.dumps({"cdiVersion": VERSION, "kind": cdi_device.KIND, "devices": [device]}, indent=2) + "\n"


def hooks(state_dir: str) -> dict[str, list[dict[str, Any]]]:
    """The hooks of this node's CDI device, as a container's config.json has them; {} without a device."""
    record = Record.read(state_dir, NAME)
    path = record.files[0]["path"] if record.files else f"{DIRECTORY}/{FILE}"
    found: dict[str, list[dict[str, Any]]] = {}
    for device in json_text.parse(registered_files.read(path) or "{}", path).get("devices", ()):
        for hook in device["containerEdits"]["hooks"]:
            found.setdefault(hook.pop("hookName"), []).append(hook)
    return found
