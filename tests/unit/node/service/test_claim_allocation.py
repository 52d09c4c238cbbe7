"""What is prepared of a ResourceClaim, and which claims are refused."""

from __future__ import annotations

from typing import Any

import pytest
from cards import GIB, card, uuid_of
from resource_api import ResourceApi

from vgpu.config import prepared as records
from vgpu.config.errors import VgpuError
from vgpu.hook.placement.placement import Policy
from vgpu.node.service import claim_allocation as allocation
from vgpu.node.service import claim_devices as devices
from vgpu.node.service.claim_configuration import Final

DEVICES = {one.name: one for one in devices.of_cards([card(0, memory=10 * GIB)], Policy(), {})}
NAME = next(iter(DEVICES))
UID = "6f1c3c52-1111-4c53-9d3a-6f0f8f0f1a11"


def result(**fields: Any) -> dict[str, Any]:
    plain = {"request": "gpu", "driver": "gpu.vgpu.io", "pool": "n", "device": NAME, "shareID": "s1",
             "consumedCapacity": {"cores": "30", "memory": "8Gi"}}  # fmt: skip
    return {**plain, **fields}


def prepared(*results: dict[str, Any], uid: str = UID, pods: tuple[str, ...] = ("pod-1",)) -> records.PreparedClaim:
    claim = ResourceApi().claim("c", UID, list(results), list(pods))
    return allocation.prepared(claim, uid, "boot", "n", DEVICES)


def test_the_results_of_this_driver_are_prepared_as_the_scheduler_consumed_them() -> None:
    whole = result(request="g/large", consumedCapacity={"cores": "100", "memory": "10Gi"}, shareID="s2")
    limited = result(consumedCapacity={"cores": "100", "memory": "1025Mi"})
    made = prepared(result(driver="another.example"), result(), whole, limited)
    assert [(one.number, one.request, one.card, one.cores, one.memory, one.whole) for one in made.results] == [
        (0, "gpu", uuid_of(0), 30, 8 * GIB, False), (1, "g", uuid_of(0), 100, 10 * GIB, True),
        (2, "gpu", uuid_of(0), 100, 1025 << 20, False),
    ]  # fmt: skip
    assert (made.pods, made.boot_id, made.label()) == (["pod-1"], "boot", "claim default/c")
    assert records.from_record(made.record(), "x").record() == made.record()


@pytest.mark.parametrize(("changed", "line"), [
    ({"consumedCapacity": None}, "expected cores in consumedCapacity, found none; turn the feature gate DRAConsumable"),
    ({"consumedCapacity": {"cores": "30"}}, "expected memory in consumedCapacity, found none"),
    ({"consumedCapacity": {"cores": "500m", "memory": "1Gi"}}, "expected cores in consumedCapacity, a whole number"),
    ({"consumedCapacity": {"cores": "30", "memory": "11Gi"}}, "found 30 cores and 11811160064 bytes"),
    ({"consumedCapacity": {"cores": "0", "memory": "1Gi"}}, "found 0 cores"),
    ({"pool": "another"}, "expected pool n, found another"),
    ({"adminAccess": True}, "found adminAccess"),
])  # fmt: skip
def test_a_result_that_cannot_be_given_is_refused_for_good(changed: dict[str, Any], line: str) -> None:
    with pytest.raises(Final, match=line):
        prepared(result(**changed))


def test_a_claim_that_was_made_anew_is_refused_for_good() -> None:
    with pytest.raises(Final, match=f"expected the uid other, found {UID}"):
        prepared(result(), uid="other")


def test_the_configuration_of_its_request_is_in_a_result() -> None:
    claim = ResourceApi().claim("c", UID, [result(), result(request="g/large")], ["pod-1"])
    parameters = {"apiVersion": "gpu.vgpu.io/v1", "kind": "ShareConfig", "core-limit": 50, "priority": 0}
    opaque = {"driver": "gpu.vgpu.io", "parameters": parameters}
    claim["status"]["allocation"]["devices"]["config"] = [{"source": "FromClaim", "requests": ["g"], "opaque": opaque}]
    made = allocation.prepared(claim, UID, "boot", "n", DEVICES)
    assert [(one.core_limit, one.priority) for one in made.results] == [(0, 1), (50, 0)]
    assert records.from_record(made.record(), "x").record() == made.record()
    older = made.record()
    for one in older["results"]:  # type: ignore[attr-defined]
        del one["core_limit"], one["priority"]
    assert [(one.core_limit, one.priority) for one in records.from_record(older, "x").results] == [(0, 1), (0, 1)]
    parameters["kind"] = "TimeSlicing"
    with pytest.raises(Final, match="claim default/c: config: kind: expected ShareConfig, found TimeSlicing"):
        allocation.prepared(claim, UID, "boot", "n", DEVICES)


@pytest.mark.parametrize(("results", "pods", "line"), [
    ([result(device="gpu-gone")], ("p",), "expected a card of this node, found gpu-gone"),
    ([], ("p",), "expected an allocation of gpu.vgpu.io, found none"),
    ([result()], (), "expected a pod in status.reservedFor, found none"),
])  # fmt: skip
def test_what_may_change_is_tried_again(results: list[dict[str, Any]], pods: tuple[str, ...], line: str) -> None:
    with pytest.raises(VgpuError, match=line) as caught:
        prepared(*results, pods=pods)
    assert not isinstance(caught.value, Final)


def test_garbage_is_refused_without_another_error() -> None:
    for claim in ({}, {"metadata": []}, {"metadata": {"uid": UID}, "status": {"allocation": {"devices": "x"}}}):
        with pytest.raises(VgpuError):
            allocation.prepared(claim, UID, "boot", "n", DEVICES)  # type: ignore[arg-type]
