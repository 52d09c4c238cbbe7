"""The inspection of a root file system with device nodes, which need mknod."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from root_trees import Look, looks, plant

from vgpu.hook.linux import syscalls


@pytest.fixture(params=["openat2", "walk"])
def look(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Look:
    return looks(tmp_path / "root", monkeypatch, request.param)


@pytest.mark.root  # mknod
def test_a_device_for_a_cache_is_never_opened(look: Look, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A watchdog device that is opened starts its timer, and reboots the host."""
    plant(tmp_path / "root", "/etc/")
    os.mknod(tmp_path / "root/etc/ld.so.cache", 0o20666, os.makedev(1, 3))
    opened: list[tuple[str, int]] = []
    kernel = syscalls.openat2

    def seen(fd: int, path: str, flags: int, resolve: int) -> int:
        opened.append((path, flags))
        return kernel(fd, path, flags, resolve)

    monkeypatch.setattr(syscalls, "openat2", seen)
    assert look().cache is None
    assert [flags for path, flags in opened if path == "/etc/ld.so.cache" and not flags & os.O_PATH] == []


@pytest.mark.root  # mknod
def test_device_nodes(look: Look, tmp_path: Path) -> None:
    plant(tmp_path / "root", "/dev/nvidia1", "/dev/nvidia2 -> /nowhere", "/dev/nvidia3/", "/dev/link -> nvidia0")
    os.mknod(tmp_path / "root/dev/nvidia0", 0o20666, os.makedev(195, 0))
    os.mknod(tmp_path / "root/dev/block", 0o60666, os.makedev(195, 0))
    asked = ("nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidia4", "link", "block")
    assert look(asked).devices == {"nvidia0": (195, 0), "link": (195, 0)}
