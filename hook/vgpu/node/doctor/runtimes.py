"""Checks of the runtimes: which of them call the hook, and which give containers cards without vgpu.

Belongs here: reading the configuration files of runtimes and of NVIDIA's container toolkit, and CDI specifications. The
doctor reads TOML line by line and looks only for the few keys that it needs: Python's standard library has no parser
before 3.11. Does not belong here: whether such a file is valid, which is for its own program to check.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator

from vgpu.config import records
from vgpu.config.errors import VgpuError
from vgpu.node.doctor.findings import FAILURE, OK, WARNING, CheckContext, Finding

HOOK_DIRS = ("/usr/share/containers/oci/hooks.d", "/etc/containers/oci/hooks.d", "/run/containers/oci/hooks.d")
CONTAINERS_CONF = ("/usr/share/containers/containers.conf", "/etc/containers/containers.conf",
                   "/etc/containers/containers.conf.d/*.conf")  # fmt: skip
CONTAINERD = ("/etc/containerd/config.toml", "/etc/containerd/conf.d/*.toml", "/etc/k0s/containerd.d/*.toml",
              "/var/lib/rancher/k3s/agent/etc/containerd/config.toml")  # fmt: skip
CRIO = ("/etc/crio/crio.conf", "/etc/crio/crio.conf.d/*.conf")
DOCKER = "/etc/docker/daemon.json"
CDI_DIRS = ("/etc/cdi", "/var/run/cdi", "/run/cdi")
NVIDIA_RUNTIME = "nvidia-container-runtime"
NVIDIA_CONFIG = "/etc/nvidia-container-runtime/config.toml"
MAX_FILE = 4 << 20

_ASSIGNED = re.compile(r"""^\s*"?([A-Za-z_.-]+)"?\s*=\s*["']([^"']*)["']""", re.MULTILINE)
_KIND = re.compile(r"""["']?kind["']?\s*:\s*["']?(vgpu\.io|nvidia\.com)/[a-z]+""")


def runtime_configuration(context: CheckContext) -> Iterator[Finding]:
    """The places where runtimes name the hook or the shim. Each program that they name must exist."""
    named = [*_hooks_d(context), *_containerd(context), *_crio(context), *_docker(context), *_cdi(context, "vgpu.io")]
    for where, program in named:
        if program and not os.access(context.path(program), os.X_OK):
            do = "install vgpu again, or remove this entry; until then containers fail to start"
            yield Finding("registration", FAILURE, f"{where}: {program} is not a program", "the hook", do)
        else:
            yield Finding("registration", OK, where)
    if not named:
        found = "no runtime is configured to call the hook"
        do = "configure podman, CRI-O, containerd or docker to call the hook; runc by hand needs no configuration"
        yield Finding("registration", WARNING, found, "a runtime that calls the hook", do)


def nvidia(context: CheckContext) -> Iterator[Finding]:
    """NVIDIA's own ways to give a container cards. The ledger does not count such cards."""
    do = "allow it only for containers that ask for it by name: the ledger does not count such cards, nor limit them"
    for where in _nvidia_defaults(context):
        yield Finding("NVIDIA's runtime", WARNING, where, "another default runtime", do)
    for where, _ in _cdi(context, "nvidia.com"):
        text = f"{where}: gives whole cards to every container that may request CDI devices"
        yield Finding("NVIDIA's CDI", WARNING, text, "no such specification that tenants can use", do)
    if os.path.exists(context.path(NVIDIA_CONFIG)) and _accepts_environment(context):
        text = "an image that sets NVIDIA_VISIBLE_DEVICES=all gets every card"
        yield Finding("NVIDIA's runtime", WARNING, f"{NVIDIA_CONFIG}: {text}",
                      "accept-nvidia-visible-devices-envvar-when-unprivileged = false", do)  # fmt: skip


