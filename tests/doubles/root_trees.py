"""Small trees like a container's root file system."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from descriptors import opened

from vgpu.hook.inject.inspect import Inspection, inspect
from vgpu.hook.linux import syscalls
from vgpu.hook.linux.rootfs import Rootfs

STEMS = frozenset({"libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler"})

Look = Callable[..., Inspection]


def plant(root: Path, *paths: str) -> None:
    """Make files (`a/b`), directories (`a/b/`) and links (`a/b -> target`)."""
    for item in paths:
        path, _, target = item.partition(" -> ")
        place = root / path.strip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        if target:
            place.symlink_to(target)
        elif path.endswith("/"):
            place.mkdir(exist_ok=True)
        else:
            place.write_bytes(b"image")


def looks(root: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> Look:
    """Inspects the tree in `root`, which is made. The way "walk" is that of kernels without openat2."""
    if way == "walk":

        def missing(*_: object) -> int:
            raise OSError(errno.ENOSYS, "openat2: Function not implemented")

        monkeypatch.setattr(syscalls, "openat2", missing)

    def looked(devices: tuple[str, ...] = (), stems: frozenset[str] = STEMS, machine: str = "x86_64") -> Inspection:
        before = opened()
        tree = Rootfs(os.open(root, os.O_PATH | os.O_DIRECTORY))
        try:
            return inspect(tree, stems, list(devices), machine)
        finally:
            tree.close()
            assert opened() <= before  # nothing stays open

    root.mkdir()
    return looked
