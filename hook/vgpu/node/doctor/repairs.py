"""What `vgpuctl doctor --fix` mends: missing nodes of the driver, and an inventory that no longer fits this node.

Belongs here: which findings are mended, and how. It does only what vgpud, or the next use of the driver, would do: it
replaces no file, loads no module, and edits no configuration of a runtime, for which the finding names a command. Does
not belong here: the checks, and the printing (vgpu.node.ctl.doctor). Runs as root.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from vgpu.config import inventory as inventories
from vgpu.config import paths, records
from vgpu.config.errors import VgpuError
from vgpu.config.inventory import Device
from vgpu.node.doctor.findings import OK, CheckContext, Finding
from vgpu.node.driver import device_nodes, discover


@dataclass(frozen=True)
class Repair:
    """What was done about the findings of `check`, or the error that kept it from being done."""

    check: str
    done: str = ""
    error: str = ""


Note = Callable[[str], None]


def mend(findings: Iterable[Finding], context: CheckContext) -> list[Repair]:
    """Mend what is safe to mend. A finding that follows from another one waits until that one is mended."""
    wrong = [item for item in findings if item.status != OK and not item.cause]
    repairs: list[Repair] = []
    for check in ("nodes", "uvm"):
        if any(item.check == check for item in wrong):
            repairs += _tried(check, lambda note, of=check: _make_nodes(of, context, note))  # type: ignore[misc]
    stale = [item.check for item in wrong if item.check == "inventory" or item.do == inventories.DO]
    if stale:
        repairs += _tried(stale[0], lambda note: _take_inventory(context, note))
    return repairs


def _tried(check: str, work: Callable[[Note], None]) -> Iterator[Repair]:
    done: list[str] = []
    try:
        work(done.append)
    except (VgpuError, OSError) as error:
        yield Repair(check, error=str(error))
    if done:
        yield Repair(check, "; ".join(done))


def _make_nodes(check: str, context: CheckContext, note: Note) -> None:
    """Make the nodes that are missing. A node with a wrong number stays: somebody else made it."""
    proc_root, directory = context.settings.text("driver.proc_root"), discover.dev_dir(context.settings)
    wanted = device_nodes.shared_nodes(directory, device_nodes.majors(proc_root))
    wanted += [device_nodes.card_node(directory, minor) for minor in device_nodes.minors(proc_root).values()]
    parameters = device_nodes.parameters(proc_root)
    for device in wanted:
        if _is_of(check, device) and not os.path.lexists(device.path):
            device_nodes.ensure(device, parameters, note)


def _is_of(check: str, device: Device) -> bool:
    return device.name.startswith("nvidia-uvm") == (check == "uvm")


def _take_inventory(context: CheckContext, note: Note) -> None:
    path = paths.inventory(context.settings.run_dir)
    found = discover.take(context.settings, note)
    os.makedirs(context.settings.run_dir, mode=0o755, exist_ok=True)
    records.write(path, found.record())
    note(f"took the inventory again: driver {found.driver_version}, {len(found.cards)} cards ({path})")
