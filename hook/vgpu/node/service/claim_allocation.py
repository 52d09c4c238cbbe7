"""From a ResourceClaim as the API server returns it to what is prepared of it.

Belongs here: the checks of a claim before it is prepared, as pure functions. The DRA driver asks them in Prepare, and
`vgpuctl explain` of a claim in a file. Not here: reading the claim from the API server, the record and the CDI file.
"""

from __future__ import annotations

from vgpu.config import paths
from vgpu.config.errors import VgpuError, shown
from vgpu.config.prepared import DRIVER, PreparedClaim, Result
from vgpu.node.service import claim_configuration
from vgpu.node.service.claim_configuration import Entry, Final
from vgpu.node.service.claim_devices import Device, Object
from vgpu.node.service.quantities import quantity

CAPACITY_GATE = "DRAConsumableCapacity"


def label(metadata: Object) -> str:
    """The claim's name in messages."""
    return f"claim {shown(str(metadata.get('namespace')))}/{shown(str(metadata.get('name')))}"


def prepared(claim: Object, uid: str, boot_id: str, pool: str, devices: dict[str, Device]) -> PreparedClaim:
    """The claim with the uid `uid`, whose allocation names `devices` of the node's `pool`.

    Final when it cannot be prepared as it is; another VgpuError when it may be prepared later.
    """
    metadata, status = inner(claim, "metadata"), inner(claim, "status")
    name = label(metadata)
    if metadata.get("uid") != uid:
        raise Final(name, expected=f"the uid {uid}", found=metadata.get("uid"), do="it was made anew: delete the pod")
    allocated = inner(inner(status, "allocation"), "devices")
    mine = [one for one in objects(allocated, "results") if one.get("driver") == DRIVER]
    pods = _pods(status)
    if not mine:
        raise VgpuError(name, expected=f"an allocation of {DRIVER}", found="none")
    if not pods:
        raise VgpuError(name, expected="a pod in status.reservedFor", found="none")
    config = claim_configuration.entries(name, objects(allocated, "config"))
    results = [_result(name, number, one, pool, devices, config) for number, one in enumerate(mine)]
    return PreparedClaim(uid, str(metadata.get("namespace")), str(metadata.get("name")), boot_id, pods, results)


def _result(
    name: str, number: int, result: Object, pool: str, devices: dict[str, Device], config: list[Entry]
) -> Result:
    what = f"{name}: {shown(str(result.get('request')))}"
    if result.get("adminAccess"):
        raise Final(what, expected="a share or a card", found="adminAccess, which this driver does not give")
    if result.get("pool") != pool:
        raise Final(what, expected=f"pool {pool}", found=result.get("pool"))
    device = devices.get(str(result.get("device")))
    if device is None:
        do = "the card is gone, or is not known yet: look at vgpuctl status"
        raise VgpuError(what, expected="a card of this node", found=result.get("device"), do=do)
    request = str(result.get("request"))
    core_limit, priority = claim_configuration.of_request(name, config, request)
    cores, memory = (device.cores, device.memory) if device.part else _consumed(what, result)
    if not 0 < cores <= device.cores or not 0 < memory <= device.memory:
        expected = f"1 to {device.cores} cores and at most {device.memory} bytes"
        raise Final(what, expected=expected, found=f"{cores} cores and {memory} bytes")
    return Result(
        number, request.partition("/")[0], pool, device.name, device.card.uuid, cores, memory,
        device.is_whole(cores, memory), str(result.get("shareID") or ""), core_limit, priority,
    )  # fmt: skip


def _consumed(what: str, result: Object) -> tuple[int, int]:
    consumed = inner(result, "consumedCapacity")
    return _amount(what, consumed, "cores"), _amount(what, consumed, "memory")


def _amount(what: str, consumed: Object, name: str) -> int:
    """The amount of a capacity. A scheduler with its gate off writes none, and hands the device out as a whole."""
    text = consumed.get(name, consumed.get(f"{DRIVER}/{name}"))
    if text is None:
        do = f"turn the feature gate {CAPACITY_GATE} on in API server and scheduler, and delete the claim"
        raise Final(what, expected=f"{name} in consumedCapacity", found="none", do=do)
    amount = quantity(text)
    if amount is None:
        raise Final(what, expected=f"{name} in consumedCapacity, a whole number", found=text)
    return amount


def reserved_for(claim: Object, uid: str) -> list[str]:
    """The uids of the pods for which the claim `uid` is reserved; none when another claim has its name now."""
    return _pods(inner(claim, "status")) if inner(claim, "metadata").get("uid") == uid else []


def _pods(status: Object) -> list[str]:
    """The uids of the pods for which the claim is reserved."""
    entries = objects(status, "reservedFor")
    uids = [str(one.get("uid")) for one in entries if one.get("resource") == "pods" and not one.get("apiGroup")]
    return [uid for uid in uids if paths.is_pod_uid(uid)]


def inner(value: Object, key: str) -> Object:
    found = value.get(key)
    return found if isinstance(found, dict) else {}


def objects(value: Object, key: str) -> list[Object]:
    found = value.get(key)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
