"""The CDI specification by which the node's runtime calls the hook of the release in force.

Belongs here: which directory it lies in, which the runtime itself says (cri.py), and writing and removing it. Does not
belong here: its content, which is as of `vgpuctl cdi generate` (vgpu.node.runtimes.cdi_spec).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable

from vgpu.config import cdi_device
from vgpu.config.errors import VgpuError
from vgpu.node.runtimes import cdi_spec
from vgpu.node.runtimes.registration import Wish
from vgpu.node.service import operator_files

DIRECTORIES = ("/etc/cdi", "/var/run/cdi")  #: of every runtime that is configured for no others


def choose(wished: str, read: Iterable[str]) -> str:
    """The directory for the specification, of those that the runtime reads: one that a reboot keeps, if it can be."""
    known = list(read)
    wanted = [wished] if wished else [cdi_spec.DIRECTORY, *known]
    found = next((one for one in wanted if one in known), "")
    if not found:
        raise VgpuError("CDI directory", expected=f"one that the runtime reads ({', '.join(known) or 'it reads none'})",
                        found=wished or "none", do="set cdi.directory to one of them")  # fmt: skip
    return found


def write(host: str, directory: str, programs: str) -> bool:
    """Write the specification that names the hook in `programs`. Returns whether it changed."""
    path = host + os.path.join(directory, cdi_spec.FILE)
    text = cdi_spec.text(Wish(programs=programs))
    try:
        with open(path, encoding="utf-8") as stream:
            if stream.read() == text:
                return False
    except (OSError, UnicodeDecodeError):
        pass
    os.makedirs(os.path.dirname(path), exist_ok=True)
    operator_files.replace(path, text.encode(), 0o644)
    return True


def remove(host: str, directories: Iterable[str]) -> list[str]:
    """Remove our specification from these directories. Returns the paths, as the host names them."""
    removed = []
    for directory in directories:
        path = os.path.join(directory, cdi_spec.FILE)
        if _is_ours(host + path):
            os.unlink(host + path)
            removed.append(path)
    return removed


def _is_ours(path: str) -> bool:
    try:
        with open(path, encoding="utf-8") as stream:
            found = json.load(stream)
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.get("kind") == cdi_device.KIND
