"""Cards and inventories of tests: made up, without any driver. The one builder of both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vgpu.config import paths, records
from vgpu.config.inventory import Card, Device, Inventory

MIB = 1 << 20
GIB = 1 << 30


def uuid_of(index: int) -> str:
    return f"GPU-{index:08x}-0000-0000-0000-000000000000"


def card(index: int = 0, memory: int = 16 * GIB, **fields: Any) -> Card:
    """The card with this index; `fields` are the Card's own."""
    device = Device(f"/dev/nvidia{index}", f"nvidia{index}", 195, index)
    known = {"uuid": uuid_of(index), "bus_id": f"0000:0{index:x}:00.0", "name": "T4", "device": device}
    return Card(index=index, minor=index, memory=memory, **{**known, **fields})


def instance(index: int, parent: Card | None = None, gi: int = 1, ci: int = 0, **fields: Any) -> Card:
    """A MIG instance of `parent`, by default of card 0; its nodes have the minors 9 * gi and 9 * gi + 1 + ci."""
    parent = parent or card()
    at = f"gpu{parent.minor}/mig/gi{gi}"
    minors = {f"{at}/access": 9 * gi, f"{at}/ci{ci}/access": 9 * gi + 1 + ci}
    nodes = {
        name: Device(f"/dev/nvidia-caps/nvidia-cap{minor}", f"nvidia-caps/nvidia-cap{minor}", 511, minor)
        for name, minor in minors.items()
    }
    known: dict[str, Any] = {
        "uuid": "MIG" + uuid_of(index)[3:], "name": f"{parent.name} MIG 1g.5gb", "memory": 5 * GIB, "numa": parent.numa,
    }  # fmt: skip
    return Card(
        index=index, minor=parent.minor, bus_id=parent.bus_id, device=parent.device, parent=parent.uuid,
        capabilities=nodes, **{**known, **fields},
    )  # fmt: skip


def inventory(cards: list[Card] | None = None, driver: str = "550.54.15", boot: str = "", **parts: Any) -> Inventory:
    """An inventory of these cards; `parts` are its libraries, binaries, devices and copies."""
    lists = {"libraries": [], "binaries": [], "devices": [], **parts}
    return Inventory(driver, boot, 1.0, cards=[card()] if cards is None else cards, **lists)


def write_inventory(run_dir: str, found: Inventory) -> None:
    Path(run_dir).mkdir(parents=True, exist_ok=True)
    records.write(paths.inventory(run_dir), found.record())
