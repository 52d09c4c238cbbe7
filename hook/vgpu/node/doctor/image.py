"""The copies of libcuda and NVML in an image: which of them the hook covers in a share, and which would stay.

Belongs here: the whole root file system of an image is searched, which a start has no time for, and compared with what
the hook's own inspection finds for the image's environment. Does not belong here: the inspection
(vgpu.hook.inject.inspect), and printing (vgpu.node.ctl.doctor). Nothing in the image is executed or changed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from vgpu.config import records
from vgpu.config.errors import VgpuError
from vgpu.config.limits import LIMITED, NVIDIA_DIR
from vgpu.hook.formats import elf
from vgpu.hook.inject.inspect import Inspection, inspect
from vgpu.hook.inject.library_search import MAX_STUB, Process, process_of
from vgpu.hook.linux.rootfs import Rootfs

COVERED, STAYS, STUB = "covered", "stays", "stub"
MAX_CONFIG = 16 << 20
LEFT_OUT = ("proc", "sys", "dev")  #: folders of the root that no image has files in
UNSEARCHED = (
    "no program looks there by the image's environment; one that names the file, or a script that sets LD_LIBRARY_PATH,"
    " has no limit"
)

Identity = tuple[int, int]


@dataclass(frozen=True)
class Copy:
    """A file, or the hook's words about one. `status` is COVERED, STAYS or STUB."""

    path: str
    status: str
    found: str


def examine(root: str, environment: Sequence[str], image_config: str) -> list[Copy]:
    """The copies in the image at `root`: a root file system, or a bundle with a config.json.

    `environment` are NAME=VALUE, which count beside those of `image_config`, a file with the image's configuration as
    `skopeo inspect --config`, `podman image inspect` and `docker image inspect` print it, or of the bundle.
    """
    tree, process = _bundle(root)
    if image_config:
        process = _of_image(image_config)
    for item in environment:
        name, equals, value = item.partition("=")
        if not equals:
            raise VgpuError("--env", expected="NAME=VALUE", found=item)
        process.env[name] = value
    process = process_of({"process": {"cwd": process.cwd, "args": list(process.args)}}, process.env)
    try:
        rootfs = Rootfs(os.open(tree, os.O_PATH | os.O_DIRECTORY))
    except OSError as error:
        raise VgpuError(tree, expected="the root file system of an image", found=error.strerror) from None
    try:
        return list(_copies(rootfs, inspect(rootfs, frozenset(LIMITED), [], process=process)))
    finally:
        rootfs.close()


def _bundle(root: str) -> tuple[str, Process]:
    """(root file system, process) of a bundle; `root` itself where there is none."""
    path = os.path.join(root, "config.json")
    config = _json(path) if os.path.isfile(path) else {}
    if "ociVersion" not in config:
        return root, Process()
    below = _object(config.get("root")).get("path")
    process = _object(config.get("process"))
    made = Process(_env(process.get("env")), str(process.get("cwd") or "/"), _words(process.get("args")))
    return os.path.join(root, str(below or "rootfs")), made


def _of_image(path: str) -> Process:
    found = _json(path)
    config = _object(found.get("config") or found.get("Config"))
    if not config:
        raise VgpuError(path, expected="an image's configuration with `config`", found="none")
    args = (*_words(config.get("Entrypoint")), *_words(config.get("Cmd")))
    return Process(_env(config.get("Env")), str(config.get("WorkingDir") or "/"), args)


def _json(path: str) -> dict[str, Any]:
    """The object in a file, or the first of a list, which podman and Docker print."""
    try:
        data = records.read_bounded(path, MAX_CONFIG)
    except OSError as error:
        raise VgpuError(path, expected="a file of JSON", found=error.strerror) from None
    text = data.strip()
    if text[:1] == b"[":
        text = b'{"list":' + text + b"}"
        items = records.decode_object(text, path).get("list")
        return _object(items[0] if isinstance(items, list) and items else None)
    return records.decode_object(text, path)


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _words(value: object) -> tuple[str, ...]:
    return tuple(str(item) for item in value) if isinstance(value, list) else ()


def _env(value: object) -> dict[str, str]:
    return dict(item.split("=", 1) for item in _words(value) if "=" in item)


def _copies(rootfs: Rootfs, facts: Inspection) -> Iterator[Copy]:
    names = {f"{facts.library_dir}/{name}" for name in facts.files}
    names |= {*facts.copies, *facts.compat, *(path for path, _ in facts.private)}
    covered = {identity for path in names if (identity := _identity(rootfs, path))}
    named = {line.partition(": ")[0]: line.partition(": ")[2] for line in facts.uncovered}
    stays = {identity: path for path in named if (identity := _identity(rootfs, path))}
    for path, status, library in _every(rootfs):
        identity = status.st_dev, status.st_ino
        if identity in stays:
            continue
        if identity in covered or path.startswith(NVIDIA_DIR + "/"):
            yield Copy(path, COVERED, f"in a share the node's {library} takes its place")
        elif "/stubs/" in path and status.st_size < MAX_STUB:
            yield Copy(path, STUB, "for the linker; it reaches no card")
        else:
            yield Copy(path, STAYS, f"a copy of {library}: {UNSEARCHED}")
    yield from (Copy(path, STAYS, text) for path, text in named.items())


def _identity(rootfs: Rootfs, path: str) -> Identity | None:
    try:
        fd = rootfs.open(path, os.O_PATH)
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None
    finally:
        os.close(fd)


def _every(rootfs: Rootfs) -> Iterator[tuple[str, os.stat_result, str]]:
    """(path, status, library) of each regular file that is one of the libraries, by its name or its DT_SONAME."""
    for folder, below, names, fd in os.fwalk(".", dir_fd=rootfs.fd):
        if folder == ".":
            below[:] = [name for name in below if name not in LEFT_OUT]
        below.sort()
        for name in sorted(names):
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
            library = _library(fd, name, status) if stat.S_ISREG(status.st_mode) else ""
            if library:
                yield f"{folder[1:]}/{name}", status, library


def _library(folder: int, name: str, status: os.stat_result) -> str:
    stem = name.partition(".so")[0]
    if (stem in LIMITED or stem.startswith("libcuda-")) and ".so" in name:  # a wheel has libcuda-1a2b3c4d.so.1
        return stem
    if status.st_size < MAX_STUB:
        return ""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return ""
    try:
        stem = elf.read_fd(fd, name).soname.partition(".so")[0] if os.pread(fd, 4, 0) == b"\x7fELF" else ""
    except VgpuError:
        return ""
    finally:
        os.close(fd)
    return stem if stem in LIMITED else ""
