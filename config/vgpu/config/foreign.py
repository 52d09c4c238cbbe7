"""Foreign processes: they use a card of the node, and no claim gives them that card. `<run>/foreign.json`.

Belongs here: the record that vgpud writes from NVML's process lists, and when it counts: only in the boot that it was
written in, and for `valid` seconds by vgpu.config.clock. Not here: the decision which process is foreign
(vgpu.node.daemon.foreign_processes), and what the ledger makes of it.
"""

from __future__ import annotations

from vgpu.config import paths, records
from vgpu.config.errors import VgpuError
from vgpu.config.fields import Fields

VERSION = 1
COMPUTE, GRAPHICS = "compute", "graphics"


class User:
    """A process on a card that its container, if it has one, does not hold. `memory` is in bytes, 0 when unknown.

    `kind` is compute or graphics. `command` is the kernel's name of the process. `container` is the id of its
    container's claim, which is on other cards, or "".
    """

    __slots__ = ("command", "container", "kind", "memory", "pid", "start_time")

    def __init__(
        self, pid: int, start_time: int, command: str, kind: str = COMPUTE, memory: int = 0, container: str = ""
    ) -> None:
        self.pid = pid
        self.start_time = start_time
        self.command = command
        self.kind = kind
        self.memory = memory
        self.container = container

    def describe(self) -> str:
        of = f"of container {self.container}, which does not hold the card" if self.container else "of no container"
        return f"process {self.pid} ({self.command}) {of}"


def record(users: dict[str, list[User]], boot_id: str, written: float, valid: float) -> dict[str, object]:
    """The record of `users`, by card uuid."""
    cards = [
        {"uuid": uuid, "users": [{name: getattr(user, name) for name in User.__slots__} for user in found]}
        for uuid, found in users.items()
    ]
    return {"version": VERSION, "boot_id": boot_id, "written": written, "valid": valid, "cards": cards}


def read(run_dir: str, boot_id: str, at: float) -> dict[str, list[User]]:
    """The foreign users by card uuid; {} when the file is missing or too old. VgpuError when it is damaged."""
    path = paths.foreign(run_dir)
    try:
        fields = Fields(records.read(path), path)
    except FileNotFoundError:
        return {}
    fields.version(VERSION)
    age = at - fields.time("written")
    if fields.text("boot_id") != boot_id or not 0 <= age <= fields.time("valid"):
        return {}
    return {card.text("uuid", empty=False): list(map(_user, card.objects("users"))) for card in fields.objects("cards")}


def _user(fields: Fields) -> User:
    kind = fields.text("kind")
    if kind not in (COMPUTE, GRAPHICS):
        raise VgpuError(f"{fields.source}: kind", expected=f"{COMPUTE} or {GRAPHICS}", found=kind)
    return User(
        fields.whole("pid", 1), fields.whole("start_time"), fields.text("command"), kind, fields.whole("memory"),
        fields.text("container"),
    )  # fmt: skip
