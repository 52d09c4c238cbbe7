"""Small trees like a container's root file system."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vgpu.hook.inject.inspect import Inspection

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
