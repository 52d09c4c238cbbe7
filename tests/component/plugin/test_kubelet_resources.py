"""The device lists that a plugin sends to kubelet, for large and for random nodes."""

from __future__ import annotations

import random
import re

import pytest
from plugin_inputs import GIB, MIB, make_cards, make_settings

from vgpu.config.errors import VgpuError
from vgpu.node.service.kubelet_resources import MESSAGE_LIMIT, advertised
from vgpu.plugin.kubelet import server


def counts(settings, cards) -> dict[str, int]:
    return {resource.name: len(resource.devices) for resource in advertised(settings, cards)}


NVIDIA = {
    "resources__core_name": "nvidia.com/vcuda-core",
    "resources__memory_name": "nvidia.com/vcuda-memory",
    "resources__memory_unit": MIB,
}


def test_a_list_too_long_for_kubelet_is_refused_with_the_unit_that_fits() -> None:
    cards = make_cards(8, 141 * GIB, 0)
    with pytest.raises(VgpuError) as caught:
        advertised(make_settings(**NVIDIA), cards)
    line = str(caught.value)
    assert "nvidia.com/vcuda-memory: expected a list of devices within kubelet's 4 MiB, found 1155072 devices" in line
    advice = re.search(r"set resources.memory_unit: (\d+)Mi or more$", line)
    assert advice is not None
    unit = int(advice[1]) * MIB
    fitting = advertised(make_settings(**{**NVIDIA, "resources__memory_unit": unit}), cards)[1]
    assert len(server.response_of(fitting, {})) < MESSAGE_LIMIT
    with pytest.raises(VgpuError):
        advertised(make_settings(**{**NVIDIA, "resources__memory_unit": unit // 2}), cards)


def test_the_default_unit_is_right_for_large_nodes() -> None:
    assert counts(make_settings(), make_cards(16, 288 * GIB, 1))["tencent.com/vcuda-memory"] == 16 * 288 * 4


def test_size_of_random_nodes() -> None:
    chance = random.Random(7)
    for _ in range(20):
        cards = make_cards(chance.randint(1, 4), chance.randint(1, 3000) * MIB, chance.choice([-1, 0, 3]))
        for resource in advertised(make_settings(**NVIDIA), cards):
            reasons = {card.uuid: "x" for card in cards}
            assert resource.size() == len(server.response_of(resource, reasons))
