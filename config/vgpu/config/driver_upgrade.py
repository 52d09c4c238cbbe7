"""The upgrade of the driver by NVIDIA's GPU operator: from the node's labels to whether vgpu may use the driver.

Belongs here: which labels forbid it, and `<run>/driver-upgrade.json`, the record by which the device plugin, which sees
the labels, passes that on to vgpud. It counts in the boot that it was written in, for VALID seconds. Not here: reading
the labels (vgpu.plugin.apiserver.node_labels), and what vgpud and the plugin leave undone meanwhile.

The operator unloads the kernel module in pod-restart-required, and again and again in upgrade-failed while the new
driver does not start. An open NVML keeps the module loaded. Before that the operator cordons the node and drains it.
Source: NVIDIA's page "GPU Driver Upgrades", and pkg/upgrade/consts.go of NVIDIA/k8s-operator-libs.
"""

from __future__ import annotations

from vgpu.config import paths, records
from vgpu.config.fields import Fields

VERSION = 1
VALID = 300.0  #: seconds without a plugin that writes the record again, after which vgpud uses the driver as before
STATE = "nvidia.com/gpu-driver-upgrade-state"
#: States in which the driver may be used: nothing has begun yet, or the new driver is validated. No label is as good.
#: In every other state it may not, also in one of a later operator.
USABLE = ("", "upgrade-required", "uncordon-required", "upgrade-done")
#: The operator's driver manager pauses its own users of the driver so, with the upgrade controller or without.
DEPLOY, PAUSED = "nvidia.com/gpu.deploy.", "paused-for-driver-upgrade"


def reason(labels: dict[str, str]) -> str:
    """Why a node with these labels must not use the driver; "" if it may."""
    state = labels.get(STATE, "")
    if state not in USABLE:
        return f"the GPU operator upgrades the driver: {STATE}={state}"
    paused = next((name for name in sorted(labels) if name.startswith(DEPLOY) and PAUSED in labels[name]), "")
    return f"the GPU operator upgrades the driver: {paused}={labels[paused]}" if paused else ""


def write(run_dir: str, text: str, boot_id: str, at: float) -> None:
    """Record the reason `text`. `at` is vgpu.config.clock's time."""
    record = {"version": VERSION, "boot_id": boot_id, "written": at, "reason": text}
    records.write(paths.driver_upgrade(run_dir), record)


def read(run_dir: str, boot_id: str, at: float) -> str:
    """The recorded reason; "" if there is none, or it counts no more. VgpuError when the record is damaged."""
    path = paths.driver_upgrade(run_dir)
    do = f"remove {path}"
    try:
        fields = Fields(records.read(path, do), path, do)
    except FileNotFoundError:
        return ""
    fields.version(VERSION)
    age = at - fields.time("written")
    if fields.text("boot_id") != boot_id or not 0 <= age <= VALID:
        return ""
    return fields.text("reason", empty=False)
