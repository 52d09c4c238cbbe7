"""podman and CRI-O: two files in a directory of hooks.

Belongs here: the content of the files, and which directory each of the two reads. podman 4 reads only
/usr/share/containers/oci/hooks.d, and nothing if it is missing, so it is made. Both may use the same two files.
"""

from __future__ import annotations

import glob
import json
import os
from typing import Any

from vgpu.config.errors import VgpuError
from vgpu.node.runtimes import base_spec, nested_values, registered_files, toml_text
from vgpu.node.runtimes.registered_files import OWN, Draft, Record
from vgpu.node.runtimes.registration import HANDLER, Registration, Wish

DIRECTORY = "/usr/share/containers/oci/hooks.d"
#: The files that may set hooks_dir: the later ones win. The environment variable is for podman alone.
CONTAINERS_CONF = ("/usr/share/containers/containers.conf", "/etc/containers/containers.conf",
                   "/etc/containers/containers.conf.d/*.conf")  # fmt: skip
CRIO_CONF = ("/etc/crio/crio.conf", "/etc/crio/crio.conf.d/*.conf")
#: runc stops at the first poststop hook that fails, so ours is the first: 00.
FILES = {"vgpu.json": "createRuntime", "00-vgpu-poststop.json": "poststop"}
APPLIES = "containers with an annotation vgpu.io/..., created from now on"


def podman(wish: Wish, record: Record) -> Registration:
    """The directory by --config, or that of containers.conf, or the default."""
    return _registration(wish, _directory(wish, CONTAINERS_CONF, ("engine", "hooks_dir")))


def crio(wish: Wish, record: Record) -> Registration:
    """CRI-O notices new files by itself. Allocate's annotations always reach its containers."""
    return _registration(wish, _directory(wish, CRIO_CONF, ("crio", "runtime", "hooks_dir")))


def _registration(wish: Wish, directory: str) -> Registration:
    if wish.mode != HANDLER:
        raise VgpuError(f"--mode {wish.mode}", expected="no mode: podman and CRI-O choose by annotation")
    drafts = tuple(Draft(f"{directory}/{name}", text(wish, stage), OWN) for name, stage in FILES.items())
    return Registration(drafts, APPLIES)


def _directory(wish: Wish, patterns: tuple[str, ...], keys: tuple[str, ...]) -> str:
    """Of several directories the last, which has precedence."""
    if wish.config:
        return wish.config.rstrip("/")
    configured: list[str] = []
    for path in configuration_files(patterns):
        found = nested_values.look_up(toml_text.parse(_read(path), path), keys)
        configured = list(found) if found else configured
    return DIRECTORY if not configured or DIRECTORY in configured else configured[-1].rstrip("/")


def configuration_files(patterns: tuple[str, ...]) -> list[str]:
    """podman reads the file that CONTAINERS_CONF names, and no other."""
    named = os.environ.get("CONTAINERS_CONF")
    if named and patterns is CONTAINERS_CONF:
        return [named]
    return [path for pattern in patterns for path in sorted(glob.glob(pattern))]


def _read(path: str) -> str:
    """A file that is only read may be a link."""
    return registered_files.read(os.path.realpath(path)) or ""


def text(wish: Wish, stage: str) -> str:
    """A file of hooks.d. It asks for an annotation by its key: a tenant may change a value, but take no key away."""
    hook = base_spec.hook(wish, stage)
    value: dict[str, Any] = {
        "version": "1.0.0", "hook": hook, "when": {"annotations": {"^vgpu\\.io/": ".*"}}, "stages": [stage],
    }  # fmt: skip
    return json.dumps(value, indent=2) + "\n"
