"""vgpu.node.driver.device_nodes on real nodes: it makes them like nvidia-modprobe, and checks those of any maker.

The doctor's check of them is here, too, as it needs mknod.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from doctor_tree import Tree, look, only

from vgpu.config.errors import VgpuError
from vgpu.config.inventory import Device
from vgpu.node.doctor import node as checks
from vgpu.node.doctor.findings import FAILURE
from vgpu.node.driver.device_nodes import Parameters, card_node, ensure

pytestmark = pytest.mark.root

NUMBERS = {"nvidia": 195, "nvidia-uvm": 511}


def node(path: Path) -> tuple[int, int, int, int, int]:
    status = path.stat()
    assert stat.S_ISCHR(status.st_mode)
    return (
        os.major(status.st_rdev), os.minor(status.st_rdev), stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def tight_umask() -> object:
    """Nodes have the driver's mode with any umask of the caller."""
    before = os.umask(0o077)
    yield
    os.umask(before)


def test_mode_and_owner_are_the_modules_parameters(tmp_path: Path) -> None:
    ensure(card_node(str(tmp_path), 0), Parameters(0o660, 0, 44), print)
    assert node(tmp_path / "nvidia0") == (195, 0, 0o660, 0, 44)


def test_a_node_that_is_right_is_left_alone(tmp_path: Path) -> None:
    os.mknod(tmp_path / "nvidia0", stat.S_IFCHR | 0o600, os.makedev(195, 0))
    notes: list[str] = []
    ensure(card_node(str(tmp_path), 0), Parameters(), notes.append)
    assert node(tmp_path / "nvidia0")[2] == 0o600
    assert notes == []


def test_a_wrong_number_is_an_error(tmp_path: Path) -> None:
    os.mknod(tmp_path / "nvidia-uvm", stat.S_IFCHR | 0o666, os.makedev(510, 0))
    device = Device(f"{tmp_path}/nvidia-uvm", "nvidia-uvm", 511, 0)
    with pytest.raises(VgpuError, match=r"device 511:0, found character device 510:0; .*run: nvidia-modprobe -u -c=0"):
        ensure(device, Parameters(), print)


@pytest.mark.parametrize("kind", ["file", "directory", "block device", "dangling link"])
def test_what_is_no_character_device_is_an_error(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "nvidiactl"
    if kind == "file":
        path.touch()
    elif kind == "directory":
        path.mkdir()
    elif kind == "block device":
        os.mknod(path, stat.S_IFBLK | 0o666, os.makedev(195, 255))
    else:
        path.symlink_to("nowhere")
    with pytest.raises(VgpuError, match=str(path)):
        ensure(Device(str(path), "nvidiactl", 195, 255), Parameters(), print)


def test_a_module_that_forbids_making_nodes_is_heeded(tmp_path: Path) -> None:
    with pytest.raises(VgpuError, match=r"ModifyDeviceFiles=0.*make it: mknod -m 666 .*/nvidia0 c 195 0$"):
        ensure(card_node(str(tmp_path), 0), Parameters(modify=False), print)
    assert not (tmp_path / "nvidia0").exists()


def test_a_node_that_cannot_be_made_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(VgpuError, match=r"mknod fails: No such file or directory; run as root: nvidia-modprobe -c=0$"):
        ensure(card_node(str(tmp_path / "none"), 0), Parameters(), print)


@pytest.mark.skipif(not shutil.which("setpriv"), reason="setpriv is missing")
def test_without_the_right_to_make_nodes(tmp_path: Path, repository: Path) -> None:
    code = (
        f"import sys; sys.path[:0] = [{str(repository / 'config')!r}, {str(repository / 'hook')!r}]\n"
        "from vgpu.node.driver.device_nodes import Parameters, card_node, ensure\n"
        f"ensure(card_node({str(tmp_path)!r}, 0), Parameters(), print)\n"
    )
    command = ["setpriv", "--bounding-set", "-mknod", "--inh-caps", "-mknod", "/usr/bin/python3", "-I", "-S", "-c"]
    done = subprocess.run([*command, code], check=False, capture_output=True, text=True)
    assert "mknod fails: Operation not permitted; run as root: nvidia-modprobe -c=0" in done.stderr


def test_the_doctor_names_nodes_that_are_missing_or_wrong(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.inventory()
    assert [status for status, _ in look(checks.nodes, tree.context)] == [FAILURE, FAILURE]
    for minor in range(2):
        os.mknod(tree.path / f"dev/nvidia{minor}", stat.S_IFCHR | 0o666, os.makedev(195, minor))
    assert only(checks.nodes, tree.context).found == "2 nodes"
    (tree.path / "dev/nvidia1").unlink()
    os.mknod(tree.path / "dev/nvidia1", stat.S_IFCHR | 0o666, os.makedev(195, 7))
    assert "number 195:7" in only(checks.nodes, tree.context).found
