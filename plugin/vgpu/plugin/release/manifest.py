"""The list of a release's files, with their modes and hashes, and the comparison of a directory with it.

Belongs here: reading and verifying. Does not belong here: which files there are, which packaging/image decides when it
builds the image, and copying them.
"""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass

from vgpu.config import records
from vgpu.config.errors import VgpuError
from vgpu.config.fields import Fields

PATH = "usr/share/vgpu/release.json"  #: in the image, and in the release
VERSION = 1
MAX_SIZE = 16 << 20
DO = "pull the image again"


@dataclass(frozen=True)
class File:
    """A regular file with `mode` and `sha256`, or a symbolic link to `target`. `path` is relative to the root."""

    path: str
    mode: int = 0
    sha256: str = ""
    target: str = ""


@dataclass(frozen=True)
class Manifest:
    """`name` is the directory of the release: its version, and a part of the list's own hash."""

    name: str
    files: tuple[File, ...]


def read(root: str) -> Manifest:
    """The manifest of the image or release at `root`; VgpuError if there is none, or one that is damaged."""
    path = os.path.join(root, PATH)
    try:
        data = records.read_bounded(path, MAX_SIZE)
    except OSError as error:
        raise VgpuError(path, expected="the list of a release's files", found=error.strerror, do=DO) from error
    fields = Fields(records.decode_object(data, path, DO), path, DO)
    fields.version(VERSION)
    entries = fields.record.get("files")
    if not isinstance(entries, list):
        raise fields.wrong("files", "a list")
    files = tuple(_file(Fields(entry, f"{path}: files", DO)) for entry in entries)
    release = fields.text("release")
    if not release or "/" in release or release.startswith("."):
        raise VgpuError(f"{path}: release", expected="a version", found=release, do=DO)
    own = File(PATH, 0o644, hashlib.sha256(data).hexdigest())
    return Manifest(f"{release}-{own.sha256[:8]}", (*files, own))


def _file(entry: Fields) -> File:
    path = entry.text("path").lstrip("/")
    if not path or ".." in path.split("/"):
        raise VgpuError("release.json: path", expected="a path below the root", found=path, do=DO)
    if "target" in entry.record:
        return File(path, target=entry.text("target"))
    return File(path, entry.whole("mode", high=0o777), entry.text("sha256"))


def verify(root: str, manifest: Manifest) -> None:
    """VgpuError that names the first file of `root` that is not as the manifest says, or that it does not name."""
    for file in manifest.files:
        found = _state(os.path.join(root, file.path), file)
        if found:
            raise VgpuError(f"{root}/{file.path}", expected="a file of the release", found=found, do=DO)
    known = {file.path for file in manifest.files}
    for directory, _, names in os.walk(root):
        for name in names:
            path = os.path.relpath(os.path.join(directory, name), root)
            if path not in known:
                raise VgpuError(f"{root}/{path}", expected="no file that the release does not name", found="one", do=DO)


def _state(path: str, file: File) -> str:
    """What is wrong with a file; "" if nothing is."""
    try:
        if file.target:
            return "" if os.readlink(path) == file.target else "a link to another file"
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode) or status.st_uid or stat.S_IMODE(status.st_mode) != file.mode:
            return f"another kind of file, owner or mode ({status.st_mode:o})"
        return "" if digest(path) == file.sha256 else "another content"
    except OSError as error:
        return str(error.strerror)


def digest(path: str) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    made = hashlib.sha256()
    with open(path, "rb") as stream:
        for part in iter(lambda: stream.read(1 << 20), b""):
            made.update(part)
    return made.hexdigest()
