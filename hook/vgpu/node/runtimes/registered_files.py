"""Files that a registration writes: planning, comparing, backups, atomic writing, and the undo.

Belongs here: what is the same for every runtime. A `Draft` says what a file shall contain; a record in the state
directory says what each file contained before, so that the undo restores it to the byte. A file that somebody edited
since loses only what this program wrote. Does not belong here: what a runtime needs in its files.
"""

from __future__ import annotations

import difflib
import fcntl
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from vgpu.config import paths, records
from vgpu.config.errors import VgpuError
from vgpu.node.runtimes import json_text, nested_values, toml_text, undo
from vgpu.node.service import operator_files

MAX_FILE = 4 << 20
TOML, JSON, OWN = "toml", "json", "own"
BACKUP = ".before"  #: the end of a backup's name


@dataclass(frozen=True)
class Assignment:
    """A key that was set in a file of somebody else's, and what it was before. `before` is None if it was absent."""

    keys: tuple[str, ...]
    value: object
    before: object = None


@dataclass(frozen=True)
class Draft:
    """What a file shall contain. `kind` says how the part in it is taken out again; OWN: the file is this program's."""

    path: str
    text: str
    kind: str
    mode: int = 0o644
    assigned: tuple[Assignment, ...] = ()


@dataclass(frozen=True)
class Edit:
    """A file as it is, as it was before this program, and as it shall be. None: it does not exist."""

    path: str
    now: str | None
    original: str | None
    draft: Draft | None

    @property
    def after(self) -> str | None:
        return self.draft.text if self.draft else self.original

    def changes(self) -> bool:
        return self.now != self.after

    def diff(self) -> str:
        """A unified diff of what will change, as patch(1) reads it."""
        old, new = "/dev/null" if self.now is None else self.path, "/dev/null" if self.after is None else self.path
        lines = difflib.unified_diff((self.now or "").splitlines(True), (self.after or "").splitlines(True), old, new)
        return "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines)


@dataclass
class Record:
    """What a registration wrote, for its undo: `<state>/runtimes/<runtime>.json`."""

    path: str
    files: list[dict[str, Any]] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, state_dir: str, runtime: str) -> Record:
        path = record_path(state_dir, runtime)
        try:
            found = records.read(path, "remove the file, if the runtime's configuration is as it should be", MAX_FILE)
        except FileNotFoundError:
            return cls(path)
        files, options = found.get("files"), found.get("options")
        if not isinstance(files, list) or not isinstance(options, dict):
            raise VgpuError(path, expected="a record of a registration", found=found)
        return cls(path, files, options)

    def entry(self, path: str) -> dict[str, Any] | None:
        return next((item for item in self.files if item["path"] == path), None)

    def original(self, path: str) -> str | None:
        """What `path` contained, or would contain, without this program."""
        now, entry = read(path), self.entry(path)
        if entry is not None and now is not None and _digest(now) == entry["digest"]:
            return read(entry["backup"]) if entry["backup"] else None
        return _without_ours(path, now, entry)


def record_path(state_dir: str, runtime: str) -> str:
    return f"{paths.runtimes(state_dir)}/{runtime}.json"


@contextmanager
def locked(state_dir: str) -> Iterator[None]:
    """One registration at a time."""
    directory = paths.runtimes(state_dir)
    os.makedirs(directory, mode=0o755, exist_ok=True)
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def remove_orphans(record: Record) -> None:
    """Remove the backups of the runtime that no record names: this program was killed before it wrote the record."""
    directory, beginning = os.path.split(_backups(record))
    for name in os.listdir(directory):
        path = os.path.join(directory, name)
        if name.startswith(beginning) and name.endswith(BACKUP) and path not in backups(record):
            os.unlink(path)


def read(path: str) -> str | None:
    """The text of a configuration file; None if there is none. A link is an error, as a write would replace it."""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISLNK(status.st_mode):
        target = os.path.realpath(path)
        raise VgpuError(path, expected="a regular file", found=f"a symbolic link to {target}", do=f"--config {target}")
    if not stat.S_ISREG(status.st_mode):
        raise VgpuError(path, expected="a regular file", found="something else")
    try:
        return records.read_bounded(path, MAX_FILE).decode("utf-8")
    except UnicodeDecodeError as error:
        raise VgpuError(path, expected="UTF-8", found=str(error), do="repair the file") from None


