"""What the mountinfo of a container's namespace says about its mounts."""

from __future__ import annotations

import os

import pytest

from vgpu.hook.linux import mountinfo, syscalls
from vgpu.hook.linux.mountinfo import MountTable

ROOT = 30
TOP = "/run/bundle/root\\040fs"
LINES = f"""20 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
21 20 0:25 / /dev/shm rw - tmpfs tmpfs rw
22 20 0:40 / /run/kubelet/memory rw shared:7 - tmpfs tmpfs rw
{ROOT} 20 254:0 /bundle/rootfs {TOP} rw,relatime - ext4 /dev/vda rw
31 {ROOT} 0:50 / {TOP}/dev rw,nosuid - tmpfs tmpfs rw
32 31 0:51 / {TOP}/dev/pts rw - devpts devpts rw
33 {ROOT} 0:40 / {TOP}/memory rw shared:7 - tmpfs tmpfs rw
34 {ROOT} 254:0 /srv {TOP}/srv rw shared:8 master:1 - ext4 /dev/vda rw
35 {ROOT} 254:0 /data {TOP}/data rw master:9 - ext4 /dev/vda rw
36 {ROOT} 0:52 / {TOP}/own rw shared:12 - tmpfs tmpfs rw
310 {ROOT} 0:5 / {TOP}/proc rw - proc proc rw
"""
OUTSIDE = b"""20 1 254:0 / / rw shared:1 - ext4 /dev/vda rw
22 20 0:40 / /run/kubelet/memory rw shared:7 - tmpfs tmpfs rw
23 20 0:41 / /mnt rw master:8 - tmpfs tmpfs rw
"""


def table(outside: bytes = OUTSIDE) -> MountTable:
    return MountTable(LINES.encode(), ROOT, outside)


@pytest.mark.parametrize(
    ("mount", "own"),
    [
        (ROOT, True),
        (31, True),  # the runtime's /dev
        (36, True),
        (32, False),  # no place for files
        (33, False),  # an emptyDir in memory: it is the pod's
        (34, False),
        (310, False),
        (20, False),
        (3, False),  # the beginning of other numbers
        (999, False),  # mounted later
    ],
)
def test_own_file_systems(mount: int, own: bool) -> None:
    assert table().is_own(mount) is own


def test_without_a_root_of_its_own_a_container_has_nothing_else() -> None:
    assert not MountTable(LINES.encode(), 20).is_own(31)


@pytest.mark.parametrize(
    ("mount", "propagates"),
    [
        (ROOT, False),
        (33, True),  # the host has a peer
        (34, True),  # the host has a mount that receives from it
        (35, False),  # it only receives
        (36, False),  # its peers are all in the container
        (999, False),
    ],
)
def test_shared_mounts(mount: int, propagates: bool) -> None:
    assert table().propagates(mount) is propagates
    assert not table(b"").propagates(mount), "without any shared mount nobody reads the host's"


@pytest.mark.parametrize(("mount", "place"), [(33, "/memory"), (31, "/dev"), (22, "/run/kubelet/memory"), (999, "?")])
def test_places_are_those_that_the_container_sees(mount: int, place: str) -> None:
    assert table().place(mount) == place


def test_the_table_of_this_process() -> None:
    fd = os.open("/proc", os.O_PATH)
    try:
        found = mountinfo.read("self", fd)
        assert found.place(syscalls.mount_id(fd)) == "/proc"
        assert found.is_own(syscalls.mount_id(fd))
    finally:
        os.close(fd)


def test_mount_ids_without_statx(monkeypatch: pytest.MonkeyPatch) -> None:
    fd = os.open("/", os.O_PATH)
    try:
        by_statx = syscalls.mount_id(fd)
        monkeypatch.setattr(syscalls, "_statx", None)
        assert syscalls.mount_id(fd) == by_statx
    finally:
        os.close(fd)
