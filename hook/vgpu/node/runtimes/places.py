"""The places where the runtimes of a node are configured to call the hook or the shim, whoever wrote them.

Belongs here: finding runtimes' own files and CDI specifications below a root, as (where, program or ""). Does not
belong here: what one such file means (vgpu.node.runtimes.reading), and what is wrong (vgpu.node.doctor.runtimes).
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator

from vgpu.config import records
from vgpu.config.errors import VgpuError
from vgpu.node.runtimes import base_spec, docker, hooks_d, reading

HOOK_DIRS = ("/usr/share/containers/oci/hooks.d", "/etc/containers/oci/hooks.d", "/run/containers/oci/hooks.d")
CDI_DIRS = ("/etc/cdi", "/var/run/cdi", "/run/cdi")
MAX_FILE = 4 << 20

_KIND = re.compile(r"""["']?kind["']?\s*:\s*["']?(vgpu\.io|nvidia\.com)/[a-z]+""")
_CDI_HOOK = re.compile(r"""["']?path["']?\s*:\s*["']?([^"',\s]*/vgpu-hook)\b""")


def named(root: str) -> list[tuple[str, str]]:
    """All places."""
    return [*configured(root), *cdi(root, "vgpu.io")]


def is_program(root: str, program: str) -> bool:
    """Whether what is named can be executed. Where CDI names no program there is nothing to execute."""
    return not program or os.access(_path(root, program), os.X_OK)


def _path(root: str, path: str) -> str:
    return os.path.join(root, path.lstrip("/"))


def configured(root: str) -> list[tuple[str, str]]:
    """The registrations in runtimes' own configuration, which are all but that by CDI."""
    return [*_hooks_d(root), *_containerd(root), *_crio(root), *_docker(root)]


def _hooks_d(root: str) -> list[tuple[str, str]]:
    return [
        (f"podman and CRI-O ({path})", program)
        for path, program in hook_files(root)
        if os.path.basename(program).startswith("vgpu-")
    ]


def hook_files(root: str) -> Iterator[tuple[str, str]]:
    """(file, hook.path) of every readable hooks.d file."""
    configured = [
        item for path in _files(root, hooks_d.CONTAINERS_CONF) for item in reading.hooks_dirs(text(root, path), path)
    ]
    for directory in dict.fromkeys((*HOOK_DIRS, *configured)):
        for path in _files(root, (directory + "/*.json",)):
            hook = _json(root, path).get("hook")
            program = hook.get("path") if isinstance(hook, dict) else None
            if isinstance(program, str):
                yield path, program


Handlers = tuple[str, list[reading.Handler]]


def containerd_defaults(root: str) -> Iterator[tuple[str, Handlers]]:
    for path in containerd_files(root):
        yield path, reading.containerd_handlers(text(root, path), path)


def crio_defaults(root: str) -> Iterator[tuple[str, Handlers]]:
    for path in _files(root, hooks_d.CRIO_CONF):
        yield path, reading.crio_handlers(text(root, path), path)


def _containerd(root: str) -> list[tuple[str, str]]:
    found = []
    for path, (_, handlers) in containerd_defaults(root):
        for handler in handlers:
            if "vgpu-runtime" in handler.program:
                found.append((f"containerd ({path}: BinaryName)", handler.program))
            spec = _json(root, handler.base_spec) if handler.base_spec else {}
            programs = base_spec.hook_programs(spec)
            found += [(f"containerd ({path}: base_runtime_spec)", program) for program in programs]
    return found


def _crio(root: str) -> list[tuple[str, str]]:
    return [
        (f"CRI-O ({path}: runtime_path)", handler.program)
        for path, (_, handlers) in crio_defaults(root)
        for handler in handlers
        if "vgpu-runtime" in handler.program
    ]


def _docker(root: str) -> list[tuple[str, str]]:
    return [
        (f"docker ({docker.CONFIG}: runtime {name})", program)
        for name, program in docker_runtimes(root).items()
        if "vgpu-runtime" in program
    ]


def docker_settings(root: str) -> dict[str, object]:
    return _json(root, docker.CONFIG)


def docker_runtimes(root: str) -> dict[str, str]:
    runtimes = docker_settings(root).get("runtimes")
    found = runtimes.items() if isinstance(runtimes, dict) else ()
    return {name: str(item.get("path", "")) for name, item in found if isinstance(item, dict)}


def of_kubelet(root: str) -> list[tuple[str, str]]:
    """Those of `configured` that kubelet's containers may meet: containerd's, and CRI-O's if it is there.

    podman reads the same directory as CRI-O.
    """
    hooks = _hooks_d(root) if os.path.isdir(_path(root, "/etc/crio")) else []
    return [*_containerd(root), *_crio(root), *hooks]


def containerd_files(root: str) -> list[str]:
    return _files(root, reading.CONTAINERD)


def cdi(root: str, vendor: str) -> list[tuple[str, str]]:
    found = []
    for path in cdi_files(root, vendor):
        programs = _CDI_HOOK.findall(text(root, path))
        found.append((f"CDI ({path})", programs[0] if programs else ""))
    return found


def cdi_files(root: str, vendor: str) -> list[str]:
    """CDI specifications of a vendor. /var/run is a link to /run on most systems; such a file counts once."""
    files = _files(root, tuple(f"{directory}/*.{end}" for directory in CDI_DIRS for end in ("json", "yaml", "yml")))
    real = {os.path.realpath(_path(root, path)): path for path in files}
    return [path for path in real.values() if vendor in _KIND.findall(text(root, path))]


def defined(root: str, kind: str) -> list[str]:
    """The specifications of vgpu's that define devices of this kind."""
    return [path for path in cdi_files(root, "vgpu.io") if kind in text(root, path)]


def _files(root: str, patterns: tuple[str, ...]) -> list[str]:
    """The files that match, with their paths on the node."""
    base = root.rstrip("/")
    found = [path for pattern in patterns for path in sorted(glob.glob(glob.escape(base) + pattern))]
    return [path[len(base) :] for path in found if os.path.isfile(path)]


def text(root: str, path: str) -> str:
    """The content of a configuration file of the node, or "" if it cannot be read."""
    try:
        return records.read_bounded(_path(root, path), MAX_FILE).decode("utf-8", "replace")
    except (OSError, VgpuError):
        return ""


def _json(root: str, path: str) -> dict[str, object]:
    """The file's object, or {} if it cannot be read: then its own program reports the error."""
    try:
        return records.read(_path(root, path), limit=MAX_FILE)
    except (OSError, VgpuError):
        return {}
