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
from vgpu.config.compiler import Compiled, ConfigErrors, compile_source
from vgpu.config.errors import VgpuError
from vgpu.config.settings import DEFAULTS, Settings


@dataclass(frozen=True)
class Applied:
    """What `apply` did, or would do. `changed` holds (name, old, new); old is None where it is unknown."""

    compiled: Compiled
    changed: list[tuple[str, object, object]]
    written: bool


def apply(source: str, compiled_path: str, node: str, dry_run: bool = False) -> Applied:
    """Compile `source` for `node` and write the result to `compiled_path`. On an error the file stays as it is."""
    try:
        compiled = compile_source(os.path.abspath(source), node)
    except VgpuError as error:
        raise ConfigErrors([*str(error).splitlines(), _kept(compiled_path)]) from error
    record = compiled.settings.record()
    before, raw = _in_force(compiled_path)
    changed = [
        (name, before[name] if before else None, compiled.settings[name])
        for name in DEFAULTS
        if not before or before[name] != compiled.settings[name]
    ]
    written = raw != record and not dry_run
    if written:
        _write(compiled_path, record)
    return Applied(compiled, changed, written)


def is_in_force(wanted: Settings, path: str) -> bool:
    """Whether a hook that reads `path` uses the values of `wanted`."""
    found = _in_force(path)[0]
    return found is not None and all(found[name] == wanted[name] for name in DEFAULTS)


def _in_force(path: str) -> tuple[Settings | None, object]:
    """(settings, their record) at `path`; (None, None) when the file is missing or damaged."""
    try:
        record = records.read(path)
        return settings.from_record(record, path), record
    except (VgpuError, FileNotFoundError):
        return None, None


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
