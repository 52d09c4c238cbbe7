"""Checks of the runtimes: which of them call the hook, and which give containers cards without vgpu.

Belongs here: what the configuration files of runtimes, NVIDIA's container toolkit and CDI mean for vgpu. Does not
belong here: reading runtimes' files, which is in vgpu.node.runtimes.reading, and whether such a file is valid, which is
for its own program to check.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator

from vgpu.config import records
from vgpu.config.errors import VgpuError
from vgpu.node.doctor.findings import FAILURE, OK, WARNING, CheckContext, Finding
from vgpu.node.runtimes import base_spec, docker, hooks_d, reading
from vgpu.node.runtimes.registration import WITHOUT_PROGRAM
from vgpu.node.service import installation

HOOK_DIRS = ("/usr/share/containers/oci/hooks.d", "/etc/containers/oci/hooks.d", "/run/containers/oci/hooks.d")
DOCKER = docker.CONFIG
CDI_DIRS = ("/etc/cdi", "/var/run/cdi", "/run/cdi")
NVIDIA_RUNTIME = "nvidia-container-runtime"
NVIDIA_CONFIG = "/etc/nvidia-container-runtime/config.toml"
MAX_FILE = 4 << 20

_KIND = re.compile(r"""["']?kind["']?\s*:\s*["']?(vgpu\.io|nvidia\.com)/[a-z]+""")
_CDI_HOOK = re.compile(r"""["']?path["']?\s*:\s*["']?([^"',\s]*/vgpu-hook)\b""")


def runtime_configuration(context: CheckContext) -> Iterator[Finding]:
    """The places where runtimes name the hook or the shim. Each program that they name must exist."""
    named = [*configured(context), *_cdi(context, "vgpu.io")]
    for where, program in named:
        if program and not os.access(context.path(program), os.X_OK):
            do = f"{installation.install_again()}, or remove this entry; until then containers do not start"
            if where.startswith("podman"):
                do = f"{installation.install_again()}, or remove this file: {WITHOUT_PROGRAM['podman']}"
            yield Finding("registration", FAILURE, f"{where}: {program} is not a program", "the hook", do)
        else:
            yield Finding("registration", OK, where)
    if not named:
        found = "no runtime is configured to call the hook"
        do = "vgpuctl runtime configure has a runtime call the hook; runc by hand needs no configuration"
        if installation.release():
            do = installation.install_again()
        yield Finding("registration", WARNING, found, "a runtime that calls the hook", do)


def nvidia(context: CheckContext) -> Iterator[Finding]:
    """NVIDIA's own ways to give a container cards. The ledger does not count such cards."""
    do = "allow it only for containers that ask for it by name: the ledger does not count such cards, nor limit them"
    for where in _nvidia_defaults(context):
        yield Finding("NVIDIA's runtime", WARNING, where, "another default runtime", do)
    for where, _ in _cdi(context, "nvidia.com"):
        found = f"{where}: gives whole cards to every container that may request CDI devices"
        yield Finding("NVIDIA's CDI", WARNING, found, "no such specification that tenants can use", do)
    if os.path.exists(context.path(NVIDIA_CONFIG)) and _accepts_environment(context):
        found = "an image that sets NVIDIA_VISIBLE_DEVICES=all gets every card"
        yield Finding("NVIDIA's runtime", WARNING, f"{NVIDIA_CONFIG}: {found}",
                      "accept-nvidia-visible-devices-envvar-when-unprivileged = false", do)  # fmt: skip


def _accepts_environment(context: CheckContext) -> bool:
    """Whether the toolkit heeds the environment of every container, its default, or of privileged containers only."""
    off = r"^\s*accept-nvidia-visible-devices-envvar-when-unprivileged\s*=\s*false"
    return not re.search(off, text(context, NVIDIA_CONFIG), re.MULTILINE)


def _nvidia_defaults(context: CheckContext) -> Iterator[str]:
    name = _docker_settings(context).get("default-runtime")
    if isinstance(name, str) and (name == "nvidia" or NVIDIA_RUNTIME in _docker_runtimes(context).get(name, "")):
        yield f"docker ({DOCKER}): default-runtime {name}"
    for path, (name, _) in _containerd_files(context):
        if name == "nvidia":
            yield f"{path}: default_runtime_name = {name}"
    for path, (name, _) in _crio_files(context):
        if name == "nvidia":
            yield f"{path}: default_runtime = {name}"
    for path, program in _hook_files(context):
        if "nvidia-container" in os.path.basename(program):
            yield f"{path}: {program}"


# The runtimes' configuration files: (where, program or "")


def configured(context: CheckContext) -> list[tuple[str, str]]:
    """The registrations in runtimes' own configuration, which are all but that by CDI."""
    return [*_hooks_d(context), *_containerd(context), *_crio(context), *_docker(context)]


def _hooks_d(context: CheckContext) -> list[tuple[str, str]]:
    return [
        (f"podman and CRI-O ({path})", program)
        for path, program in _hook_files(context)
        if os.path.basename(program).startswith("vgpu-")
    ]


def _hook_files(context: CheckContext) -> Iterator[tuple[str, str]]:
    """(file, hook.path) of every readable hooks.d file."""
    configured = [
        item
        for path in _files(context, hooks_d.CONTAINERS_CONF)
        for item in reading.hooks_dirs(text(context, path), path)
    ]
    for directory in dict.fromkeys((*HOOK_DIRS, *configured)):
        for path in _files(context, (directory + "/*.json",)):
            hook = _json(context, path).get("hook")
            program = hook.get("path") if isinstance(hook, dict) else None
            if isinstance(program, str):
                yield path, program


Handlers = tuple[str, list[reading.Handler]]


def _containerd_files(context: CheckContext) -> Iterator[tuple[str, Handlers]]:
    for path in containerd_files(context):
        yield path, reading.containerd_handlers(text(context, path), path)


def _crio_files(context: CheckContext) -> Iterator[tuple[str, Handlers]]:
    for path in _files(context, hooks_d.CRIO_CONF):
        yield path, reading.crio_handlers(text(context, path), path)


def _containerd(context: CheckContext) -> list[tuple[str, str]]:
    found = []
    for path, (_, handlers) in _containerd_files(context):
        for handler in handlers:
            if "vgpu-runtime" in handler.program:
                found.append((f"containerd ({path}: BinaryName)", handler.program))
            spec = _json(context, handler.base_spec) if handler.base_spec else {}
            programs = base_spec.hook_programs(spec)
            found += [(f"containerd ({path}: base_runtime_spec)", program) for program in programs]
    return found


def _crio(context: CheckContext) -> list[tuple[str, str]]:
    return [
        (f"CRI-O ({path}: runtime_path)", handler.program)
        for path, (_, handlers) in _crio_files(context)
        for handler in handlers
        if "vgpu-runtime" in handler.program
    ]


def _docker(context: CheckContext) -> list[tuple[str, str]]:
    return [
        (f"docker ({DOCKER}: runtime {name})", program)
        for name, program in _docker_runtimes(context).items()
        if "vgpu-runtime" in program
    ]


def _docker_settings(context: CheckContext) -> dict[str, object]:
    return _json(context, DOCKER)


def _docker_runtimes(context: CheckContext) -> dict[str, str]:
    runtimes = _docker_settings(context).get("runtimes")
    found = runtimes.items() if isinstance(runtimes, dict) else ()
    return {name: str(item.get("path", "")) for name, item in found if isinstance(item, dict)}


def of_kubelet(context: CheckContext) -> list[tuple[str, str]]:
    """Those of `configured` that kubelet's containers may meet: containerd's, and CRI-O's if it is there.

    podman reads the same directory as CRI-O.
    """
    hooks = _hooks_d(context) if os.path.isdir(context.path("/etc/crio")) else []
    return [*_containerd(context), *_crio(context), *hooks]


def containerd_files(context: CheckContext) -> list[str]:
    return _files(context, reading.CONTAINERD)


def _cdi(context: CheckContext, vendor: str) -> list[tuple[str, str]]:
    found = []
    for path in cdi_files(context, vendor):
        programs = _CDI_HOOK.findall(text(context, path))
        found.append((f"CDI ({path})", programs[0] if programs else ""))
    return found


def cdi_files(context: CheckContext, vendor: str) -> list[str]:
    """CDI specifications of a vendor. /var/run is a link to /run on most systems; such a file counts once."""
    files = _files(context, tuple(f"{directory}/*.{end}" for directory in CDI_DIRS for end in ("json", "yaml", "yml")))
    real = {os.path.realpath(context.path(path)): path for path in files}
    return [path for path in real.values() if vendor in _KIND.findall(text(context, path))]


def _files(context: CheckContext, patterns: tuple[str, ...]) -> list[str]:
    """The files that match, with their paths on the node."""
    base = context.root.rstrip("/")
    found = [path for pattern in patterns for path in sorted(glob.glob(glob.escape(base) + pattern))]
    return [path[len(base) :] for path in found if os.path.isfile(path)]


def text(context: CheckContext, path: str) -> str:
    """The content of a configuration file of the node, or "" if it cannot be read."""
    try:
        return records.read_bounded(context.path(path), MAX_FILE).decode("utf-8", "replace")
    except (OSError, VgpuError):
        return ""


def _json(context: CheckContext, path: str) -> dict[str, object]:
    """The file's object, or {} if it cannot be read: then its own program reports the error."""
    try:
        return records.read(context.path(path), limit=MAX_FILE)
    except (OSError, VgpuError):
        return {}
