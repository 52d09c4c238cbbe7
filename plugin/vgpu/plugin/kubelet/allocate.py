"""Allocate: turns kubelet's device ids into grants, and a grant into the answer to kubelet.

Belongs here: the amount that an allocation grants, the refusals, and the writing of grants. The plugin refuses only
what this node can never serve, because kubelet then fails the pod for good. It grants what is merely full now: the hook
fails the start with the reason, and kubelet tries again. Ids of a card that has become unhealthy or disappeared after
kubelet chose them are amounts like others: the hook places them on another card. Runs as root.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from vgpu.config import cdi_device, grants, paths, ranges
from vgpu.config.errors import VgpuError
from vgpu.config.grants import Grant
from vgpu.config.request import MAX_SIZE, WHOLE_CARD, split_cores
from vgpu.config.settings import Settings
from vgpu.node.service import kubelet_resources
from vgpu.node.service.kubelet_resources import Resource, Slot

#: Seconds between the allocations of a container's cores and memory, which kubelet makes one after the other.
PAIR = 2.0
TICK = 1e-6  #: seconds between the times of two grants, which therefore always differ


class Refused(VgpuError):
    """This node can never serve the request."""


def grant_for(resource: Resource, ids: list[str], settings: Settings, created: float) -> Grant:
    """The grant for `ids`; Refused when the node can never serve it."""
    numbers = _numbers(resource, ids)
    devices = {slot.card.uuid: ranges.text(ranges.of(found)) for slot, found in numbers.items()}
    amount = len(ids) * resource.unit
    if resource.kind == "gpu":
        return _of_gpu(resource, amount, list(numbers), devices, settings, created)
    _CHECKS[resource.kind](resource, amount, settings)
    return Grant(grants.new_id(), resource.kind, amount, created, devices=devices)


class Answer(NamedTuple):
    """What kubelet adds to the container: environment, annotations, and the names of CDI devices."""

    environment: dict[str, str]
    annotations: dict[str, str]
    cdi_devices: tuple[str, ...] = ()


def answer(grant: Grant, settings: Settings) -> Answer:
    """Each resource has its own key, because kubelet keeps the first value. All name the same CDI device.

    A kubelet before 1.28 ignores CDI devices without a message, and one of 1.28 does so by default. Both pass the
    annotation on, which the runtime takes for the same request; a device that both name is added once.
    """
    found = Answer({grants.ENVIRONMENT[grant.resource]: grant.id}, {grants.ANNOTATIONS[grant.resource]: grant.id})
    if not settings.flag("plugin.cdi"):
        return found
    return Answer(
        found.environment, {**found.annotations, cdi_device.ANNOTATION: cdi_device.DEVICE}, (cdi_device.DEVICE,)
    )


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
            do = "this node does not advertise it (any more); restart kubelet if it keeps requesting it"
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
    """Checks against all cards together: only the hook can tell whether a share of one card or whole cards need it."""
    policy = kubelet_resources.policy_of(settings)
    most = sum(min(policy.memory(slot.card), slot.card.memory) for slot in resource.slots)
    if amount > min(most, MAX_SIZE):
        do = (
            "a share lies on one card; whole cards (100 cores and multiples) have all of their memory without a request"
        )
        expected = f"at most {most >> 20} MiB, that of all cards"
        raise Refused(resource.name, expected=expected, found=f"{amount >> 20} MiB", do=do)


def _check_instance(resource: Resource, amount: int, settings: Settings) -> None:
    if amount > 1:
        raise Refused(resource.name, expected="1: a program uses one MIG instance alone", found=amount)


_CHECKS = {"cores": _check_cores, "memory": _check_memory, "mig": _check_instance}


def _of_gpu(
    resource: Resource, amount: int, slots: list[Slot], devices: dict[str, str], settings: Settings, created: float
) -> Grant:
    """Units of different cards are worth as much as the smallest of them, because a grant has one amount per unit."""
    if amount > len(resource.slots):
        expected = f"at most {len(resource.slots)}, one of each card of this node"
        raise Refused(resource.name, expected=expected, found=amount)
    worths = [kubelet_resources.worth(settings, slot.card) for slot in slots]
    cores, memory = min(cores for cores, _ in worths), min(memory for _, memory in worths)
    return Grant(grants.new_id(), "gpu", amount, created, cores=cores, memory=memory, devices=devices)


class Allocator:
    """Writes all grants of one call of kubelet, or none. Several threads may use it.

    kubelet allocates for one container after the other, and for its resources one after the other. So a share's cores
    and memory are two successive calls, in either order.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        self.settings = settings
        self.clock = clock
        self._lock = threading.Lock()
        self._last = max((grant.created for grant in grants.read_all(settings.state_dir)[0]), default=0.0)
        self._half: Grant | None = None  # the last grant of a share, until that of its other half

    def allocate(self, resource: Resource, requests: list[list[str]]) -> list[Grant]:
        """One durable grant for each container. After Refused (a VgpuError) or OSError no grant is left."""
        new = [grant_for(resource, ids, self.settings, self._now()) for ids in requests]
        try:
            for grant in new:
                grants.write(self.settings.state_dir, grant)
        except OSError:
            self._take_back(new)
            raise
        self._pair(new)
        return new

    def card_of_other_half(self, kind: str) -> str:
        """The uuid of the card whose ids the other half of a share just got, most likely; "" for none.

        `kind` is the resource that kubelet is about to allocate. If the guess is wrong, the hook does not mind.
        """
        with self._lock:
            half = self._half
            if half is None or half.resource == kind or abs(self.clock() - half.created) > PAIR:
                return ""
            return next(iter(half.devices))

    def _pair(self, new: list[Grant]) -> None:
        with self._lock:
            half, self._half = self._half, None
            last = new[-1] if new else None
            if last is None or len(last.devices) != 1 or last.resource not in ("cores", "memory"):
                return
            is_second = half is not None and half.resource != last.resource and last.created - half.created < PAIR
            if not is_second and not (last.resource == "cores" and last.amount >= WHOLE_CARD):
                self._half = last

    def _take_back(self, new: list[Grant]) -> None:
        for grant in new:
            path = paths.grant(self.settings.state_dir, grant.id)
            if os.path.exists(path):
                os.unlink(path)

    def _now(self) -> float:
        """A time after the last grant's, whatever the clock does and the earlier plugin's did.

        Of two grants with the same ids the later counts.
        """
        with self._lock:
            self._last = max(self.clock(), self._last + TICK)
            return self._last
