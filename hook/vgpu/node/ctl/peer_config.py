"""Node configuration of gpu-manager's fork and of HAMi, as the `nodes:` section of config.yaml.

Belongs here: which setting of vgpu replaces each key of the two projects, and why a key has no setting. Does not belong
here: checking the resulting configuration, which vgpu.config.compiler does. Only `read` and `add` touch files.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

import yaml

from vgpu.config import compiler, records
from vgpu.config.errors import VgpuError
from vgpu.node.service import operator_files

MAX_SOURCE = 1 << 20
MAX_NODES = 10_000
LISTS = ("nodeConfig", "nodeconfig")  #: the key of gpu-manager's fork, the key of HAMi
FILE = "config.json"  #: the key that both projects use in a ConfigMap
_DO = "see docs/dialects.md for the forms that are read"

#: Keys of the two projects in lower case -> the setting that does the same.
SETTINGS = {
    "devicememoryscaling": "scaling.memory",
    "devicecorescaling": "scaling.cores",
    "devicesplitcount": "resources.split_count",
}

#: Keys of the two projects for which vgpu has no setting -> the reason.
WITHOUT = {
    "containerruntimeendpoint": "the runtime calls the hook; vgpu never calls the runtime",
    "cgroupdriver": "vgpu reads it from each container's cgroup",
    "operatingmode": "cards are shared by libvcuda; MIG instances are taken as they are, MPS is not managed",
    "migstrategy": "resources.mig_strategy says how MIG instances are offered",
    "filterdevices": "all cards of the inventory are offered; pods choose by nvidia.com/use-gpuuuid and nouse-gpuuuid",
}


class Imported:
    """`nodes`: node -> section -> key -> value; `unused`: a key without a setting -> the nodes that have it."""

    __slots__ = ("nodes", "unused")

    def __init__(self) -> None:
        self.nodes: dict[str, dict[str, dict[str, object]]] = {}
        self.unused: dict[str, list[str]] = {}


def read(path: str) -> Imported:
    """Read `path`: the JSON of one of the two projects, with or without comments, or a ConfigMap that contains it."""
    try:
        value = yaml.safe_load(records.read_bounded(path, MAX_SOURCE).decode("utf-8"))
        for _ in range(2):
            if isinstance(value, dict) and isinstance(value.get("data"), dict):
                value = value["data"].get(FILE)
            if isinstance(value, str):
                value = yaml.safe_load(value)
    except OSError as error:
        raise VgpuError(path, expected="a file to read", found=error.strerror) from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        found = str(error).replace("\n", " ")
        raise VgpuError(path, expected="JSON or YAML", found=found, do=_DO) from None
    return convert(value, path)


def convert(value: object, source: str) -> Imported:
    """The settings in a list under nodeConfig or nodeconfig. If an entry is wrong, VgpuError names it."""
    entries = next((value[key] for key in LISTS if key in value), None) if isinstance(value, dict) else None
    if not isinstance(entries, list) or len(entries) > MAX_NODES:
        raise VgpuError(source, expected="a list under nodeConfig (gpu-manager) or nodeconfig (HAMi)", do=_DO)
    imported = Imported()
    for number, entry in enumerate(entries):
        where = f"{source}: entry {number + 1}"
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not name or name in imported.nodes:
            raise VgpuError(where, expected="a node's name, once each", found=name if name else "nothing")
        imported.nodes[name] = _sections(entry, name, where, imported)
    return imported


def _sections(entry: dict[Any, Any], node: str, where: str, imported: Imported) -> dict[str, dict[str, object]]:
    sections: dict[str, dict[str, object]] = {}
    for key, value in entry.items():
        setting = SETTINGS.get(str(key).lower())
        if setting:
            section, _, name = setting.partition(".")
            sections.setdefault(section, {})[name] = _number(value, setting, f"{where} ({node}): {key}")
        elif key != "name":
            imported.unused.setdefault(str(key), []).append(node)
    return sections


def _number(value: object, setting: str, where: str) -> object:
    whole = setting == "resources.split_count"
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        raise VgpuError(where, expected="a whole number" if whole else "a number", found=value)
    return value if whole else float(value)


def notes(imported: Imported) -> list[str]:
    """One line for each key that is not imported, with the reason."""
    lines = []
    for key, nodes in sorted(imported.unused.items()):
        why = WITHOUT.get(key.lower(), "vgpu does not know this key")
        lines.append(f"{key} ({_some(nodes)}): {why}")
    counted = [node for node, sections in imported.nodes.items() if "resources" in sections]
    if counted:
        lines.append(f"devicesplitcount ({_some(counted)}) has an effect only with resources.mode: gpu")
    return lines


def _some(nodes: list[str]) -> str:
    return ", ".join(nodes[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")


def text(imported: Imported, source: str) -> str:
    """The section as YAML, after comments with the notes."""
    comments = [f"# From {os.path.basename(source)}: {len(imported.nodes)} nodes."]
    comments += [f"# Left out: {line}" for line in notes(imported)]
    section = {node: sections or None for node, sections in imported.nodes.items()}
    body = yaml.safe_dump({"nodes": section}, sort_keys=False, allow_unicode=True, default_flow_style=False)
    return "\n".join(comments) + "\n" + body.replace(": null\n", ":\n")


def add(section: str, target: str, node: str) -> None:
    """Append `section` to the configuration at `target`.

    If the result would be wrong, raise VgpuError and write nothing.
    """
    try:
        before = records.read_bounded(target, compiler.MAX_SOURCE).decode("utf-8")
    except FileNotFoundError:
        before = ""
    except (OSError, UnicodeDecodeError) as error:
        raise VgpuError(target, expected="a configuration file", found=str(error)) from error
    if any(line.startswith("nodes:") for line in before.splitlines()):
        do = "print the section without --into, and merge it by hand"
        raise VgpuError(target, expected="a file without a section nodes:", found="a file that has one", do=do)
    joined = before + ("\n" if before and not before.endswith("\n") else "") + ("\n" if before else "") + section
    with tempfile.TemporaryDirectory() as directory:
        trial = f"{directory}/{os.path.basename(target)}"
        records.write_bytes(trial, joined.encode("utf-8"))
        try:
            compiler.compile_source(trial, node, compiler.no_labels)
        except compiler.ConfigErrors as error:
            raise compiler.ConfigErrors([line.replace(trial, target) for line in error.lines]) from None
    operator_files.replace(target, joined.encode("utf-8"))
