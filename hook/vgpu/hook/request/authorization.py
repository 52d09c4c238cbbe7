"""Authorization: an annotation or environment variable becomes a request only where its author may ask for cards.

Belongs here: which annotations and which environment count for whom. In Kubernetes tenants write both, so an amount
counts only as a grant. Elsewhere an image may bring annotations (podman copies them), so a request counts if its name
has the node's key, if it stands in the hook's own command line, or if the administrator has opened the node to all
annotations. `source_of` decides which of these a container has, without the node's settings; the source then makes the
request with them. Not here: the amounts of grants, and requests outside Kubernetes (outside_kubernetes). Everything is
pure except the check that the hook runs as the host's root.
"""

from __future__ import annotations

import os

from vgpu.config import grants, request
from vgpu.config.errors import VgpuError
from vgpu.config.settings import Settings
from vgpu.hook.request.identity import Identity, identify, in_kubepods
from vgpu.hook.request.oci_state import CommandLine, Container
from vgpu.hook.request.resolve_grants import WantedGrants

TYPE_CHECKING = False
if TYPE_CHECKING:
    from vgpu.hook.request.outside_kubernetes import Key, Plain
    from vgpu.hook.request.prepared_claims import Prepared

IDENTITY_MAP = ["0", "0", "4294967295"]


def asks_for_cards(container: Container, command_line: CommandLine) -> bool:
    """Whether an annotation, the environment or the command line asks for a card. Only then does the hook identify the
    container.
    """
    annotations = container.annotations
    named = bool(command_line.annotations or command_line.prepared or container.prepared)
    return named or has_grants(container) or _asks(annotations)


def _asks(annotations: dict[str, str]) -> bool:
    return request.asks_by_key(annotations) or asks_by_annotation(annotations)


def asks_by_annotation(annotations: dict[str, str]) -> bool:
    """An unknown `vgpu.io/` annotation counts: somebody asked by a name that does not exist."""
    return (
        request.is_standalone(annotations)
        or any(key in annotations for key in grants.ANNOTATIONS.values())
        or (grants.are_not_all(annotations) and _is_unknown(annotations))
    )


def _is_unknown(annotations: dict[str, str]) -> bool:
    from vgpu.config import annotations as names  # noqa: PLC0415

    return bool(names.unknown(annotations))


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


def source_of(
    container: Container, cgroups: list[str], command_line: CommandLine
) -> Nothing | Grants | Prepared | Key | Plain:
    """Where the request of a container that asks for cards comes from, and whose it is.

    The kernel's cgroup path makes a container one of Kubernetes. Outside of it, a request by key makes it a standalone
    one. VgpuError where the identity is not clear.
    """
    annotations, inside = container.annotations, in_kubepods(cgroups)
    if command_line.prepared or container.prepared:
        return _prepared(container, cgroups, command_line)
    if not inside and request.asks_by_key(annotations):
        return _outside(annotations, None)
    identity, granted = identify(cgroups, annotations), has_grants(container)
    if identity.kubernetes and (inside or granted or not command_line.annotations):
        if granted:
            return Grants(identity, container)
        return Nothing(identity, [] if identity.sandbox else _in_vain(annotations))
    if command_line.annotations or asks_by_annotation(annotations):
        return _outside(annotations, command_line)
    return Nothing(identity, [])


def _prepared(container: Container, cgroups: list[str], command_line: CommandLine) -> Prepared:
    from vgpu.hook.request.prepared_claims import Prepared  # noqa: PLC0415

    own = [command_line.prepared] if command_line.prepared else []
    identity, ids = identify(cgroups, container.annotations), list(dict.fromkeys([*container.prepared, *own]))
    return Prepared(identity, ids, cgroups, has_grants(container))


def _outside(annotations: dict[str, str], command_line: CommandLine | None) -> Key | Plain:
    from vgpu.hook.request import outside_kubernetes  # noqa: PLC0415

    if command_line is None:
        return outside_kubernetes.Key(annotations)
    return outside_kubernetes.Plain(annotations, command_line)


def _in_vain(annotations: dict[str, str]) -> list[str]:
    from vgpu.hook.request import ignored_annotations  # noqa: PLC0415

    return ignored_annotations.in_pod(annotations)


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
