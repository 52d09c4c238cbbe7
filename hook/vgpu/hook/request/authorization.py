"""Authorization: an annotation or environment variable becomes a request only where its author may ask for cards.

Belongs here: which annotations and which environment count for whom. In Kubernetes tenants write both, so an amount
counts only as a grant. Elsewhere an image may bring annotations (podman copies them), so a request counts if its name
has the node's key, if it stands in the hook's own command line, or if the administrator has opened the node to all
annotations. Not here: the amounts of grants, and the grammar of requests (vgpu.config.standalone). Everything is pure
except reading the key and the check that the hook runs as the host's root.
"""

from __future__ import annotations

import os

from vgpu.config import annotations as names
from vgpu.config import grants, request, standalone
from vgpu.config.errors import VgpuError, shown
from vgpu.config.request import Request
from vgpu.config.settings import Settings
from vgpu.hook.request.identity import Identity
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


def in_pod(container: Container, identity: Identity) -> WantedGrants | None:
    """The grants of a container of Kubernetes, named by an annotation or the environment; None without any."""
    annotations = container.annotations
    annotated = {name: annotations[key] for name, key in grants.ANNOTATIONS.items() if key in annotations}
    hints = {name: container.env[key] for name, key in grants.ENVIRONMENT.items() if container.env.get(key)}
    ids = {**hints, **annotated}
    if not ids:
        return None
    if identity.sandbox:
        raise VgpuError("container type", expected="no sandbox, as the container has a grant", found="sandbox",
                        do="no sandbox has a grant: find out who wrote one of the two annotations")  # fmt: skip
    return WantedGrants(ids, request.core_limit_wish(annotations), request.wishes_from(annotations))


def by_key(container: Container, settings: Settings) -> Request:
    """The request that has the node's key in its name. VgpuError for a wrong key."""
    text = standalone.with_key(container.annotations, standalone.read_key(settings.text("standalone.key")))
    if text is None:
        raise VgpuError(standalone.WHAT, expected="this node's key in its name", found="another one", do=_USE)
    return standalone.parse(text, container.annotations)


def by_command_line(container: Container, command_line: CommandLine, settings: Settings) -> Request:
    """The request of the command line. Where plain annotations count, the container's own come before it."""
    own = container.annotations if command_line.allows_any(settings) else {}
    return request.from_annotations({**command_line.annotations, **own})


def by_annotations(container: Container, command_line: CommandLine, settings: Settings) -> Request | None:
    """The request of plain annotations outside Kubernetes; None without any. VgpuError where they do not count."""
    annotations = container.annotations
    if not command_line.allows_any(settings):
        _refuse_plain(annotations)
    _refuse_misspelled(annotations)
    if not request.is_standalone(annotations):
        if any(key in annotations for key in grants.ANNOTATIONS.values()):
            raise VgpuError("grants", expected="a container of Kubernetes", found="a standalone one",
                            do="ask by what vgpuctl request prints")  # fmt: skip
        return None
    return request.from_annotations(annotations)


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
