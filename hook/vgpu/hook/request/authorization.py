"""What a container may have asked for: wishes become a request only with somebody's authority behind them.

Belongs here: which annotations and environment count, and for whom. In Kubernetes tenants write both, so an amount
counts only as a grant; elsewhere the container's annotations are those of the host's root. Pure but for the check
that the hook itself runs as that root.
"""

from __future__ import annotations

import os

from vgpu.config import grants, request
from vgpu.config.errors import VgpuError
from vgpu.config.request import Request
from vgpu.config.settings import Settings
from vgpu.hook.request.identity import Identity
from vgpu.hook.request.oci_state import Container
from vgpu.hook.request.resolve_grants import WantedGrants

IDENTITY_MAP = ["0", "0", "4294967295"]


def asks_for_cards(container: Container) -> bool:
    """Whether anything about the container asks for a card: only then does it matter who it is."""
    annotations, env = container.annotations, container.env
    return (
        request.is_standalone(annotations)
        or any(key in annotations for key in grants.ANNOTATIONS.values())
        or any(env.get(key) for key in grants.ENVIRONMENT.values())
    )


def wanted(container: Container, identity: Identity) -> Request | WantedGrants | None:
    """What the container asks for with authority; None: nothing, whatever its annotations and environment wish."""
    annotations = container.annotations
    told = {name: annotations[key] for name, key in grants.ANNOTATIONS.items() if key in annotations}
    if not identity.kubernetes:
        if request.is_standalone(annotations):
            return request.from_annotations(annotations)
        if told:
            raise VgpuError("grants", expected="a container of Kubernetes", found="a standalone one",
                            do=f"ask by {request.CORES} and {request.MEMORY}")  # fmt: skip
        return None
    if identity.sandbox:
        return None
    hints = {name: container.env[key] for name, key in grants.ENVIRONMENT.items() if container.env.get(key)}
    ids = {**hints, **told}
    if not ids:
        return None
    wishes = request.wishes_from(annotations)
    return WantedGrants(ids, request.core_limit_wish(annotations), wishes)


def refuse_rootless(proc: str = "/proc") -> None:
    """VgpuError unless this process is the host's root: root of a user namespace is not."""
    with open(f"{proc}/self/uid_map", encoding="ascii") as stream:
        whole = stream.read().split() == IDENTITY_MAP
    if os.geteuid() != 0 or not whole:
        found = f"uid {os.geteuid()}" + ("" if whole else " of a user namespace")
        raise VgpuError("rootless runtime", expected="the host's root", found=found,
                        do="run the container by a runtime of the host's root")  # fmt: skip


def refuse_standalone(identity: Identity, settings: Settings) -> None:
    """VgpuError when the container is none of Kubernetes' and this node serves no others."""
    if not identity.kubernetes and not settings.flag("standalone.enabled"):
        expected = "standalone.enabled: true in the node's configuration"
        raise VgpuError(request.CORES, expected=expected, found="false", do="run it as a pod, or enable it")
