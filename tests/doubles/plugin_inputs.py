"""Cards and settings for the tests of the device plugin: made up, without any driver.

Belongs here: values with which several of those tests call the plugin's functions. A whole node is
nodes.SimulatedNode; kubelet is kubelet_devices.DeviceManager.
"""

from __future__ import annotations

from pathlib import Path

from cards import GIB, MIB, card, inventory
from cards import write_inventory as write

from vgpu.config.inventory import Card, Library
from vgpu.config.settings import Settings

__all__ = ["GIB", "MIB", "make_cards", "make_settings", "write_inventory"]
NVML = Library("/none/libnvidia-ml.so.550.54.15", "libnvidia-ml.so.550.54.15", "libnvidia-ml.so.1", "utility")


def make_cards(count: int = 1, memory: int = 15360 * MIB, numa: int = -1, link: str = "", first: int = 0) -> list[Card]:
    """Cards GPU-00, GPU-01, .... Unless `link` is empty, all pairs have it."""
    uuids = [f"GPU-{index:02d}" for index in range(first, first + count)]
    return [
        card(
            index, memory, uuid=uuid, bus_id=f"00000000:{index:02X}:00.0", name="Tesla T4", numa=numa,
            links={other: link for other in uuids if other != uuid and link},
        )
        for index, uuid in enumerate(uuids, first)
    ]  # fmt: skip


def make_settings(directory: Path | None = None, **values: object) -> Settings:
    """Settings whose paths are below `directory`. Keys have __ for the dot: scaling__cores=2.0."""
    paths: dict[str, object] = {}
    if directory is not None:
        paths = {
            "paths.state": f"{directory}/state",
            "paths.run": f"{directory}/run",
            "driver.proc_root": f"{directory}/proc",
            "plugin.socket_dir": f"{directory}/kubelet",
            "plugin.pod_resources_socket": f"{directory}/pod-resources.sock",
            "plugin.http": "",
            "metrics.listen": "",
            "kubernetes.api": "never",
        }
    return Settings({**paths, **{name.replace("__", ".", 1): value for name, value in values.items()}}, "node", "test")


def write_inventory(settings: Settings, cards: list[Card], driver: str = "550.54.15", boot: str = "") -> None:
    """Write the inventory as vgpud does."""
    made = inventory(cards, driver, boot, libraries=[NVML])
    write(settings.run_dir, made)
