"""Requests of containers outside Kubernetes: by the node's key, or by plain annotations where these count.

Belongs here: the two sources of such a request, and the errors for annotations that do not count. Not here: which of
them a container has (authorization), and the grammar of requests (vgpu.config.standalone). A container of Kubernetes
loads none of this.
"""

from __future__ import annotations

from vgpu.config import annotations as names
from vgpu.config import grants, request, standalone
from vgpu.config.errors import VgpuError, shown
from vgpu.config.request import Request
from vgpu.config.settings import Settings
from vgpu.hook.request import ignored_annotations
from vgpu.hook.request.identity import Identity
from vgpu.hook.request.oci_state import CommandLine


class Key:
    """A container outside Kubernetes with a request by key, whatever its other annotations say."""

    __slots__ = ("annotations", "identity")

    def __init__(self, annotations: dict[str, str]) -> None:
        self.identity = Identity(None)
        self.annotations = annotations

    def request(self, settings: Settings) -> tuple[Request, list[str]]:
        """The request that has the node's key in its name, and notes. VgpuError for a wrong key."""
        text = standalone.with_key(self.annotations, standalone.read_key(settings.text("standalone.key")))
        if text is None:
            raise VgpuError(standalone.WHAT, expected="this node's key in its name", found="another one", do=_USE)
        return standalone.parse(text, self.annotations), ignored_annotations.beside_authority(self.annotations)


class Plain:
    """A container outside Kubernetes with plain annotations, or on a node whose command line of the hook has some."""

    __slots__ = ("annotations", "command_line", "identity")

    def __init__(self, annotations: dict[str, str], command_line: CommandLine) -> None:
        self.identity = Identity(None)
        self.annotations = annotations
        self.command_line = command_line

    def request(self, settings: Settings) -> tuple[Request | None, list[str]]:
        """The request, None without any, and notes. The container's own annotations come before the command line's.
        VgpuError where they do not count.
        """
        counts = self.command_line.allows_any(settings)
        if self.command_line.annotations:
            own = self.annotations if counts else {}
            wanted = request.from_annotations({**self.command_line.annotations, **own})
        else:
            _refuse(self.annotations, counts)
            if not request.is_standalone(self.annotations):
                return None, []
            wanted = request.from_annotations(self.annotations)
        return wanted, ignored_annotations.standalone(self.annotations, wanted)


def _refuse(annotations: dict[str, str], counts: bool) -> None:
    """VgpuError for annotations outside Kubernetes that do not count, and for grants."""
    if not counts:
        _refuse_plain(annotations)
    _refuse_misspelled(annotations)
    if not request.is_standalone(annotations) and any(key in annotations for key in grants.ANNOTATIONS.values()):
        raise VgpuError("grants", expected="a container of Kubernetes", found="a standalone one",
                        do="ask by what vgpuctl request prints")  # fmt: skip


def _refuse_plain(annotations: dict[str, str]) -> None:
    """VgpuError for a plain annotation where only a request with the key counts; a misspelled request has its own."""
    key = next((key for key in names.NAMES if key in annotations), "")
    by_key = f"{request.REQUEST}{names.KEY}"
    if key and all(names.nearest(one) != by_key for one in names.unknown(annotations)):
        expected, found = f"{by_key} with this node's key", "an annotation that an image may have brought"
        raise VgpuError(f"annotation {key}", expected=expected, found=found, do=_USE)


_USE = "run: vgpuctl request --cores N --memory SIZE, and annotate the container with what it prints"


def _refuse_misspelled(annotations: dict[str, str]) -> None:
    """VgpuError for an annotation that vgpu does not read: the container would run without what its user meant."""
    for key in names.misspelled(annotations):
        near = names.nearest(key)
        do = f"did you mean {near}?" if near else "the names are " + ", ".join(names.NAMES)
        raise VgpuError(
            f"annotation {shown(names.masked(key))}", expected="a name that vgpu reads", found="an unknown one", do=do
        )