def followed(path: str) -> str:
    """The file that a link in the place of `path` names. The link stays, and its target is edited."""
    return os.path.realpath(path) if os.path.islink(path) else path


def plan(record: Record, drafts: Sequence[Draft]) -> list[Edit]:
    """The edits that lead from the files as they are to `drafts`. A file of the record without a draft is undone."""
    wanted = [_edit(record, draft) for draft in drafts]
    left = [item["path"] for item in record.files if item["path"] not in {draft.path for draft in drafts}]
    return wanted + [Edit(path, read(path), record.original(path), None) for path in left]


def _edit(record: Record, draft: Draft) -> Edit:
    """The edit of one file. A text that means what it shall stays, although somebody edited it since."""
    now = read(draft.path)
    if now is not None and draft.kind != OWN and _mean_the_same(draft.kind, now, draft.text):
        draft = replace(draft, text=now)
    return Edit(draft.path, now, record.original(draft.path), draft)


def apply(record: Record, edits: Sequence[Edit], options: dict[str, Any], verify: Callable[[], None]) -> None:
    """Write the record with its backups, then the files. If `verify` raises, all files are as they were.

    The record comes first and goes last, so whenever this program is killed, the undo knows what it wrote.
    """
    missing = {edit.path: _missing_directories(edit) for edit in edits}
    tried: list[Edit] = []
    saved = read(record.path)
    try:
        entries = [_entry(record, edit, missing[edit.path]) for edit in edits if edit.draft]
        undone = [entry for edit in edits if not edit.draft for entry in [record.entry(edit.path)] if entry]
        _write(Record(record.path, entries + undone, options))
        for edit in edits:
            tried.append(edit)
            _execute(edit, missing[edit.path])
        verify()
        _write(Record(record.path, entries, options))
    except BaseException:
        for edit in reversed(tried):
            if read(edit.path) != edit.now:
                _put(edit.path, edit.now, None)
            _remove_directories(missing[edit.path])
        if read(record.path) != saved:
            _put(record.path, saved, None)
        _remove_backups(record, edits)
        raise
    _close(record, edits)


def _execute(edit: Edit, missing: Sequence[str]) -> None:
    """Make the directories, and write or remove the file."""
    try:
        for directory in missing:
            os.makedirs(directory, 0o755, exist_ok=True)
        if os.path.isdir(os.path.dirname(edit.path)):
            operator_files.remove_leftovers(edit.path)  # also where nothing is left to write
        if edit.changes():
            _put(edit.path, edit.after, edit.draft.mode if edit.draft else None)
    except OSError as error:
        do = "all files are as they were"
        raise VgpuError(edit.path, expected="a file to write", found=error.strerror, do=do) from error


def backups(record: Record) -> list[str]:
    return [item["backup"] for item in record.files if item["backup"]]


def _entry(record: Record, edit: Edit, directories: list[str]) -> dict[str, Any]:
    """The record's entry for a file that was written, and its backup."""
    assert edit.draft is not None
    before = record.entry(edit.path) or {}
    backup = ""
    if edit.original is not None:
        backup = _backup(record, edit.path)
        records.write_bytes(backup, edit.original.encode(), 0o600)
    return {
        "path": edit.path, "kind": edit.draft.kind, "digest": _digest(edit.draft.text), "backup": backup,
        "text": "" if edit.draft.kind == OWN else edit.draft.text,
        "directories": directories or before.get("directories", []),
        "assigned": [{"keys": list(one.keys), "value": one.value, "before": one.before} for one in edit.draft.assigned],
    }  # fmt: skip


def _close(record: Record, edits: Sequence[Edit]) -> None:
    """Remove what the record's files need no more: directories made for them, and backups."""
    undone = {edit.path for edit in edits if edit.after is None and not edit.draft}
    written = {edit.path for edit in edits if edit.draft}
    for entry in record.files:
        if entry["path"] in undone:
            _remove_directories(entry["directories"])
        if entry["path"] not in written and entry["backup"].startswith(_backups(record)):
            _remove_file(entry["backup"])


