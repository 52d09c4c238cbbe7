"""Docker: the shim as a runtime with a name in daemon.json, or as the default runtime.

Belongs here: daemon.json. A named runtime may carry a share in its arguments, for Docker before 24, whose `docker run`
has no --annotation.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any

from vgpu.config.errors import VgpuError, shown
from vgpu.node.runtimes import json_text, nested_values, programs, registered_files
from vgpu.node.runtimes.registered_files import JSON, Assignment, Draft, Record
from vgpu.node.runtimes.registration import BASE_SPEC, DEFAULT, Registration, Wish, call

CONFIG = "/etc/docker/daemon.json"
RELOAD = ("systemctl", "reload", "docker")
#: A reload sets what the file names, and leaves a default runtime that the file names no more.
RESTART = ("systemctl", "restart", "docker")
ANNOTATION = "vgpu.io/"
RUNC = "io.containerd.runc.v2"


def registration(wish: Wish, record: Record) -> Registration:
    """The runtime in daemon.json, and where asked for, the default runtime."""
    if wish.mode == BASE_SPEC:
        raise VgpuError("--mode base-spec", expected="handler or default: Docker has no base specification")
    path = registered_files.followed(wish.config or CONFIG)
    original = record.original(path)
    text = original if original is not None and original.strip() else "{}\n"
    document = json_text.parse(text, path)
    if nested_values.look_up(document, ("runtimes", wish.name)) is not None:
        do = "remove it, or choose another name by --handler"
        raise VgpuError(f"{path}: runtime {wish.name}", expected="none yet", found="one of another origin", do=do)
    wanted: dict[tuple[str, ...], Any] = {("runtimes", wish.name): entry(wish, *_default(document, path, wish.mode))}
    if wish.mode == DEFAULT:
        wanted[("default-runtime",)] = wish.name
    assigned = []
    for keys, value in wanted.items():
        text = json_text.assign(text, keys, value)
        assigned.append(Assignment(keys, value, nested_values.look_up(document, keys)))
    draft = Draft(path, text, JSON, assigned=tuple(assigned))
    notes = ("the share is in the runtime's arguments: every container that it runs gets one",) if wish.share else ()
    unset = "default-runtime" not in document
    was_default = record.options.get("mode") == DEFAULT and wish.mode != DEFAULT
    return Registration(
        (draft,), _applies(wish), RESTART if unset and was_default else RELOAD, notes, lambda: _verify(path),
        RESTART if unset and wish.mode == DEFAULT else RELOAD,
    )  # fmt: skip


def entry(wish: Wish, real: str = "", of_real: Sequence[str] = ()) -> dict[str, Any]:
    """The runtime's entry. `real` is the program in front of which the shim stands, or "", with its arguments."""
    program, arguments = call(wish, real)
    for key, value in wish.share:
        arguments += ["--vgpu-annotation", f"{ANNOTATION}{key}={value}"]
    arguments += of_real
    return {"path": program, "runtimeArgs": arguments} if arguments else {"path": program}


def _default(document: dict[str, Any], path: str, mode: str) -> tuple[str, list[str]]:
    """The program and the arguments of the default runtime that the file names. NVIDIA's program is left out.

    The arguments are all that the shim can pass on: VgpuError for other settings, and for a runtime that is no program.
    """
    name, runtimes = str(document.get("default-runtime") or "runc"), document.get("runtimes") or {}
    of_containerd = name.startswith("io.containerd.")
    if name not in runtimes and name != "runc" and not of_containerd:
        raise VgpuError(f"{path}: default-runtime", expected="a runtime of the file, or runc", found=name)
    found = runtimes.get(name) or {"runtimeType": name if of_containerd else RUNC}
    kind, options = found.get("runtimeType") or RUNC, dict(found.get("options") or {})
    if kind != RUNC and mode != DEFAULT:
        return "", []
    if kind != RUNC:
        raise VgpuError(f"{path}: runtime {name}: runtimeType", expected=RUNC, found=kind, do="choose no mode")
    binary = str(found.get("path") or options.pop("BinaryName", ""))
    for key, value in options.items():
        do = "write what it means into the runtimeArgs of a runtime with a path"
        raise VgpuError(f"{path}: runtime {name}: options.{key}", expected="none: the shim has no options",
                        found=value, do=do)  # fmt: skip
    return "" if "nvidia" in binary else binary, list(found.get("runtimeArgs") or [])


def _applies(wish: Wish) -> str:
    if wish.mode == DEFAULT:
        return "every container created from now on that names no other runtime"
    return f"containers that docker run --runtime {wish.name} creates; all others stay as they are"


def _verify(path: str) -> None:
    """dockerd has --validate from 23 on; an older one says that it does not know the flag."""
    if not shutil.which("dockerd"):
        return
    command = ["dockerd", "--validate", "--config-file", path]
    done = programs.run(command)
    if done.returncode and "unknown flag" not in done.stderr:
        found = shown(done.stderr.strip().rpartition("\n")[2])
        raise VgpuError(" ".join(command), expected="a valid configuration", found=found, do="the file is as before")
