"""What the runtimes of a node are configured to call, whoever wrote it: the doctor's reading of their files.

Belongs here: which programs handlers, runtimes and hooks name. The registration reads the same files with the same
tables. A template, which is no TOML, is read line by line. Does not belong here: whether such a file is valid, which is
for its own program to check.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vgpu.config.errors import VgpuError
from vgpu.node.runtimes import nested_values, toml_text
from vgpu.node.runtimes.containerd import CONFIG, K3S, MICROK8S, SECTIONS, of_document

K3S_FILES = ("config.toml", "config.toml.tmpl", "config-v3.toml.tmpl")
CONTAINERD = (CONFIG, "/etc/containerd/conf.d/*.toml", "/etc/k0s/containerd.d/*.toml", MICROK8S,
              *(f"{directory}/{name}" for directory in K3S for name in K3S_FILES))  # fmt: skip

_ASSIGNED = re.compile(r"""^\s*"?([A-Za-z_.-]+)"?\s*=\s*["']([^"']*)["']""", re.MULTILINE)


@dataclass(frozen=True)
class Handler:
    """A handler of containerd or CRI-O, and what it calls. "" is the runtime's default."""

    name: str
    program: str = ""
    base_spec: str = ""


def containerd_handlers(text: str, path: str) -> tuple[str, list[Handler]]:
    """The default handler that the file names, or "", and its handlers."""
    try:
        document = toml_text.parse(text, path)
    except VgpuError:
        return _of_lines(text)
    found: list[Handler] = []
    default = ""
    for section in dict.fromkeys(SECTIONS.values()):
        table = nested_values.look_up(document, (*section, "containerd"))
        if isinstance(table, Mapping):
            default = str(table.get("default_runtime_name") or default)
            handlers = of_document(document, section).handlers if table.get("runtimes") else {}
            found += [_handler(name, handler) for name, handler in handlers.items() if isinstance(handler, Mapping)]
    return default, found


def _handler(name: str, table: Mapping[str, Any]) -> Handler:
    options = table.get("options")
    program = options.get("BinaryName") if isinstance(options, Mapping) else ""
    return Handler(name, str(program or ""), str(table.get("base_runtime_spec") or ""))


def _of_lines(text: str) -> tuple[str, list[Handler]]:
    default = "".join(value for key, value in _ASSIGNED.findall(text) if key == "default_runtime_name")
    programs = [Handler("", program=value) for key, value in _ASSIGNED.findall(text) if key == "BinaryName"]
    specs = [Handler("", base_spec=value) for key, value in _ASSIGNED.findall(text) if key == "base_runtime_spec"]
    return default, programs + specs


def crio_handlers(text: str, path: str) -> tuple[str, list[Handler]]:
    """CRI-O's default runtime that the file names, or "", and its runtimes."""
    try:
        runtime = nested_values.look_up(toml_text.parse(text, path), ("crio", "runtime"))
    except VgpuError:
        return "", []
    tables = runtime.get("runtimes") if isinstance(runtime, Mapping) else None
    handlers = tables.items() if isinstance(tables, Mapping) else ()
    found = [Handler(name, str(one.get("runtime_path") or "")) for name, one in handlers if isinstance(one, Mapping)]
    return str(runtime.get("default_runtime") or "") if isinstance(runtime, Mapping) else "", found


def hooks_dirs(text: str, path: str) -> Iterator[str]:
    """The directories of hooks that a containers.conf names."""
    try:
        found = nested_values.look_up(toml_text.parse(text, path), ("engine", "hooks_dir"))
    except VgpuError:
        return
    yield from (str(item) for item in found or ())