def _accepts_environment(context: CheckContext) -> bool:
    """Whether the toolkit heeds the environment of every container, its default, or of privileged containers only."""
    text = _text(context, NVIDIA_CONFIG)
    return not re.search(r"^\s*accept-nvidia-visible-devices-envvar-when-unprivileged\s*=\s*false", text, re.MULTILINE)


def _nvidia_defaults(context: CheckContext) -> Iterator[str]:
    name = _docker_settings(context).get("default-runtime")
    if isinstance(name, str) and (name == "nvidia" or NVIDIA_RUNTIME in _docker_runtimes(context).get(name, "")):
        yield f"docker ({DOCKER}): default-runtime {name}"
    for path, key, value in _assigned(context, (*CONTAINERD, *CRIO)):
        if key in ("default_runtime_name", "default_runtime") and value == "nvidia":
            yield f"{path}: {key} = {value}"
    for path, program in _hook_files(context):
        if "nvidia-container" in os.path.basename(program):
            yield f"{path}: {program}"


# The runtimes' configuration files: (where, program or "")


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
        for path in _files(context, CONTAINERS_CONF)
        for found in re.findall(r"^\s*hooks_dir\s*=\s*\[([^\]]*)\]", _text(context, path), re.MULTILINE)
        for item in re.findall(r"""["']([^"']+)["']""", found)
    ]
    for directory in dict.fromkeys((*HOOK_DIRS, *configured)):
        for path in _files(context, (directory + "/*.json",)):
            hook = _json(context, path).get("hook")
            program = hook.get("path") if isinstance(hook, dict) else None
            if isinstance(program, str):
                yield path, program


def _containerd(context: CheckContext) -> list[tuple[str, str]]:
    found = []
    for path, key, value in _assigned(context, CONTAINERD):
        if key == "BinaryName" and "vgpu-runtime" in value:
            found.append((f"containerd ({path}: BinaryName)", value))
        elif key == "base_runtime_spec":
            found += [(f"containerd ({path}: base_runtime_spec)", program) for program in _spec_hooks(context, value)]
    return found


def _crio(context: CheckContext) -> list[tuple[str, str]]:
    return [
        (f"CRI-O ({path}: {key})", value)
        for path, key, value in _assigned(context, CRIO)
        if key == "runtime_path" and "vgpu-runtime" in value
    ]


def _spec_hooks(context: CheckContext, path: str) -> list[str]:
    """vgpu's programs among the hooks of a runtime specification."""
    hooks = _json(context, path).get("hooks")
    lists = hooks.values() if isinstance(hooks, dict) else ()
    entries = [item for hook in lists if isinstance(hook, list) for item in hook if isinstance(item, dict)]
    paths = [str(item.get("path", "")) for item in entries]
    return list(dict.fromkeys(item for item in paths if os.path.basename(item).startswith("vgpu-")))


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


def _cdi(context: CheckContext, vendor: str) -> list[tuple[str, str]]:
    """CDI specifications of a vendor. /var/run is a link to /run on most systems; such a file counts once."""
    files = _files(context, tuple(f"{directory}/*.{end}" for directory in CDI_DIRS for end in ("json", "yaml", "yml")))
    real = {os.path.realpath(context.path(path)): path for path in files}
    return [(f"CDI ({path})", "") for path in real.values() if vendor in _KIND.findall(_text(context, path))]


def _assigned(context: CheckContext, patterns: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    """(file, key, value) of every string that a TOML file assigns."""
    for path in _files(context, patterns):
        for key, value in _ASSIGNED.findall(_text(context, path)):
            yield path, key, value


def _files(context: CheckContext, patterns: tuple[str, ...]) -> list[str]:
    """The files that match, with their paths on the node."""
    base = context.root.rstrip("/")
    found = [path for pattern in patterns for path in sorted(glob.glob(glob.escape(base) + pattern))]
    return [path[len(base) :] for path in found if os.path.isfile(path)]


def _text(context: CheckContext, path: str) -> str:
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
