"""Checks of the runtimes: which of them call the hook, and which give containers cards without vgpu.

Belongs here: what the configuration files of runtimes, NVIDIA's container toolkit and CDI mean for vgpu. Does not
belong here: finding and reading them, which is in vgpu.node.runtimes.places, and whether such a file is valid, which is
for its own program to check.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from vgpu.node.doctor.findings import FAILURE, OK, WARNING, CheckContext, Finding
from vgpu.node.runtimes import docker, places
from vgpu.node.runtimes.registration import WITHOUT_PROGRAM
from vgpu.node.service import installation

NVIDIA_RUNTIME = "nvidia-container-runtime"
NVIDIA_CONFIG = "/etc/nvidia-container-runtime/config.toml"


def runtime_configuration(context: CheckContext) -> Iterator[Finding]:
    """The places where runtimes name the hook or the shim. Each program that they name must exist."""
    named = places.named(context.root)
    for where, program in named:
        if not places.is_program(context.root, program):
            do = f"{installation.install_again()}, or remove this entry; until then containers do not start"
            if where.startswith("podman"):
                path = where.partition("(")[2].rstrip(")")
                do = f"{installation.install_again()}, or run: rm {path} ({WITHOUT_PROGRAM['podman']})"
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
    for where, _ in places.cdi(context.root, "nvidia.com"):
        found = f"{where}: gives whole cards to every container that may request CDI devices"
        yield Finding("NVIDIA's CDI", WARNING, found, "no such specification that tenants can use", do)
    if os.path.exists(context.path(NVIDIA_CONFIG)) and _accepts_environment(context):
        found = "an image that sets NVIDIA_VISIBLE_DEVICES=all gets every card"
        yield Finding("NVIDIA's runtime", WARNING, f"{NVIDIA_CONFIG}: {found}",
                      "accept-nvidia-visible-devices-envvar-when-unprivileged = false", do)  # fmt: skip


def _accepts_environment(context: CheckContext) -> bool:
    """Whether the toolkit heeds the environment of every container, its default, or of privileged containers only."""
    off = r"^\s*accept-nvidia-visible-devices-envvar-when-unprivileged\s*=\s*false"
    return not re.search(off, places.text(context.root, NVIDIA_CONFIG), re.MULTILINE)


def _nvidia_defaults(context: CheckContext) -> Iterator[str]:
    name = places.docker_settings(context.root).get("default-runtime")
    if isinstance(name, str) and (
        name == "nvidia" or NVIDIA_RUNTIME in places.docker_runtimes(context.root).get(name, "")
    ):
        yield f"docker ({docker.CONFIG}): default-runtime {name}"
    for path, (name, _) in places.containerd_defaults(context.root):
        if name == "nvidia":
            yield f"{path}: default_runtime_name = {name}"
    for path, (name, _) in places.crio_defaults(context.root):
        if name == "nvidia":
            yield f"{path}: default_runtime = {name}"
    for path, program in places.hook_files(context.root):
        if "nvidia-container" in os.path.basename(program):
            yield f"{path}: {program}"
