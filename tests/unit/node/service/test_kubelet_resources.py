"""Advertised resources: counts, permanent ids, and the limit of kubelet's message."""

from __future__ import annotations

import pytest
from cards import instance
from plugin_inputs import GIB, MIB, make_cards, make_settings

from vgpu.config.errors import VgpuError
from vgpu.node.service import kubelet_resources
from vgpu.node.service.kubelet_resources import advertised, tag_of, worth
from vgpu.plugin.kubelet import server
from vgpu.plugin.kubelet.allocate import Refused, grant_for


def counts(settings, cards) -> dict[str, int]:
    return {resource.name: len(resource.devices) for resource in advertised(settings, cards)}


T4 = 15360 * MIB
NVIDIA = {
    "resources__core_name": "nvidia.com/vcuda-core",
    "resources__memory_name": "nvidia.com/vcuda-memory",
    "resources__memory_unit": MIB,
}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, {"tencent.com/vcuda-core": 200, "tencent.com/vcuda-memory": 120}),
        (NVIDIA, {"nvidia.com/vcuda-core": 200, "nvidia.com/vcuda-memory": 30720}),
        ({"scaling__cores": 1.15}, {"tencent.com/vcuda-core": 230, "tencent.com/vcuda-memory": 120}),
        ({"scaling__memory": 1.5}, {"tencent.com/vcuda-core": 200, "tencent.com/vcuda-memory": 180}),
        ({"resources__core_unit": 5}, {"tencent.com/vcuda-core": 40, "tencent.com/vcuda-memory": 120}),
        ({"resources__memory_unit": 7 * GIB}, {"tencent.com/vcuda-core": 200, "tencent.com/vcuda-memory": 4}),
        ({"resources__mode": "gpu"}, {"nvidia.com/gpu": 4}),
        ({"resources__mode": "gpu", "resources__split_count": 1}, {"nvidia.com/gpu": 2}),
        ({"resources__mode": "gpu", "resources__gpu_name": "x.io/vgpu"}, {"x.io/vgpu": 4}),
    ],
)
def test_counts(values, expected) -> None:
    assert counts(make_settings(**values), make_cards(2)) == expected


