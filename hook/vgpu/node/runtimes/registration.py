"""What the registrations of all runtimes have in common: the administrator's wish and the result.

Belongs here: the two types, and the programs that a configuration names. Does not belong here: any runtime's files.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field

from vgpu.config import paths
from vgpu.config.settings import COMPILED_PATH
from vgpu.node.runtimes.registered_files import OWN, Draft

HANDLER, DEFAULT, BASE_SPEC = "handler", "default", "base-spec"
MODES = (HANDLER, DEFAULT, BASE_SPEC)
RUNTIMES = ("containerd", "crio", "docker", "podman")
#: What containers meet whose runtime's configuration names a program that is gone.
WITHOUT_PROGRAM = {
    "containerd": "without it, containers of the handler do not start",
    "crio": "podman leaves such a file out, so that containers start without a share; CRI-O has not been tried",
    "docker": "without it, containers of the runtime do not start",
    "podman": "without it, podman's containers start without a share, and nothing says so",
    "cdi": "without it, containers that name the CDI device do not start",
}
#: Where the shim looks for the real runtime, as in shim.c.
DIRECTORIES = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


@dataclass(frozen=True)
class Wish:
    """What the administrator asked for. `config` is "" for the runtime's own place; `share` is Docker's alone.

    `standalone`, any or key, says which annotations are requests outside Kubernetes; "" is for what the settings say.
    """

    config: str = ""
    mode: str = HANDLER
    name: str = "vgpu"
    programs: str = "/usr/bin"
    settings: str = COMPILED_PATH
    state_dir: str = "/var/lib/vgpu"
    share: tuple[tuple[str, str], ...] = ()
    standalone: str = ""

    @property
    def hook(self) -> str:
        return f"{self.programs}/vgpu-hook"

    @property
    def shim(self) -> str:
        return f"{self.programs}/vgpu-runtime"

    def hook_arguments(self, stage: str) -> list[str]:
        """What a configuration calls the hook with. Every place that names the hook takes them from here."""
        settings = [] if self.settings == COMPILED_PATH else ["--config", self.settings]
        return ["vgpu-hook", *settings, *(["--standalone", self.standalone] if self.standalone else []), stage]

    def shim_arguments(self) -> list[str]:
        """What a configuration calls the shim with, before the runtime's own arguments; likewise."""
        settings = [] if self.settings == COMPILED_PATH else ["--vgpu-config", self.settings]
        return [*settings, *(["--vgpu-standalone", self.standalone] if self.standalone else [])]

    def options(self) -> dict[str, object]:
        """What `check` and `unconfigure` have to know of the wish later."""
        return {
            "config": self.config, "mode": self.mode, "name": self.name, "programs": self.programs,
            "settings": self.settings, "share": [list(pair) for pair in self.share], "standalone": self.standalone,
        }  # fmt: skip

    def command(self, runtime: str) -> str:
        """The command line that asks for the same again. Without its options it would ask for another registration."""
        usual = Wish()
        words = ["vgpuctl", *([] if self.settings == usual.settings else ["--config", self.settings])]
        words += ["runtime", "configure", "--runtime", runtime]
        for option, value, default in (
            ("--config", self.config, usual.config), ("--mode", self.mode, usual.mode),
            ("--handler", self.name, usual.name), ("--programs", self.programs, usual.programs),
            ("--standalone", self.standalone, usual.standalone),
        ):  # fmt: skip
            words += [] if value == default else [option, value]
        return shlex.join([*words, *(word for key, value in self.share for word in ("--share", f"{key}={value}"))])


def _nothing() -> None:
    """For runtimes whose own program checks no configuration."""


@dataclass(frozen=True)
class Registration:
    """The files of a registration, which containers it applies to, and what has to be started again.

    `verify` asks the runtime's own program about the written files, and raises VgpuError.
    """

    drafts: tuple[Draft, ...]
    applies: str
    restart: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())
    verify: Callable[[], None] = _nothing
    undo_restart: tuple[str, ...] | None = None  #: what has to be started again after the undo, if not the same

    @property
    def restart_after_undo(self) -> tuple[str, ...]:
        return self.restart if self.undo_restart is None else self.undo_restart


def call(wish: Wish, real: str) -> tuple[str, list[str]]:
    """The shim in front of the runtime `real`, or for "" of the one that it finds itself, and its arguments."""
    shim = f"{wish.shim}-crun" if os.path.basename(real) == "crun" else wish.shim
    arguments = wish.shim_arguments()
    if real:
        found = real if os.path.isabs(real) else shutil.which(real)
        if found and found != _first(os.path.basename(real)):
            arguments += ["--vgpu-runtime", found]
    return shim, arguments


def wrapper(wish: Wish, runtime: str, real: str) -> tuple[str, tuple[Draft, ...]]:
    """The program for a place that takes no arguments: the shim, or a script of ours that calls it with options.

    `real` is the runtime that the place named before, or "" for the one that the shim finds.
    """
    shim, arguments = call(wish, real)
    if not arguments:
        return shim, ()
    path = f"{paths.runtimes(wish.state_dir)}/vgpu-runtime-{runtime}"
    text = f'#!/bin/sh\nexec {shlex.join([shim, *arguments])} "$@"\n'
    return path, (Draft(path, text, OWN, 0o755),)


def _first(name: str) -> str:
    """The runtime that the shim finds by itself."""
    found = (f"{directory}/{name}" for directory in DIRECTORIES)
    return next((path for path in found if os.access(path, os.X_OK)), "")
