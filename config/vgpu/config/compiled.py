"""The compiled settings on disk: an edit of the admin takes effect, or the last good settings stay.

Belongs here: writing the file that `settings.read` reads. Not here: the compiling (compiler). The hook's process does
not load this, because it imports the compiler. `vgpuctl config apply`, and the unit that watches config.yaml, run it
as root.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from vgpu.config import records, settings
from vgpu.config.compiler import Compiled, ConfigErrors, Labels, Newer, compile_source, unknown_labels
from vgpu.config.errors import VgpuError
from vgpu.config.settings import DEFAULTS, Settings


@dataclass(frozen=True)
class Applied:
    """What `apply` did, or would do. `changed` holds (name, old, new); old is None where it is unknown."""

    compiled: Compiled
    changed: list[tuple[str, object, object]]
    written: bool


def compile_file(source: str, compiled_path: str, node: str, labels: Labels | None = None) -> Compiled:
    """What `source` gives `node`, beside the settings in force at `compiled_path`.

    Without `labels` the node has the recorded ones. Settings that a newer version of vgpu had in force are ignored in
    `source`, as after a way back to this one.
    """
    newer = _newer(_record(compiled_path))
    return compile_source(os.path.abspath(source), node, labels or recorded_labels(compiled_path), newer)


def recorded_labels(compiled_path: str) -> Labels:
    """Those of the node's labels that chose the profile of the settings in force. Others are not known."""
    found = _record(compiled_path).get("labels")
    if not isinstance(found, dict):
        return unknown_labels
    recorded = {key: value for key, value in found.items() if isinstance(value, str)}
    return lambda names: recorded if found.keys() >= set(names) else unknown_labels(names)


def apply(source: str, compiled_path: str, node: str, dry_run: bool = False, labels: Labels | None = None) -> Applied:
    """Compile `source` for `node` and write the result to `compiled_path`. On an error the file stays as it is."""
    try:
        compiled = compile_file(source, compiled_path, node, labels)
    except VgpuError as error:
        raise ConfigErrors([*str(error).splitlines(), _kept(compiled_path)]) from error
    raw = _record(compiled_path)
    before = _in_force(raw, compiled_path)
    changed = [
        (name, before[name] if before else None, compiled.settings[name])
        for name in DEFAULTS
        if not before or before[name] != compiled.settings[name]
    ]
    record = _compiled_record(compiled, _newer(raw))
    written = raw != record and not dry_run
    if written:
        _write(compiled_path, record)
    return Applied(compiled, changed, written)


def _compiled_record(compiled: Compiled, newer: Newer) -> dict[str, object]:
    """The record of `compiled`. It keeps what the `newer` version knew: this version's next apply needs it, too."""
    record = {**compiled.settings.record(), "compiled_by": settings.RELEASE}
    if compiled.labels:
        record.update(profile=compiled.profile, labels=compiled.labels)
    if newer.names:
        record["newer"] = {"version": newer.version, "settings": sorted(newer.names)}
    return record


def _newer(record: dict[str, object]) -> Newer:
    """The settings of a newer version, if one compiled `record`, or a record that `record` has replaced."""
    version = settings.newer_compiler(record)
    names: object = record.get("settings")
    kept = record.get("newer")
    if not version and isinstance(kept, dict):
        version, names = str(kept.get("version")), kept.get("settings")
    if not version or not isinstance(names, (dict, list)):
        return Newer()
    return Newer(version, frozenset(name for name in names if isinstance(name, str) and name not in DEFAULTS))


def is_in_force(wanted: Settings, path: str) -> bool:
    """Whether a hook that reads `path` uses the values of `wanted`."""
    found = _in_force(_record(path), path)
    return found is not None and all(found[name] == wanted[name] for name in DEFAULTS)


def _record(path: str) -> dict[str, object]:
    """The record at `path`; {} when the file is missing or damaged."""
    try:
        return records.read(path)
    except (VgpuError, FileNotFoundError):
        return {}


def _in_force(record: dict[str, object], path: str) -> Settings | None:
    """The settings in `record`; None when there are none, or they are damaged."""
    try:
        return settings.from_record(record, path)
    except VgpuError:
        return None


def _kept(path: str) -> str:
    try:
        settings.read(path)
        written = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(os.stat(path).st_mtime))
    except (VgpuError, OSError) as error:
        return f"nothing changed; no settings are in force ({error})"
    return f"nothing changed; the last good settings stay in force ({path}, of {written})"


def _write(path: str, record: dict[str, object]) -> None:
    try:
        os.makedirs(os.path.dirname(path) or ".", mode=0o755, exist_ok=True)
        records.write(path, record, 0o644)
    except OSError as error:
        do = "run as root, or name another file with --config"
        raise VgpuError(path, expected="a file to write", found=error.strerror, do=do) from error
