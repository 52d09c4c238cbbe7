"""Authorization: an annotation or environment variable becomes a request only where its author may ask for cards.

Belongs here: which annotations and which environment count for whom. In Kubernetes tenants write both, so an amount
counts only as a grant. Elsewhere an image may bring annotations (podman copies them), so a request counts if its name
has the node's key, if it stands in the hook's own command line, or if the administrator has opened the node to all
annotations. `source_of` decides which of these a container has, without the node's settings; the source then makes the
request with them. Not here: the amounts of grants, and the grammar of requests (vgpu.config.standalone). Everything is
pure except reading the key and the check that the hook runs as the host's root.
"""

from __future__ import annotations

import os

from vgpu.config import annotations as names
from vgpu.config import grants, request, standalone
from vgpu.config.errors import VgpuError, shown
from vgpu.config.request import Request
from vgpu.config.settings import Settings
from vgpu.hook.request import ignored_annotations
from vgpu.hook.request.identity import Identity, identify, in_kubepods
from vgpu.hook.request.oci_state import Container
from vgpu.hook.request.resolve_grants import WantedGrants

IDENTITY_MAP = ["0", "0", "4294967295"]
ANY, KEY = "any", "key"  #: what the hook's argument --standalone may say


class CommandLine:
    """What the administrator wrote into the hook's command line, where no image and no tenant can write.

    `annotations` are the request of every container outside Kubernetes that brings none of its own. `standalone` is ANY
    (all annotations count), KEY, or "" for what the settings say.
    """

    __slots__ = ("annotations", "standalone")

    def __init__(self, annotations: dict[str, str] | None = None, standalone: str = "") -> None:
        self.annotations = annotations or {}
        self.standalone = standalone

    def allows_any(self, settings: Settings) -> bool:
        """Whether plain annotations are a request."""
        return (self.standalone or settings.text("standalone.requests")) in (ANY, "annotations")


def asks_for_cards(container: Container, command_line: CommandLine) -> bool:
    """Whether an annotation, the environment or the command line asks for a card. Only then does the hook identify the
    container.
    """
    asked = standalone.asks(container.annotations) or asks_by_annotation(container.annotations)
    return bool(command_line.annotations) or asked or has_grants(container)


def asks_by_annotation(annotations: dict[str, str]) -> bool:
    """An unknown `vgpu.io/` annotation counts: somebody asked by a name that does not exist."""
    return (
        request.is_standalone(annotations)
        or bool(names.unknown(annotations))
        or any(key in annotations for key in grants.ANNOTATIONS.values())
    )


def has_grants(container: Container) -> bool:
    """Whether an annotation or the environment names a grant, there is one or not."""
    annotations, env = container.annotations, container.env
    return any(key in annotations for key in grants.ANNOTATIONS.values()) or any(
        env.get(key) for key in grants.ENVIRONMENT.values()
    )


class Nothing:
    """A container that gets no card. `notes`: what its pod's annotations ask for in vain."""

    __slots__ = ("identity", "notes")

    def __init__(self, identity: Identity, notes: list[str]) -> None:
        self.identity = identity
        self.notes = notes


class Grants:
    """A container of Kubernetes whose annotations or environment name grants."""

    __slots__ = ("container", "identity")

    def __init__(self, identity: Identity, container: Container) -> None:
        self.identity = identity
        self.container = container

    def request(self, _settings: Settings) -> tuple[WantedGrants, list[str]]:
        """The wanted grants, and notes for the log. VgpuError for a sandbox."""
        annotations, env = self.container.annotations, self.container.env
        annotated = {name: annotations[key] for name, key in grants.ANNOTATIONS.items() if key in annotations}
        hints = {name: env[key] for name, key in grants.ENVIRONMENT.items() if env.get(key)}
        if self.identity.sandbox:
            raise VgpuError("container type", expected="no sandbox, as the container has a grant", found="sandbox",
                            do="no sandbox has a grant: find out who wrote one of the two annotations")  # fmt: skip
        ids = {**hints, **annotated}
        return WantedGrants(ids, request.core_limit_wish(annotations), request.wishes_from(annotations)), []


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


def source_of(container: Container, cgroups: list[str], command_line: CommandLine) -> Nothing | Grants | Key | Plain:
    """Where the request of a container that asks for cards comes from, and whose it is.

    The kernel's cgroup path makes a container one of Kubernetes. Outside of it, a request by key makes it a standalone
    one. VgpuError where the identity is not clear.
    """
    annotations, inside = container.annotations, in_kubepods(cgroups)
    if not inside and standalone.asks(annotations):
        return Key(annotations)
    identity, granted = identify(cgroups, annotations), has_grants(container)
    if identity.kubernetes and (inside or granted or not command_line.annotations):
        if granted:
            return Grants(identity, container)
        return Nothing(identity, [] if identity.sandbox else ignored_annotations.in_pod(annotations))
    if command_line.annotations or asks_by_annotation(annotations):
        return Plain(annotations, command_line)
    return Nothing(identity, [])


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


def refuse_rootless(proc: str = "/proc") -> None:
    """VgpuError unless this process is the host's root. The root of a user namespace is not."""
    with open(f"{proc}/self/uid_map", encoding="ascii") as stream:
        whole = stream.read().split() == IDENTITY_MAP
    if os.geteuid() != 0 or not whole:
        found = f"uid {os.geteuid()}" + ("" if whole else " of a user namespace")
        raise VgpuError("rootless runtime", expected="the host's root", found=found,
                        do="run the container by a runtime of the host's root")  # fmt: skip


def refuse_standalone(identity: Identity, settings: Settings) -> None:
    """VgpuError for a container outside Kubernetes on a node that serves none."""
    if not identity.kubernetes and not settings.flag("standalone.enabled"):
        expected = "standalone.enabled: true in the node's configuration"
        raise VgpuError(
            "request outside Kubernetes", expected=expected, found="false", do="run it as a pod, or enable it"
        )
