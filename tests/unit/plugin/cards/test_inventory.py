"""The plugin's cards when the inventory changes: new and lost cards, stale and damaged files, an unloaded driver."""

from __future__ import annotations

from pathlib import Path

import pytest
from plugin_inputs import make_cards, make_settings, write_inventory

from vgpu.config import inventory as inventories
from vgpu.config import paths
from vgpu.plugin.cards.inventory import GRACE, InventoryMonitor

NVRM = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Tue Mar  5 2024\n"


class Bed:
    def __init__(self, directory: Path) -> None:
        self.settings = make_settings(directory)
        self.now = 100.0
        self.monitor = InventoryMonitor(self.settings, lambda: self.now)
        self.version = directory / "proc/driver/nvidia/version"
        self.version.parent.mkdir(parents=True)
        self.version.write_text(NVRM.format("550.54.15"))
        self.path = Path(paths.inventory(self.settings.run_dir))

    def look(self) -> list[str]:
        self.monitor.look()
        return [card.uuid for card in self.monitor.cards]

    def wait(self) -> dict[str, str]:
        self.now += GRACE
        self.monitor.look()
        return self.monitor.reasons()


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    return Bed(tmp_path)


def test_cards_come(bed: Bed) -> None:
    assert bed.look() == []
    assert "this node's inventory, found no file" in bed.monitor.error
    assert not bed.monitor.ever
    write_inventory(bed.settings, [])
    assert bed.look() == []
    assert (bed.monitor.error, bed.monitor.ever) == ("", True)
    write_inventory(bed.settings, make_cards(2))
    assert bed.look() == ["GPU-00", "GPU-01"]
    assert bed.monitor.reasons() == {}


def test_a_card_that_went_stays_known_and_comes_back(bed: Bed) -> None:
    write_inventory(bed.settings, make_cards(3))
    bed.look()
    write_inventory(bed.settings, make_cards(3)[1:])
    assert bed.look() == ["GPU-01", "GPU-02", "GPU-00"]
    assert bed.monitor.reasons() == {"GPU-00": "no longer in this node's inventory"}
    assert bed.monitor.lost() == bed.monitor.reasons()
    write_inventory(bed.settings, make_cards(3))
    assert bed.look() == ["GPU-00", "GPU-01", "GPU-02"]
    assert bed.monitor.reasons() == {}


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda bed: bed.path.unlink(), "found no file"),
        (lambda bed: bed.path.write_text("{"), "inventory.json: expected JSON"),
        (lambda bed: write_inventory(bed.settings, make_cards(), driver="1.2"), "one of the loaded driver 550.54.15"),
        (lambda bed: write_inventory(bed.settings, make_cards(), boot="another"), "expected one of this boot"),
        (lambda bed: bed.version.unlink(), "driver: expected version 550.54.15 loaded, found none"),
        (lambda bed: bed.version.write_text(NVRM.format("560.1")), "expected one of the loaded driver 560.1"),
    ],
)
def test_what_makes_all_cards_unhealthy_after_a_while(bed: Bed, spoil, reason: str) -> None:
    write_inventory(bed.settings, make_cards())
    bed.look()
    spoil(bed)
    assert bed.look() == ["GPU-00"]
    assert bed.monitor.reasons() == {}  # vgpud may be about to take another one
    found = bed.wait()
    assert list(found) == ["GPU-00"]
    assert reason in found["GPU-00"]
    assert bed.monitor.lost() == {}, "the card itself is not out of order"
    bed.version.write_text(NVRM.format("550.54.15"))
    write_inventory(bed.settings, make_cards())
    assert bed.wait() == {}


def test_a_stale_inventory_brings_no_cards(bed: Bed) -> None:
    write_inventory(bed.settings, make_cards(), driver="1.2")
    assert bed.look() == []
    assert not bed.monitor.ever


def test_a_node_whose_proc_has_no_driver(bed: Bed) -> None:
    """In WSL it is so: a version that was never known cannot be lost."""
    bed.version.unlink()
    write_inventory(bed.settings, make_cards())
    assert bed.look() == ["GPU-00"]
    assert bed.wait() == {}


def test_an_unchanged_file_is_read_once(bed: Bed, monkeypatch) -> None:
    write_inventory(bed.settings, make_cards())
    bed.look()
    monkeypatch.setattr(inventories, "read", lambda run_dir: pytest.fail("read again"))
    assert bed.look() == ["GPU-00"]
