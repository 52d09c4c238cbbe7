"""Who uses the node's cards without a claim on them: `<run>/foreign.json`, written by vgpud from NVML's process lists.

Belongs here: the record and when it counts. It counts only while vgpud goes on writing it: of this boot, and no older
than `valid` seconds by vgpu.config.clock. Judging who is foreign is vgpud's (vgpu.node.daemon.foreign_processes), what
follows from it the ledger's.
"""

from __future__ import annotations

from vgpu.config import paths, records
from vgpu.config.errors import VgpuError
from vgpu.config.fields import Fields

VERSION = 1
COMPUTE, GRAPHICS = "compute", "graphics"


class User:
    """A process on a card that its container, if it has one, does not hold. `memory` in bytes, 0 when not known.

    `kind` is compute or graphics; `command` the kernel's name of it; `container` the id of the claim that it runs
    under although that has another card, else "".
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
    """`users` by card uuid, as it goes to disk."""
    cards = [
        {"uuid": uuid, "users": [{name: getattr(user, name) for name in User.__slots__} for user in found]}
        for uuid, found in users.items()
    ]
    return {"version": VERSION, "boot_id": boot_id, "written": written, "valid": valid, "cards": cards}


def read(run_dir: str, boot_id: str, at: float) -> dict[str, list[User]]:
    """The foreign users by card uuid; {} when nobody has looked lately. VgpuError when the file is damaged."""
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
