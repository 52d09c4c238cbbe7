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
_DO = "start vgpud: vgpuctl doctor says how"


def write(run_dir: str, record: dict[str, object], group: int = 0) -> None:
    """Replace the record. Root can read it, and the group `group`, if that is not root's."""
    directory = paths.metrics(run_dir)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    _give(directory, group, 0o750 if group else 0o700)
    if group:
        _make_lock(run_dir)
    if os.path.lexists(paths.exporter_lock(run_dir)):
        _give(paths.exporter_lock(run_dir), group, 0o660 if group else 0o600)
    content = {"version": VERSION, **record}
    records.write(paths.round_record(run_dir), content, 0o640 if group else 0o600, group=group)


def _make_lock(run_dir: str) -> None:
    """An exporter without root's rights cannot make a file in the directory, only lock one."""
    os.close(os.open(paths.exporter_lock(run_dir), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))


def _give(path: str, group: int, mode: int) -> None:
    """Set group and mode where they are not so yet. Only root can write the directory, so the path stays what it is."""
    status = os.stat(path)
    if status.st_gid != group:
        os.chown(path, -1, group)
    if status.st_mode & 0o7777 != mode:
        os.chmod(path, mode)


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
