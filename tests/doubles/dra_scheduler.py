"""Stand-in for Kubernetes' scheduler where claims are allocated: which devices a claim gets, and how much of each.

Belongs here: requests with their alternatives and counts, capacities and their rounding, counters, constraints, taints.
Of the selectors' language only the shipped DeviceClasses' is understood. Who owns and reserves claims: dra_control.py.
"""

from __future__ import annotations

import itertools
import math
import re
import uuid
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

Object = dict[str, Any]
Device = tuple[str, str, Object]  #: driver, pool, device of a slice

GATE, COUNTERS = "DRAConsumableCapacity", "DRAPartitionableDevices"
UNITS = {"": 1, "m": Decimal("0.001"), "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
UNITS |= {"Ti": 1 << 40, "T": 10**12}
_SELECTOR = re.compile(r"""\s*device\.driver\s*==\s*(["'])([^"']+)\1\s*""")
_WITH = re.compile(r"'(\w+)' in (device\.attributes\['([^']+)'\]) && \2\.\1 == '(\w+)'")
_WITHOUT = re.compile(r"!\('(\w+)' in device\.attributes\['([^']+)'\]\)")


class Refused(Exception):
    """The scheduler's message, where it ends the attempt for all nodes."""


def amount(quantity: str) -> Decimal:
    """What a quantity of Kubernetes means."""
    number, unit = re.fullmatch(r"([0-9.]+)([a-zA-Z]*)", quantity).groups()  # type: ignore[union-attr]
    return Decimal(number) * UNITS[unit]


def written(value: Decimal, like: str) -> str:
    """A quantity in the family of units of `like`."""
    if like.endswith("i"):
        unit = next((unit for unit in ("Ti", "Gi", "Mi", "Ki") if value % UNITS[unit] == 0), "")
        return f"{value // UNITS[unit]}{unit}"
    return str(int(value))


def consumed(capacity: Object, requested: str | None, rounding: bool = True) -> str | None:
    """What a request takes of a capacity by its policy. None: more than the policy allows."""
    policy = capacity.get("requestPolicy", {})
    if requested is None:
        return str(policy.get("default", capacity["value"]))
    wanted = amount(requested)
    if rounding and "validValues" in policy:
        return min((one for one in policy["validValues"] if amount(one) >= wanted), key=amount, default=None)
    if rounding and "validRange" in policy:
        limits = {name: amount(value) for name, value in policy["validRange"].items()}
        wanted = max(wanted, limits["min"])
        if "step" in limits:
            wanted = limits["min"] + math.ceil((wanted - limits["min"]) / limits["step"]) * limits["step"]
        if wanted > limits.get("max", wanted):
            return None
    return written(wanted, capacity["value"])


def tolerated(taint: Object, tolerations: Sequence[Object]) -> Object | None:
    """The toleration for a device's taint. One without an effect is none for NoExecute (recording 13)."""
    for one in tolerations:
        by_key = one.get("key", taint["key"]) == taint["key"]
        by_value = one.get("operator") == "Exists" or one.get("value", "") == taint.get("value", "")
        if by_key and by_value and one.get("effect", "NoSchedule") == taint["effect"]:
            return one
    return None


class Allocator:
    """Of the devices in `slices`, of which `allocations` are taken. `gates` are on."""

    def __init__(
        self,
        slices: Sequence[Object],
        classes: dict[str, Object],
        allocations: Sequence[Object],
        gates: frozenset[str] = frozenset({GATE, COUNTERS}),
        rounding: bool = True,
    ) -> None:
        self.classes, self.gates, self.rounding = classes, gates, rounding
        pools = [(one["spec"]["driver"], one["spec"]["pool"]["name"]) for one in slices]
        self.devices: list[Device] = [
            (*pool, device)
            for pool, one in zip(pools, slices)
            if pools.count(pool) >= one["spec"]["pool"].get("resourceSliceCount", 1)  # else some are still to come
            for device in one["spec"].get("devices", ())
        ]
        self.taken = [result for one in allocations for result in one["devices"].get("results", ())]
        self.counters = {
            (one["spec"]["driver"], one["spec"]["pool"]["name"], each["name"]): each["counters"]
            for one in slices
            for each in one["spec"].get("sharedCounters", ())
        }

    def allocate(self, claim: Object) -> Object | None:
        """The claim's allocation, or None if there is no room."""
        devices = claim["spec"]["devices"]
        requests = devices.get("requests", ())
        self._check_gate(claim, requests)
        for chosen in itertools.product(*(list(_alternatives(one)) for one in requests)):
            slots = [(label, request) for label, request in chosen for _ in range(self._count(request))]
            results = self._fill(slots, [], devices.get("constraints", ()))
            if results is not None and slots:
                return {"devices": {"results": results, **self._configuration(chosen, devices)}}
        return None

    def _check_gate(self, claim: Object, requests: Sequence[Object]) -> None:
        for request in requests:
            if GATE not in self.gates and any("capacity" in one for _, one in _alternatives(request)):
                name = f"{claim['metadata']['namespace']}/{claim['metadata']['name']}, request {request['name']}"
                raise Refused(f"claim {name}: has capacity requests, but the {GATE} feature is disabled")

    def _count(self, request: Object) -> int:
        if request.get("allocationMode") == "All":
            return sum(self._selected(request, one) for one in self.devices)
        return int(request.get("count", 1))

    def _fill(
        self, slots: Sequence[tuple[str, Object]], results: list[Object], constraints: Sequence[Object]
    ) -> list[Object] | None:
        """Devices for the slots after `results`, in the order of the slices, going back where one finds none."""
        if len(results) == len(slots):
            return results
        label, request = slots[len(results)]
        for driver, pool, device in self.devices:
            one = self._result(label, request, (driver, pool, device), results)
            if one is not None and self._hold(constraints, [*results, one]):
                found = self._fill(slots, [*results, one], constraints)
                if found is not None:
                    return found
        return None

    def _result(self, label: str, request: Object, at: Device, results: Sequence[Object]) -> Object | None:
        driver, pool, device = at
        here = {"driver": driver, "pool": pool, "device": device["name"]}
        same = [one for one in results if here.items() <= one.items()]
        if not self._selected(request, at) or any(one["request"] == label for one in same):
            return None
        for taint in device.get("taints", ()):
            by_effect = taint["effect"] in ("NoSchedule", "NoExecute")
            if by_effect and tolerated(taint, request.get("tolerations", ())) is None:
                return None
        same += [one for one in self.taken if here.items() <= one.items()]
        if not same and not self._counted(at, results):
            return None
        result = {"request": label, **here}
        if not device.get("allowMultipleAllocations"):
            return None if same else result
        amounts = self._amounts(request, device, same)
        return amounts and {**result, "shareID": str(uuid.uuid4()), "consumedCapacity": amounts}

    def _amounts(self, request: Object, device: Object, same: Sequence[Object]) -> Object | None:
        """What a share takes of each capacity, or None if that much is not left."""
        amounts = {}
        for name, capacity in device.get("capacity", {}).items():
            takes = consumed(capacity, request.get("capacity", {}).get("requests", {}).get(name), self.rounding)
            used = sum((amount(one.get("consumedCapacity", {}).get(name, "0")) for one in same), Decimal(0))
            if takes is None or used + amount(takes) > amount(capacity["value"]):
                return None
            amounts[name] = takes
        return amounts

    def _counted(self, at: Device, results: Sequence[Object]) -> bool:
        """Whether the counters have room for the device. One draws on them once, however many share it."""
        if at[2].get("consumesCounters") and COUNTERS not in self.gates:
            return False
        used = {(one["driver"], one["pool"], one["device"]) for one in [*self.taken, *results]}
        drawn = [at, *(one for one in self.devices if (*one[:2], one[2]["name"]) in used)]
        for needed in at[2].get("consumesCounters", ()):
            for name, total in self.counters[(*at[:2], needed["counterSet"])].items():
                found = [
                    amount(one["counters"][name]["value"])
                    for other in drawn
                    for one in other[2].get("consumesCounters", ())
                    if other[:2] == at[:2] and one["counterSet"] == needed["counterSet"] and name in one["counters"]
                ]
                if sum(found) > amount(total["value"]):
                    return False
        return True

    def _configuration(self, chosen: Sequence[tuple[str, Object]], devices: Object) -> Object:
        """That of the classes first, for the requests of each."""
        listed = [
            {"source": "FromClass", "requests": [label], **one}
            for label, request in chosen
            for one in self.classes[request["deviceClassName"]]["spec"].get("config", ())
        ]
        listed += [{"source": "FromClaim", **one} for one in devices.get("config", ())]
        return {"config": listed} if listed else {}

    def _selected(self, request: Object, at: Device) -> bool:
        """Whether the device is of the request's class. Its own selectors are read, too."""
        selectors = [*self.classes[request["deviceClassName"]]["spec"].get("selectors", ())]
        return all(_selects(one["cel"]["expression"], at) for one in [*selectors, *request.get("selectors", ())])

    def _hold(self, constraints: Sequence[Object], results: Sequence[Object]) -> bool:
        for one in constraints:
            names = one.get("requests")
            meant = [
                result
                for result in results
                if not names or {result["request"], result["request"].partition("/")[0]} & {*names}
            ]
            name = one.get("matchAttribute") or one["distinctAttribute"]
            values = [str(self._attribute(result, name)) for result in meant]
            if "None" in values or len(set(values)) != (
                min(1, len(values)) if "matchAttribute" in one else len(values)
            ):
                return False
        return True

    def _attribute(self, result: Object, name: str) -> Any:
        """An attribute's name without a domain is in the domain of its driver."""
        for driver, pool, device in self.devices:
            if (driver, pool, device["name"]) == (result["driver"], result["pool"], result["device"]):
                found = device.get("attributes", {})
                return found.get(name) or found.get(name.removeprefix(f"{driver}/"))
        return None


def _alternatives(request: Object) -> Iterator[tuple[str, Object]]:
    """(name in a result, request): one, or a list of which the first that fits is taken."""
    if "exactly" in request:
        yield request["name"], request["exactly"]
    for one in request.get("firstAvailable", ()):
        yield f"{request['name']}/{one['name']}", one


def _selects(expression: str, at: Device) -> bool:
    if found := _SELECTOR.fullmatch(expression):
        return found[2] == at[0]
    without, with_ = _WITHOUT.fullmatch(expression), _WITH.fullmatch(expression)
    if not without and not with_:
        raise ValueError(f"the stand-in reads no such selector: {expression}")
    name, domain = (without[1], without[2]) if without else (with_[1], with_[3])  # type: ignore[index]
    attributes = at[2].get("attributes", {})
    value = attributes.get(f"{domain}/{name}", attributes.get(name) if domain == at[0] else None)
    return value is None if without else value == {"string": with_[4]}  # type: ignore[index]
