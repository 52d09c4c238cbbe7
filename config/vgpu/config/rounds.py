"""vgpud's record of its last round, `<run>/metrics/round.json`: what metrics and `vgpuctl top` show.

Belongs here: its place, its age, and its reading and writing. Not here: its content, which vgpu.node.daemon.
round_record puts together. The figures below `reported` are a container's own. A reader takes a missing key as a figure
that is not known: vgpud may be older or newer.
"""

from __future__ import annotations

import os

from vgpu.config import paths, records
from vgpu.config.errors import VgpuError

VERSION = 1
MAX_AGE = 15.0  #: seconds since boot after which a record is of a vgpud that hangs or has died
MAX_SIZE = 32 << 20
_DO = "start vgpud (systemctl start vgpud)"


def write(run_dir: str, record: dict[str, object]) -> None:
    """Replace the record. The directory is for root only."""
    os.makedirs(paths.metrics(run_dir), mode=0o700, exist_ok=True)
    records.write(paths.round_record(run_dir), {"version": VERSION, **record})


def remove(run_dir: str) -> None:
    """Remove the record, if there is one."""
    try:
        os.unlink(paths.round_record(run_dir))
    except FileNotFoundError:
        return


def read(run_dir: str) -> dict[str, object]:
    """The record; VgpuError when there is none, or one that this version cannot read."""
    path = paths.round_record(run_dir)
    try:
        record = records.read(path, _DO, MAX_SIZE)
    except FileNotFoundError:
        raise VgpuError(path, expected="the record of vgpud's last round", found="no file", do=_DO) from None
    if record.get("version") != VERSION:
        raise VgpuError(path, expected=f"version {VERSION}", found=record.get("version"), do="restart vgpud")
    return record


def is_fresh(record: dict[str, object], boot_id: str, now: float) -> bool:
    """Whether the record is of this boot and at most MAX_AGE seconds old. `now`: seconds since boot."""
    taken = record.get("taken")
    if isinstance(taken, bool) or not isinstance(taken, (int, float)) or record.get("boot_id") != boot_id:
        return False
    return 0 <= now - taken <= MAX_AGE