def test_instances_by_the_mixed_strategy_are_counted_once() -> None:
    settings, cards = make_settings(resources__mig_strategy="mixed"), make_cards(1)
    cards += [instance(1), instance(2), instance(3, name="T4 MIG 1g.5gb+me")]
    sizes = {"tencent.com/vcuda-core": 100, "tencent.com/vcuda-memory": 60}
    profiles = {"nvidia.com/mig-1g.5gb": 2, "nvidia.com/mig-1g.5gb.me": 1}
    assert counts(settings, cards) == {**sizes, **profiles}
    stems = [resource.stem for resource in advertised(settings, cards)]
    assert stems == ["cores", "memory", "mig-1g_5gb", "mig-1g_5gb_me"], "none begins with another and a dot"
    with pytest.raises(Refused, match=r"1g\.5gb: expected 1: a program uses one MIG instance alone, found 2"):
        grant_for(advertised(settings, cards)[2], [f"{tag_of(card.uuid)}-0" for card in cards[1:3]], settings, 1.0)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"split_count": 1}, (100, 0)),
        ({"split_count": 2}, (50, T4 // 2)),
        ({"split_count": 3}, (33, T4 // 3)),
        ({"split_count": 7}, (14, T4 // 7 // MIB * MIB)),
        ({"split_count": 10, "memory": 2.0}, (10, T4 // 5)),
        ({"split_count": 10, "cores": 5.0}, (50, T4 // 10)),
        ({"split_count": 2, "cores": 2.0}, (99, T4 // 2)),  # 100 would be the whole card, without a limit
        ({"split_count": 2, "cores": 100.0}, (99, T4 // 2)),
        ({"split_count": 2, "memory": 9.0}, (50, T4)),  # the compiler refuses it; never more than the card has
        ({"split_count": 1, "memory": 9.0, "cores": 9.0}, (100, 0)),
    ],
)
def test_worth_of_a_unit(values, expected) -> None:
    named = {("resources__" if name == "split_count" else "scaling__") + name: value for name, value in values.items()}
    assert worth(make_settings(resources__mode="gpu", **named), make_cards()[0]) == expected


def ids_by_card(cards, **values) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for device in advertised(make_settings(**values), cards)[0].devices:
        found.setdefault(device.card, []).append(device.id)
    return found


def test_ids_depend_on_the_card_alone() -> None:
    """They do not depend on the order of cards, their indexes, or other cards."""
    before = ids_by_card(make_cards(4))
    reordered = make_cards(4)
    for card in reordered:
        card.index = 3 - card.index
    assert ids_by_card(list(reversed(reordered))) == before
    assert ids_by_card(make_cards(2)) == {uuid: before[uuid] for uuid in ("GPU-00", "GPU-01")}
    assert before["GPU-00"][:2] == [
        "ae5578c0-0",
        "ae5578c0-1",
    ]  # kubelet's checkpoints contain them, so they must never change
    assert len({one for ids in before.values() for one in ids}) == 400


def test_ids_of_both_resources_name_the_same_card_alike() -> None:
    cores, memory = advertised(make_settings(), make_cards(3))
    assert [slot.tag for slot in cores.slots] == [slot.tag for slot in memory.slots]


def test_two_cards_of_one_checksum_are_distinguished(monkeypatch) -> None:
    monkeypatch.setattr(kubelet_resources.zlib, "crc32", lambda data: (1 << 32) - 1)
    [cores, _] = advertised(make_settings(), make_cards(3))
    assert [slot.tag for slot in cores.slots] == ["ffffffff", "00000000", "00000001"]


@pytest.mark.parametrize("bad", ["", "-", "ae5578c0", "ae5578c0-", "ae5578c0-100", "ae5578c0-00", "ae5578c0-1-1",
                                 "ae5578c0--1", "AE5578C0-1", "deadbeef-1", "ae5578c0-\u0661", "ae5578c0-" + "9" * 99,
                                 "GPU-00"])  # fmt: skip
def test_what_was_never_advertised_has_no_place(bad: str) -> None:
    [cores, _] = advertised(make_settings(), make_cards())
    assert cores.place_of("ae5578c0-99") == (cores.slots[0], 99)
    assert cores.place_of(bad) is None


@pytest.mark.parametrize("numa", [-1, 0, 1, 7, 200])
@pytest.mark.parametrize("memory", [256 * MIB, 10 * 256 * MIB, 100 * 256 * MIB, 1001 * 256 * MIB])
def test_size_is_that_of_the_message(numa: int, memory: int) -> None:
    for resource in advertised(make_settings(), make_cards(3, memory, numa)):
        response = server.response_of(resource, dict.fromkeys(("GPU-00", "GPU-01", "GPU-02"), "lost"))
        assert resource.size() == len(response)
        assert len(server.response_of(resource, {})) < resource.size()


@pytest.mark.parametrize(
    ("values", "count", "advice"),
    [
        ({"scaling__cores": 100.0}, 32, "set resources.core_unit: 4 or more"),
        ({"resources__mode": "gpu", "resources__split_count": 1000, "scaling__cores": 10.0}, 1000, "split_count lower"),
        ({"scaling__memory": 100.0, "resources__memory_unit": 1 << 49}, 1, "to a smaller unit"),
        ({"scaling__cores": 0.1, "resources__core_unit": 20}, 1, "set resources.core_unit to a smaller unit"),
    ],
)
def test_other_lists_that_cannot_be(values, count: int, advice: str) -> None:
    with pytest.raises(VgpuError) as caught:
        advertised(make_settings(**values), make_cards(count))
    assert advice in str(caught.value)


def test_refusing_does_not_build_the_list() -> None:
    """Each of these would be 100 million ids."""
    for _ in range(20):
        with pytest.raises(VgpuError):
            advertised(make_settings(**{**NVIDIA, "scaling__memory": 100.0}), make_cards(8, 141 * GIB))
