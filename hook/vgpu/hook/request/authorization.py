"""Authorization: an annotation or environment variable becomes a request only where its author may ask for cards.

Belongs here: which annotations and which environment count for whom. In Kubernetes tenants write both, so an amount
counts only as a grant. Elsewhere the host's root writes a container's annotations. Not here: the amounts of grants.
Everything is pure except the check that the hook runs as the host's root.
"""

from __future__ import annotations

import os

from vgpu.config import annotations as names
from vgpu.config import grants, request
from vgpu.config.errors import VgpuError, shown
from vgpu.config.request import Request
from vgpu.config.settings import Settings
from vgpu.hook.request.identity import Identity
from vgpu.hook.request.oci_state import Container
from vgpu.hook.request.resolve_grants import WantedGrants

IDENTITY_MAP = ["0", "0", "4294967295"]


def asks_for_cards(container: Container) -> bool:
    """Whether an annotation or the environment asks for a card. Only then does the hook identify the container.

    An unknown `vgpu.io/` annotation counts: somebody asked by a name that does not exist.
    """
    annotations, env = container.annotations, container.env
    return (
        request.is_standalone(annotations)
        or bool(names.unknown(annotations))
        or any(key in annotations for key in grants.ANNOTATIONS.values())
        or any(env.get(key) for key in grants.ENVIRONMENT.values())
    )


def wanted(container: Container, identity: Identity) -> Request | WantedGrants | None:
    """The container's authorized request; None when nothing in its annotations and environment counts."""
    annotations = container.annotations
    annotated = {name: annotations[key] for name, key in grants.ANNOTATIONS.items() if key in annotations}
    if not identity.kubernetes:
        _refuse_misspelled(annotations)
        if request.is_standalone(annotations):
            return request.from_annotations(annotations)
        if annotated:
            raise VgpuError("grants", expected="a container of Kubernetes", found="a standalone one",
                            do=f"ask by {request.CORES} and {request.MEMORY}")  # fmt: skip
        return None
    if identity.sandbox:
        return None
    hints = {name: container.env[key] for name, key in grants.ENVIRONMENT.items() if container.env.get(key)}
    ids = {**hints, **annotated}
    if not ids:
        return None
    wishes = request.wishes_from(annotations)
    return WantedGrants(ids, request.core_limit_wish(annotations), wishes)


def _refuse_misspelled(annotations: dict[str, str]) -> None:
    """VgpuError for an annotation that vgpu does not read: the container would run without what its user meant."""
    for key in names.misspelled(annotations):
        near = names.nearest(key)
        do = f"did you mean {near}?" if near else "the names are " + ", ".join(names.NAMES)
        raise VgpuError(f"annotation {shown(key)}", expected="a name that vgpu reads", found="an unknown one", do=do)


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
        raise VgpuError(request.CORES, expected=expected, found="false", do="run it as a pod, or enable it")
