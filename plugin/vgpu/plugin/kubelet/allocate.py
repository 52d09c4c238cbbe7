"""From kubelet's ids to grants, and from a grant to what kubelet is told.

Belongs here: what an allocation is worth, the refusals, and the writing of grants. Refused is only what this node can
never serve, because kubelet fails the pod for good: what is merely full now is granted, and the hook fails the start
with the reason while kubelet tries again. Ids of a card that has become unhealthy or went away after kubelet chose them
are amounts like others: the hook places them elsewhere. Runs as root.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from vgpu.config import grants, paths, ranges
from vgpu.config.errors import VgpuError
from vgpu.config.grants import Grant
from vgpu.config.request import MAX_SIZE, WHOLE_CARD, split_cores
from vgpu.config.settings import Settings
from vgpu.node.service import kubelet_resources
from vgpu.node.service.kubelet_resources import Resource, Slot

TICK = 1e-6  #: seconds; two grants are never of the same moment


class Refused(VgpuError):
    """This node can never serve the request."""


def grant_for(resource: Resource, ids: list[str], settings: Settings, created: float) -> Grant:
    """The grant that `ids` are worth; Refused when the node can never serve it."""
    numbers = _numbers(resource, ids)
    devices = {slot.card.uuid: ranges.text(ranges.of(found)) for slot, found in numbers.items()}
    amount = len(ids) * resource.unit
    if resource.kind == "gpu":
        return _of_gpu(resource, amount, list(numbers), devices, settings, created)
    _CHECKS[resource.kind](resource, amount, settings)
    return Grant(grants.new_id(), resource.kind, amount, created, devices=devices)


def answer(grant: Grant) -> tuple[dict[str, str], dict[str, str]]:
    """(environment, annotations) of the container: the id under the resource's own key, as kubelet keeps the first."""
    return {grants.ENVIRONMENT[grant.resource]: grant.id}, {grants.ANNOTATIONS[grant.resource]: grant.id}


def _numbers(resource: Resource, ids: list[str]) -> dict[Slot, list[int]]:
    if not ids:
        raise Refused(resource.name, expected="device ids", found="an empty request")
    if len(set(ids)) != len(ids):
        found = next(one for one, other in zip(sorted(ids), sorted(ids)[1:]) if one == other)
        raise Refused(resource.name, expected="each device id once", found=f"{found} again")
    found_numbers: dict[str, list[int]] = {}
    for device_id in ids:
        place = resource.place_of(device_id)
        if place is None:
            do = "this node does not advertise it (any more); restart kubelet if it goes on asking for it"
            raise Refused(resource.name, expected="device ids of this node", found=device_id, do=do)
        found_numbers.setdefault(place[0].tag, []).append(place[1])
    return {resource.by_tag[tag]: numbers for tag, numbers in found_numbers.items()}


def _check_cores(resource: Resource, amount: int, settings: Settings) -> None:
    try:
        cards, each = split_cores(amount, 0, resource.name)
    except VgpuError as error:
        raise Refused(error.what, expected=error.expected, found=error.found, do=error.do) from None
    if cards > len(resource.slots):
        found = f"{cards} cards ({amount} cores)"
        raise Refused(resource.name, expected=f"at most the {len(resource.slots)} cards of this node", found=found)
    most = kubelet_resources.policy_of(settings).cores()
    if each < WHOLE_CARD and each > most:
        do = "scaling.cores keeps the rest of every card back"
        raise Refused(resource.name, expected=f"at most {most} cores for a share", found=each, do=do)


def _check_memory(resource: Resource, amount: int, settings: Settings) -> None:
    """Against all cards together: only the hook knows whether it is a share's, of one card, or several whole cards'."""
    policy = kubelet_resources.policy_of(settings)
    most = sum(min(policy.memory(slot.card), slot.card.memory) for slot in resource.slots)
    if amount > min(most, MAX_SIZE):
        do = "a share lies on one card; whole cards (100 cores and multiples) have all of theirs without asking"
        expected = f"at most {most >> 20} MiB, that of all cards"
        raise Refused(resource.name, expected=expected, found=f"{amount >> 20} MiB", do=do)


_CHECKS = {"cores": _check_cores, "memory": _check_memory}


def _of_gpu(
    resource: Resource, amount: int, slots: list[Slot], devices: dict[str, str], settings: Settings, created: float
) -> Grant:
    """Units of unlike cards bring what the smallest of them brings: a grant has one worth."""
    if amount > len(resource.slots):
        expected = f"at most {len(resource.slots)}, one of each card of this node"
        raise Refused(resource.name, expected=expected, found=amount)
    worths = [kubelet_resources.worth(settings, slot.card) for slot in slots]
    cores, memory = min(cores for cores, _ in worths), min(memory for _, memory in worths)
    return Grant(grants.new_id(), "gpu", amount, created, cores=cores, memory=memory, devices=devices)


class Allocator:
    """Writes grants for kubelet's calls, all of a call or none. Used by several threads."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        self.settings = settings
        self.clock = clock
        self._lock = threading.Lock()
        self._last = 0.0

    def allocate(self, resource: Resource, requests: list[list[str]]) -> list[Grant]:
        """One durable grant for each container; Refused (a VgpuError) or OSError, and nothing is granted then."""
        made = [grant_for(resource, ids, self.settings, self._now()) for ids in requests]
        try:
            for grant in made:
                grants.write(self.settings.state_dir, grant)
        except OSError:
            self._take_back(made)
            raise
        return made

    def _take_back(self, made: list[Grant]) -> None:
        for grant in made:
            path = paths.grant(self.settings.state_dir, grant.id)
            if os.path.exists(path):
                os.unlink(path)

    def _now(self) -> float:
        """Later than the last: of two grants with the same ids the later one counts, whatever the clock does."""
        with self._lock:
            self._last = max(self.clock(), self._last + TICK)
            return self._last
