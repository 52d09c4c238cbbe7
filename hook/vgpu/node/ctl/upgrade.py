"""The settings that an upgrade keeps although a new version has another default: `vgpuctl config upgrade`.

Belongs here: finding them, and writing them into the configuration file, where the administrator sees them. Does not
belong here: the defaults (vgpu.config.settings) and what an older record means (BEFORE there).
"""

from __future__ import annotations

import os
import tempfile

import yaml

from vgpu.config import compiler, records, settings
from vgpu.config.errors import VgpuError
from vgpu.node.service import operator_files

NAME = "standalone.requests"
COMMENT = "# Kept by an upgrade: plain annotations ask for cards, those of an image, too. See requests.md."


def keep(source: str, compiled_path: str, node: str) -> str:
    """Keep what was in force; the line for the administrator, or "" where nothing has to be kept.

    A record of the settings that an earlier version compiled has no standalone.requests: there, plain annotations
    counted, if requests outside Kubernetes were enabled.
    """
    try:
        record = records.read(compiled_path)
    except (FileNotFoundError, VgpuError):
        return ""
    before = record.get("settings")
    if not isinstance(before, dict) or NAME in before or before.get("standalone.enabled") is False:
        return ""
    if compiler.compile_source(source, node, compiler.no_labels).origins[NAME].kind != "default":
        return ""
    value = str(settings.BEFORE[NAME])
    _write(source, value, node)
    return f"{source}: {NAME}: {value}, as before; for the safer way see the section on requests in requests.md"


def _write(source: str, value: str, node: str) -> None:
    try:
        text = records.read_bounded(source, compiler.MAX_SOURCE).decode("utf-8")
    except FileNotFoundError:
        text = ""
    changed = with_setting(text, NAME, value, COMMENT)
    with tempfile.TemporaryDirectory() as directory:
        trial = f"{directory}/config.yaml"
        records.write_bytes(trial, changed.encode("utf-8"))
        if compiler.compile_source(trial, node, compiler.no_labels).settings.text(NAME) != value:
            raise VgpuError(source, expected=f"a place for {NAME}: {value}", found="none", do="write it by hand")
    operator_files.replace(os.path.realpath(source), changed.encode("utf-8"))  # a link stays


def with_setting(text: str, setting: str, value: str, comment: str) -> str:
    """YAML `text` with a setting that it does not have yet. All other bytes stay."""
    section, _, key = setting.partition(".")
    top = yaml.compose(text)
    mapping = top.value if isinstance(top, yaml.MappingNode) else []
    found = next((node for name, node in mapping if name.value == section), None)
    if found is None and isinstance(top, yaml.MappingNode) and top.flow_style:
        at, added = top.start_mark.index + 1, f"{section}: {{{key}: {value}}}, "
    elif found is None:
        end = "" if not text or text.endswith("\n") else "\n"
        return f"{text}{end}{comment}\n{section}:\n  {key}: {value}\n"
    elif isinstance(found, yaml.MappingNode) and found.flow_style:
        at, added = found.start_mark.index + 1, f"{key}: {value}" + (", " if found.value else "")
    elif isinstance(found, yaml.MappingNode):
        mark = found.value[0][0].start_mark
        at, added = mark.index, f"{comment}\n{' ' * mark.column}{key}: {value}\n{' ' * mark.column}"
    else:  # no value yet
        at = found.start_mark.index
        return f"{text[:at]}\n  {comment}\n  {key}: {value}{text[found.end_mark.index :]}"
    return text[:at] + added + text[at:]
