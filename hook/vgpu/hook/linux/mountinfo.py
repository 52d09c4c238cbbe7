"""The mounts of a container's mount namespace, by their ids, before the runtime's pivot_root.

Belongs here: reading one mountinfo (proc(5)), and what it says about a mount: where it is, whether mounts below it
appear elsewhere too (shared propagation), and whether its file system is the container's own. Not here: what follows
(rootfs, mounts). A node may have a thousand mounts, so a line is parsed only when somebody asks for it.
"""

from __future__ import annotations

from vgpu.config import records
from vgpu.hook.linux import syscalls

MAX_MOUNTINFO = 16 << 20
_ID, _DEVICE, _PLACE, _OPTIONAL = 0, 2, 4, 6  # fields; the optional ones end with a lone "-"


class MountTable:
    """The mountinfo `text` of a process in the container's namespace, whose root file system is the mount `root`.

    `outside` is the mountinfo of the host's namespace, empty when no mount inside is shared (`any_shared`).
    """

    __slots__ = ("_lines", "_outside", "_root", "_text", "any_shared")

    def __init__(self, text: bytes, root: int, outside: bytes = b"") -> None:
        self._text = b"\n" + text
        self._outside = outside
        self.any_shared = bool(outside)
        self._lines: dict[int, list[bytes]] = {}
        self._root = root

    def _fields(self, mount: int) -> list[bytes]:
        """The fields of the mount with this id, [] when there was none as the table was read."""
        fields = self._lines.get(mount)
        if fields is None:
            start = self._text.find(b"\n%d " % mount) + 1
            fields = self._lines[mount] = self._text[start : self._text.find(b"\n", start)].split(b" ") if start else []
        return fields

    def place(self, mount: int) -> str:
        """Where the mount is, for messages."""
        fields = self._fields(mount)
        place = fields[_PLACE] if fields else b"?"
        top = (self._fields(self._root) or [b""] * (_PLACE + 1))[_PLACE]
        inside = place[len(top) :] if top != b"/" and place.startswith(top + b"/") else place
        return inside.decode("utf-8", "replace")

    def propagates(self, mount: int) -> bool:
        """Whether a mount below this one appears outside the container too, and stays there when it ends."""
        group = self._peer_group(mount)
        return bool(group) and any(b" %b:%b " % (kind, group) in self._outside for kind in (b"shared", b"master"))

    def _peer_group(self, mount: int) -> bytes:
        for field in self._fields(mount)[_OPTIONAL:]:
            if field == b"-":
                break
            if field.startswith(b"shared:"):
                return field[7:]
        return b""

    def is_own(self, mount: int) -> bool:
        """Whether the mount is the root file system, or a tmpfs that the runtime made for this container alone.

        Before pivot_root the namespace shows the host's mounts too. A file system of the host is therefore also
        mounted outside the container's root; one that is only inside was made for the container.
        """
        if mount == self._root:
            return True
        fields, top = self._fields(mount), self._fields(self._root)
        if not fields or not top or fields[fields.index(b"-") + 1] != b"tmpfs":
            return False
        inside = top[_PLACE] + b"/"
        return all(place.startswith(inside) for place in self._places(fields[_DEVICE]))

    def _places(self, device: bytes) -> list[bytes]:
        """Where the file system with this number is mounted."""
        lines = [line.split(b" ", _OPTIONAL) for line in self._text.split(b"\n") if b" " + device + b" " in line]
        return [fields[_PLACE] for fields in lines if fields[_DEVICE] == device]


def read(pid: int | str, root: int, proc: str = "/proc") -> MountTable:
    """The table of process `pid`, whose root file system is the directory `root`; OSError when it is gone."""
    text = records.read_bounded(f"{proc}/{pid}/mountinfo", MAX_MOUNTINFO)
    outside = records.read_bounded(f"{proc}/self/mountinfo", MAX_MOUNTINFO) if b" shared:" in text else b""
    return MountTable(text, syscalls.mount_id(root), outside)
