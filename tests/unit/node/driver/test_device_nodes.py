"""The device nodes that a node needs, their majors, and the kernel modules' parameters for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from vgpu.config.errors import VgpuError
from vgpu.node.driver import device_nodes

# -- device nodes


def test_majors_are_those_of_character_devices(tmp_path: Path) -> None:
    characters = "Character devices:\n  1 mem\n  4 /dev/vc/0\n195 nvidia-frontend\n509 nvidia-uvm\n\n"
    (tmp_path / "devices").write_text(characters + "Block devices:\n  8 nvidia-caps\n")
    found = device_nodes.majors(str(tmp_path))
    assert found == {"mem": 1, "/dev/vc/0": 4, "nvidia-frontend": 195, "nvidia-uvm": 509}
    assert device_nodes.majors(str(tmp_path / "none")) == {}


def test_nodes_that_a_node_needs() -> None:
    found = device_nodes.shared_nodes("/d", {"nvidia": 195, "nvidia-uvm": 509, "nvidia-modeset": 195})
    assert [(item.path, item.major, item.minor, item.capability) for item in found] == [
        ("/d/nvidiactl", 195, 255, ""),
        ("/d/nvidia-uvm", 509, 0, "compute"),
        ("/d/nvidia-uvm-tools", 509, 1, "compute"),
        ("/d/nvidia-modeset", 195, 254, "display"),
    ]
    assert len(device_nodes.shared_nodes("/d", {"nvidia-frontend": 195, "nvidia-uvm": 509})) == 3


def test_missing_modules_are_named_with_what_to_do() -> None:
    with pytest.raises(VgpuError, match=r"NVIDIA kernel module.*modprobe nvidia"):
        device_nodes.shared_nodes("/dev", {"mem": 1})
    with pytest.raises(VgpuError, match=r"^/dev/nvidia-uvm: .*not loaded; run: nvidia-modprobe -u -c=0$"):
        device_nodes.shared_nodes("/dev", {"nvidia": 195})


def test_the_modules_parameters_for_nodes(tmp_path: Path) -> None:
    (tmp_path / "driver/nvidia").mkdir(parents=True)
    path = tmp_path / "driver/nvidia/params"
    of_files = "ModifyDeviceFiles: 0\nDeviceFileUID: 5\nDeviceFileGID: 44\nDeviceFileMode: 432\n"
    path.write_text("ResmanDebugLevel: 4294967295\n" + of_files)
    found = device_nodes.parameters(str(tmp_path))
    assert (found.mode, found.uid, found.gid, found.modify) == (0o660, 5, 44, False)
    path.unlink()
    found = device_nodes.parameters(str(tmp_path))
    assert (found.mode, found.uid, found.gid, found.modify) == (0o666, 0, 0, True)
