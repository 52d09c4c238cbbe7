"""Check of CDI: whether what the device plugin names is defined, and is the only way to the hook.

Belongs here: the settings, specifications and runtimes' files compared with each other. Does not belong here: finding
those files, which is in vgpu.node.runtimes.places, and whether a kubelet passed the device on, which only a container
shows: the device plugin looks for that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from vgpu.config import cdi_device as device
from vgpu.node.doctor.findings import FAILURE, OK, WARNING, CheckContext, Finding
from vgpu.node.runtimes import places

NAME = "CDI"
_SWITCH = re.compile(r"^\s*enable_cdi\s*=\s*(true|false)", re.MULTILINE)
_VERSION = re.compile(r"^version\s*=\s*(\d+)", re.MULTILINE)
_BY_DEFAULT = 3  #: version of containerd's file from which on the file is for a containerd that has CDI on


def cdi(context: CheckContext) -> Iterator[Finding]:
    """Where plugin.cdi is off, only that no specification waits for it in vain."""
    found_files = defined(context)
    if not context.settings.flag("plugin.cdi"):
        do = "set plugin.cdi: true, or run vgpuctl cdi remove"
        for path in found_files:
            found = f"{path} defines {device.DEVICE}, and plugin.cdi is false"
            yield Finding(NAME, WARNING, found, "a device plugin that names it", do)
        if not found_files:
            yield Finding(NAME, OK, "not used: plugin.cdi is false")
        return
    wrong = [*_undefined(found_files), *_registered_besides(context), *_switched_off(context)]
    yield from wrong or [Finding(NAME, OK, f"{found_files[0]} defines {device.DEVICE}")]


def defined(context: CheckContext) -> list[str]:
    """The specifications that define the device."""
    return places.defined(context.root, device.KIND)


def in_use(context: CheckContext) -> str:
    """By what kubelet's containers come to the hook through CDI on this node, or ""."""
    if context.settings.flag("plugin.cdi"):
        return "plugin.cdi: true"
    return next((f"{path}, which defines {device.DEVICE}" for path in defined(context)), "")


def _undefined(found: list[str]) -> Iterator[Finding]:
    if not found:
        yield Finding(NAME, FAILURE, f"plugin.cdi is true, and no specification defines {device.DEVICE}",
                      "what the device plugin names",
                      "run vgpuctl cdi generate; until then no pod with a share starts")  # fmt: skip


def _registered_besides(context: CheckContext) -> Iterator[Finding]:
    for where, _ in places.of_kubelet(context.root):
        yield Finding(NAME, WARNING, f"{where} calls the hook, too", "one registration for kubelet's containers",
                      "take one of them back; the second run of the hook does nothing but cost time")  # fmt: skip


def _switched_off(context: CheckContext) -> Iterator[Finding]:
    """containerd ignores CDI devices without a message where CDI is off."""
    for path in places.containerd_files(context.root):
        text = places.text(context.root, path)
        switch, version = _SWITCH.search(text), _VERSION.search(text)
        if switch is None and (version is None or int(version[1]) >= _BY_DEFAULT or not re.search(r"\bcri\b", text)):
            continue
        if switch is None or switch[1] == "false":
            found = "enable_cdi = false" if switch else "no enable_cdi, and containerd 1.7 has CDI off without it"
            yield Finding(NAME, WARNING, f"{path}: {found}", "enable_cdi = true",
                          "set it in the CRI plugin's section, and restart containerd")  # fmt: skip
