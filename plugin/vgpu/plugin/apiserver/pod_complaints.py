"""What a pod's annotations ask for in vain: a complaint for each, which becomes an event on the pod.

Belongs here: which annotations the hook refuses, which nothing reads, which core limits are not in force, and which
containers no hook was called for. Pure. Without a complaint the user would not know: the hook's log lies on the node,
and an ignored wish fails nothing.
vgpu.plugin.apiserver.agent writes the events. What the hook reads is defined in vgpu.config.request and
vgpu.config.dialects.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import NamedTuple

from vgpu.config import request
from vgpu.config.dialects import placements, resources
from vgpu.config.errors import VgpuError
from vgpu.config.pods import Pod
from vgpu.config.request import CORE_LIMITS, MIG_RESOURCE, WHOLE_CARD
from vgpu.config.settings import Settings
from vgpu.hook.request import ignored_annotations

PLACEMENT_REFUSED, ANNOTATION_REFUSED = "PlacementRefused", "AnnotationRefused"
ANNOTATION_IGNORED, CORE_LIMIT_IGNORED = "AnnotationIgnored", "CoreLimitIgnored"
CORE_LIMIT_NOT_IN_FORCE = "CoreLimitNotInForce"
HOOK_NOT_CALLED = "HookNotCalled"
#: Container -> (cores, core limit) of its share, as its claim has them.
InForce = dict[str, tuple[int, int]]


class Complaint(NamedTuple):
    """`reason` is the event's, in one word; `text` its message."""

    reason: str
    text: str


def complaints(pod: Pod, node: str, dialects: frozenset[str], settings: Settings, in_force: InForce) -> list[Complaint]:
    """All complaints about `pod`. `in_force`: of those of its containers that have their shares."""
    found = [*_refused(pod, node, dialects), *_ignored(pod.annotations), *_unread(pod, dialects)]
    key = next((key for key in CORE_LIMITS if key in pod.annotations), "")
    try:
        limit = request.core_limit_wish(pod.annotations)
    except VgpuError:
        return found  # among the refused ones
    return [*found, *_core_limits(pod, key, limit, settings, in_force)] if key else found


def without_hook(pod: Pod, running: Set[str], served: Set[str], settings: Settings) -> Iterator[Complaint]:
    """A complaint for each container that runs and has this node's resources, and that no hook has `served`.

    The runtime is not configured, or kubelet or runtime ignore CDI devices. Nothing else would say so. "" among the
    served ones: the runtime names no containers, so it may be any.
    """
    kinds = ("gpu",) if settings.text("resources.mode") == "gpu" else ("core", "memory")
    own = {settings.text(f"resources.{kind}_name") for kind in kinds}
    if settings.text("resources.mig_strategy") == "mixed":
        own.add(MIG_RESOURCE)
    for name in pod.names():
        asked = own.intersection(map(resources.family, pod.limits.get(name, {})))
        if name in running and asked and not served & {name, ""}:
            text = (
                f"container {name} runs without a card, because its runtime did not call vgpu's hook; run vgpuctl "
                "doctor on its node, and delete the pod when that is mended"
            )
            yield Complaint(HOOK_NOT_CALLED, text)


def _refused(pod: Pod, node: str, dialects: frozenset[str]) -> Iterator[Complaint]:
    """What fails a container's start, for kubectl describe."""
    try:
        for name in pod.names():
            placements.choices(pod, name, node, dialects)
    except VgpuError as error:
        yield Complaint(PLACEMENT_REFUSED, str(error))
    try:
        request.wishes_from(pod.annotations)
        request.core_limit_wish(pod.annotations)
    except VgpuError as error:
        yield Complaint(ANNOTATION_REFUSED, f"annotation {error}; containers with a share do not start")


def _ignored(annotations: dict[str, str]) -> Iterator[Complaint]:
    """Keys and values that nothing reads. The hook logs the same."""
    for text in ignored_annotations.in_pod(annotations):
        yield Complaint(ANNOTATION_IGNORED, text)


def _unread(pod: Pod, dialects: frozenset[str]) -> Iterator[Complaint]:
    """Placements of dialects that kubernetes.dialects does not name."""
    for name, reader in placements.READERS.items():
        if name in dialects:
            continue
        try:
            placement = reader(pod)
        except VgpuError:
            continue  # malformed, or of another dialect with the same keys
        if placement is not None:
            text = f"annotation {placement.key} is ignored: kubernetes.dialects does not name {name} on this node"
            yield Complaint(ANNOTATION_IGNORED, text)


def _core_limits(pod: Pod, key: str, limit: int, settings: Settings, in_force: InForce) -> Iterator[Complaint]:
    """The containers for which the core limit `limit`, from the annotation `key`, is not in force."""
    cores = {name: _cores(name, pod, settings, in_force) for name in pod.names()}
    if limit == WHOLE_CARD:
        cores = {name: amount for name, amount in cores.items() if amount < WHOLE_CARD}
    if cores and all(amount >= WHOLE_CARD for amount in cores.values() if amount) and any(cores.values()):
        yield Complaint(CORE_LIMIT_IGNORED, f"annotation {key} is ignored: whole cards have no core limit")
        return
    for name, amount in cores.items():
        if 0 < limit < amount < WHOLE_CARD:
            text = f"annotation {key}: {limit} is below the {amount} cores of container {name}, whose limit is {amount}"
            yield Complaint(CORE_LIMIT_IGNORED, text)
        has = in_force.get(name, (0, 0))
        if has[0] == has[1] < limit and has[0]:
            text = (
                f"annotation {key}: {limit} is not in force for container {name}, whose limit is {has[1]}: it was not "
                "known when the container started (the runtime did not pass it on, and the API server was away), or "
                "it was changed since. It counts when the container starts again"
            )
            yield Complaint(CORE_LIMIT_NOT_IN_FORCE, text)


def _cores(name: str, pod: Pod, settings: Settings, in_force: InForce) -> int:
    """The cores of a container on each card; 0 where it has none, or a scheduler's choice is yet to decide them."""
    if name in in_force:
        return in_force[name][0]
    amount = pod.limits.get(name, {}).get(settings.text("resources.core_name"), 0)
    return amount * int(settings.number("resources.core_unit"))
