"""Registering and unregistering: planning, writing, verifying and recording, in that order, for any runtime.

Belongs here: the table of runtimes, and of CDI, which serves several of them. Does not belong here: printing, and
restarting a daemon, which the verb does.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from vgpu.node.runtimes import cdi_spec, containerd, docker, hooks_d, registered_files
from vgpu.node.runtimes.registered_files import Edit, Record
from vgpu.node.runtimes.registration import Registration, Wish

KINDS: dict[str, Callable[[Wish, Record], Registration]] = {
    "containerd": containerd.registration,
    "crio": hooks_d.crio,
    "docker": docker.registration,
    "podman": hooks_d.podman,
    cdi_spec.NAME: cdi_spec.registration,
}
#: podman and CRI-O read the same directory, so the one's files may be the other's too.
SHARING = {"podman": "crio", "crio": "podman"}


@dataclass(frozen=True)
class Change:
    """The edits of a registration, or of its undo. `kept`: files that stay, as another runtime uses them."""

    record: Record
    edits: tuple[Edit, ...]
    registration: Registration | None = None
    options: dict[str, object] | None = None
    kept: tuple[str, ...] = ()

    def diff(self) -> str:
        return "".join(edit.diff() for edit in self.edits)

    def changes(self) -> bool:
        return any(edit.changes() for edit in self.edits)

    def execute(self) -> None:
        """Write. If the runtime's own program refuses the result, all files are as before, and its error is raised."""
        verify = self.registration.verify if self.registration else _accept
        registered_files.apply(self.record, self.edits, self.options or {}, verify)

    def backups(self) -> list[str]:
        """The backups that were made."""
        return registered_files.backups(
            Record.read(os.path.dirname(os.path.dirname(self.record.path)), _name(self.record))
        )


def _accept() -> None:
    """The undo restores what the runtime had before: there is nothing to ask."""


def configure(runtime: str, wish: Wish) -> Change:
    """The plan of a registration. Where one is there already, it is replaced."""
    record = Record.read(wish.state_dir, runtime)
    other = Record.read(wish.state_dir, SHARING[runtime]) if runtime in SHARING else Record("")
    made = KINDS[runtime](wish, record)
    paths = {draft.path for draft in made.drafts}
    record.files += [item for item in other.files if item["path"] in paths and not record.entry(item["path"])]
    options = {**wish.options(), "restart": list(made.restart_after_undo)}
    return Change(record, tuple(registered_files.plan(record, made.drafts)), made, options)


def unconfigure(runtime: str, state_dir: str) -> Change:
    """The plan of the undo."""
    record = Record.read(state_dir, runtime)
    other = Record.read(state_dir, SHARING[runtime]) if runtime in SHARING else Record("")
    kept = tuple(item["path"] for item in record.files if other.entry(item["path"]))
    undone = [edit for edit in registered_files.plan(record, ()) if edit.path not in kept]
    return Change(record, tuple(undone), kept=kept)


def _name(record: Record) -> str:
    return os.path.basename(record.path)[: -len(".json")]