def _remove_backups(record: Record, edits: Sequence[Edit]) -> None:
    """Remove the backups that only a registration that failed needed."""
    for edit in edits:
        if edit.draft and not record.entry(edit.path):
            _remove_file(_backup(record, edit.path))


def _backups(record: Record) -> str:
    """The beginning of the paths of a record's backups."""
    return record.path[: -len(".json")] + "-"


def _backup(record: Record, path: str) -> str:
    number = hashlib.sha256(path.encode()).hexdigest()[:8]
    return f"{_backups(record)}{os.path.basename(path)}-{number}{BACKUP}"


def _remove_file(path: str) -> None:
    if os.path.exists(path):
        os.unlink(path)


def _write(record: Record) -> None:
    if record.files:
        records.write(record.path, {"files": record.files, "options": record.options}, 0o600)
    else:
        _remove_file(record.path)


def _without_ours(path: str, now: str | None, entry: dict[str, Any] | None) -> str | None:
    """The text without what this program wrote into it, of a file that was edited since, or has no record."""
    if now is None or (entry is not None and entry["kind"] == OWN):
        return None
    if entry is None:
        return toml_text.without_block(now) if toml_text.block(now) else now
    before = read(entry["backup"]) if entry["backup"] else None
    found = _without_keys(path, now, entry)
    blank = not found.strip() or (entry["kind"] == JSON and json_text.parse(found, path) == {})
    if before is None:
        return None if blank else found
    # A record of an older version has no text.
    merged = undo.reverse(before, entry["text"], now) if "text" in entry else None
    return merged if merged is not None and _mean_the_same(entry["kind"], merged, found) else found


def _without_keys(path: str, text: str, entry: dict[str, Any]) -> str:
    """The text without the keys and the block of this program, found by their names."""
    for one in entry["assigned"]:
        text = _unassigned(path, text, entry["kind"], Assignment(tuple(one["keys"]), one["value"], one["before"]))
    return toml_text.without_block(text) if entry["kind"] == TOML else text


def _mean_the_same(kind: str, one: str, other: str) -> bool:
    """Whether two texts of a file mean the same to the runtime. Of a template only the text itself is known."""
    parse = json_text.parse if kind == JSON else toml_text.parse
    try:
        return parse(one, "") == parse(other, "")
    except VgpuError:
        return _parts(one) == _parts(other)


def _parts(text: str) -> tuple[str, str]:
    return toml_text.block(text), toml_text.without_block(text)


def _unassigned(path: str, text: str, kind: str, one: Assignment) -> str:
    """`text` with the key as it was before. A value that somebody else wrote since stays."""
    if kind == TOML:
        if nested_values.look_up(toml_text.parse(text, path), one.keys) != one.value:
            return text
        if one.before is None:
            return toml_text.remove(text, one.keys, path)
        return toml_text.assign(text, one.keys, one.before, path)
    if nested_values.look_up(json_text.parse(text, path), one.keys) != one.value:
        return text
    if one.before is not None:
        return json_text.assign(text, one.keys, one.before)
    text = json_text.remove(text, one.keys)
    above = one.keys[:-1]
    return (
        json_text.remove(text, above)
        if above and nested_values.look_up(json_text.parse(text, path), above) == {}
        else text
    )


def _missing_directories(edit: Edit) -> list[str]:
    """The directories that the file needs, the outermost first."""
    missing: list[str] = []
    directory = os.path.dirname(edit.path) if edit.after is not None else "/"
    while not os.path.isdir(directory):
        missing.append(directory)
        directory = os.path.dirname(directory)
    return missing[::-1]


def _remove_directories(directories: Sequence[str]) -> None:
    """Remove directories that this program made and that are empty."""
    for directory in reversed(directories):
        if os.path.isdir(directory) and not os.listdir(directory):
            os.rmdir(directory)


def _put(path: str, text: str | None, mode: int | None) -> None:
    """Replace the file, by rename, with owner and mode as they were; None removes it."""
    if text is not None:
        operator_files.replace(path, text.encode(), 0o644 if mode is None else mode)
    elif os.path.lexists(path):
        os.unlink(path)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
