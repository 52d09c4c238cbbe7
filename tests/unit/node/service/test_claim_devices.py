"""The node's cards as devices, and the slices that list them."""

from __future__ import annotations

from cards import GIB, card, instance, uuid_of

from vgpu.hook.placement.placement import Policy
from vgpu.node.service import claim_devices as devices


def test_a_slice_has_what_the_documents_promise() -> None:
    known = {"numa": 0, "architecture": "Ampere", "cuda_version": "12.4"}
    cards = [card(at, memory=40 * GIB, **known) for at in range(2)]
    for one, other in (cards, cards[::-1]):
        one.links = {other.uuid: "NV4"}
    found = devices.of_cards(cards, Policy(), {cards[1].uuid: "XID 79"}, {cards[1].uuid}, "/nowhere")
    [made] = devices.slices(found, "node-1", "u1", "570.124.06", "NoExecute")
    amounts = {"cores": ("100", "1"), "memory": ("40Gi", "1Mi")}
    first = {
        "name": uuid_of(0).lower(), "allowMultipleAllocations": True,
        "attributes": {
            "uuid": {"string": uuid_of(0)}, "model": {"string": cards[0].name},
            "architecture": {"string": "Ampere"}, "driverVersion": {"version": "570.124.6"},
            "cudaDriverVersion": {"version": "12.4.0"}, "numaNode": {"int": 0},
            "nvlinkGroup": {"string": uuid_of(0).lower()},
        },
        "capacity": {
            name: {
                "value": all_, "requestPolicy": {"default": all_, "validRange": {"min": one, "max": all_, "step": one}},
            }
            for name, (all_, one) in amounts.items()
        },
    }  # fmt: skip
    assert made["spec"]["devices"][0] == first  # type: ignore[index]
    assert made["spec"]["devices"][1]["taints"] == [{"key": "gpu.vgpu.io/ill", "effect": "NoExecute"}]  # type: ignore[index]
    assert {key: made["spec"][key] for key in ("driver", "nodeName", "pool")} == {  # type: ignore[index]
        "driver": "gpu.vgpu.io", "nodeName": "node-1", "pool": {"name": "node-1", "resourceSliceCount": 1},
    }  # fmt: skip


def test_a_mig_instance_is_a_device_of_its_own() -> None:
    [found] = devices.of_cards([instance(9)], Policy(), {}, sys_root="/nowhere")
    made = devices.described(found, "", "")
    assert made["name"] == instance(9).uuid.lower()
    assert {key: made["attributes"][key] for key in ("profile", "parentUUID")} == {
        "profile": {"string": "1g.5gb"}, "parentUUID": {"string": uuid_of(0)},
    }  # fmt: skip


def test_only_a_card_that_is_out_of_order_itself_evicts() -> None:
    [found] = devices.of_cards([card(0)], Policy(), {uuid_of(0): "the driver is being upgraded"})
    assert devices.described(found, "", "NoExecute")["taints"] == [{"key": devices.TAINT, "effect": "NoSchedule"}]


def test_scaling_leaves_shares_less_of_a_card_and_never_more() -> None:
    made = [devices.of_cards([card(0, memory=10 * GIB)], Policy("binpack", by, by), {})[0] for by in (0.5, 1.0, 2.0)]
    assert [(one.cores, one.memory // GIB) for one in made] == [(50, 5), (100, 10), (100, 10)]
    assert [one.is_whole(one.cores, one.memory) for one in made] == [False, True, True]


def test_the_pcie_root_comes_from_sysfs(tmp_path) -> None:
    one = card(0)
    real = tmp_path / "devices/pci0000:16/0000:16:01.0/0000:17:00.0"
    real.mkdir(parents=True)
    link = tmp_path / "bus/pci/devices" / one.bus_id.lower()
    link.parent.mkdir(parents=True)
    link.symlink_to(real)
    [found] = devices.of_cards([one], Policy(), {}, sys_root=str(tmp_path))
    assert found.pcie_root == "pci0000:16"


def test_a_slice_has_64_devices_at_most() -> None:
    made = devices.slices(devices.of_cards([card(at) for at in range(65)], Policy(), {}), "n", "u", "1.2", "NoSchedule")
    assert [len(one["spec"]["devices"]) for one in made] == [64, 1]  # type: ignore[index]
    assert {one["spec"]["pool"]["resourceSliceCount"] for one in made} == {2}  # type: ignore[index]


def test_parts_of_a_card_are_no_more_than_its_shares() -> None:
    [device] = devices.of_cards([card(0, memory=10 * GIB)], Policy("binpack", 0.9, 0.5), {uuid_of(0): "XID 79"})
    parts = devices.parts_of(device)
    assert [(one.part, one.cores, one.memory >> 20) for one in parts if one.part.endswith("-0")] == [
        ("half-0", 45, 2560), ("quarter-0", 22, 1280), ("eighth-0", 11, 640),
    ]  # fmt: skip
    for kind, count in (("half", 2), ("quarter", 4), ("eighth", 8)):
        mine = [one for one in parts if one.kind == kind]
        assert len(mine) == len({one.name for one in mine}) == count
        assert sum(one.cores for one in mine) <= device.cores and sum(one.memory for one in mine) <= device.memory
    counted = [devices.described(one, "", "NoSchedule", counted=True) for one in (device, parts[0])]
    assert [one["consumesCounters"] for one in counted] == [
        [{"counterSet": device.name, "counters": {"eighths": {"value": eighths}}}] for eighths in ("8", "4")
    ]
    assert counted[1]["capacity"] == {"cores": {"value": "45"}, "memory": {"value": "2560Mi"}}
    assert counted[1]["taints"] == counted[0]["taints"]
    [tiny] = devices.of_cards([card(0)], Policy("binpack", 0.05), {})
    assert {one.kind for one in devices.parts_of(tiny)} == {"half", "quarter"}


def test_no_slice_with_parts_is_above_the_limits_of_kubernetes() -> None:
    made = devices.slices(devices.of_cards([card(at) for at in range(16)], Policy(), {}), "n", "u", "1.2", "x", True)
    sizes = [(len(one["spec"].get("devices", ())), len(one["spec"].get("sharedCounters", ()))) for one in made]  # type: ignore[attr-defined]
    assert sizes == [(64, 0), (64, 0), (64, 0), (48, 0), (0, 8), (0, 8)]
    assert {one["spec"]["pool"]["resourceSliceCount"] for one in made} == {6}  # type: ignore[index]
