"""Taking the inventory of a driver root with device nodes, which need mknod; and `vgpuctl inventory`."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path

import nodes
import pytest
from driver_roots import VERSION, DriverRoot

from vgpu.config import inventory
from vgpu.config.errors import VgpuError
from vgpu.hook.linux import staleness
from vgpu.node.driver import discover

pytestmark = pytest.mark.root  # mknod

Simulate = Callable[[str], tuple[inventory.Inventory, list[str]]]

# -- the whole


def test_an_inventory_is_taken_and_written(driver_root: DriverRoot) -> None:
    for bus, minor in (("0000:3a:00.0", 7), ("0000:3b:00.0", 6), ("0000:3d:00.0", 4)):
        driver_root.write(f"proc/driver/nvidia/gpus/{bus}/information", f"Model: \t\t X\nDevice Minor: \t {minor}\n")
    notes: list[str] = []
    found = discover.take(driver_root.settings(), notes.append, sys_root=str(driver_root.path), clock=lambda: 5.0)
    assert (found.driver_version, found.boot_id, found.taken) == (VERSION, "4c2b6d0e-0000-4000-8000-000000000001", 5.0)
    assert [card.index for card in found.cards] == [0, 1]
    assert [item.name for item in found.devices] == ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"]
    for name in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia7", "nvidia6", "nvidia4"):
        status = (driver_root.dev / name).stat()
        assert stat.S_ISCHR(status.st_mode)
        assert stat.S_IMODE(status.st_mode) == 0o666
    assert any(note.startswith("made ") for note in notes)
    assert "1 of the 3 cards that the module drives cannot be used: 0000:3d:00.0" in notes
    assert notes[-1].startswith("not checked for functions that bypass the limits: "), "no libvcuda is installed there"
    again = inventory.from_record(found.record(), "again")
    assert again.record() == found.record()


def test_a_node_of_another_kind_stops_the_inventory(driver_root: DriverRoot) -> None:
    (driver_root.dev / "nvidia-uvm").touch()
    with pytest.raises(VgpuError, match=r"nvidia-uvm: expected character device 511:0, found -rw.*remove it and run: "):
        discover.take(driver_root.settings())


# -- the simulated driver, read by pynvml as it is


@pytest.fixture
def simulate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Simulate:
    """Takes the inventory of a node with the cards of a profile."""

    def take(profile: str) -> tuple[inventory.Inventory, list[str]]:
        made = nodes.SimulatedNode(tmp_path / "node", profile)
        monkeypatch.setenv("VGPU_SIM_DIR", str(made.sim))
        monkeypatch.setenv("VGPU_SIM_DEVICE_NODES", "0")
        notes: list[str] = []
        return discover.take(made.settings, notes.append), notes

    return take


def test_simulated_cards_with_direct_links(simulate: Simulate) -> None:
    found, notes = simulate("a100x2")
    assert [card.index for card in found.cards] == [0, 1]
    assert len({card.uuid for card in found.cards}) == 2
    assert {card.memory for card in found.cards} == {(40960 - 576) << 20}, "without what the driver keeps"
    assert all(link.startswith("NV") for card in found.cards for link in card.links.values())
    (unknown,) = [note for note in notes if not note.startswith("made ")]
    assert unknown.endswith("cuSubgridCreate, cuSubgridWorkerGridCreate, cuSubgridWorksetCreate"), unknown
    capabilities = {item.name.partition(".so")[0]: item.capability for item in found.libraries}
    assert capabilities["libcuda"] == "compute"
    assert capabilities["libnvidia-pkcs11-openssl3"] == "compute"
    assert capabilities["libnvidia-nscq"] == "utility"
    assert capabilities["libGLX_nvidia"] == "graphics"
    assert {item.name for item in found.binaries} >= {"nvidia-smi", "nvidia-cuda-mps-control"}
    staleness.check(found, f"{found.libraries[0].path.partition('/usr/')[0]}/proc")


# -- the command


def test_refresh_writes_what_show_prints(driver_root: DriverRoot) -> None:
    done = driver_root.call("refresh")
    assert done.exit_code == 0, done.output
    assert done.stdout == ""
    assert "note: made " in done.stderr
    assert "MIG mode" in done.stderr
    path = driver_root.path / "run/inventory.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(inventory.read(str(path.parent)).cards) == 2

    shown = driver_root.call("show")
    assert "Driver 550.54.15, taken " in shown.stdout
    assert "40 GiB" in shown.stdout
    assert "1:NV4" in shown.stdout
    assert "libcuda.so.1" in shown.stdout
    assert shown.stderr == ""
    assert json.loads(driver_root.call("show", "--output", "json").stdout) == json.loads(path.read_text())


def test_show_says_when_it_is_stale(driver_root: DriverRoot) -> None:
    driver_root.call("refresh")
    driver_root.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  560.1  x\n")
    done = driver_root.call("show")
    assert done.exit_code == 0
    assert "warning: inventory: expected one of the loaded driver 560.1" in done.stderr
