"""The amounts in a pod's spec that are not devices that kubelet counts."""

from __future__ import annotations

import pytest

from vgpu.config.dialects import resources
from vgpu.config.errors import VgpuError

MIB = 1 << 20


@pytest.mark.parametrize(
    ("limits", "cores", "memory", "percent"),
    [
        ({}, 0, 0, 0),
        ({"nvidia.com/gpu": 2}, 0, 0, 0),
        ({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30}, 30, 3000 * MIB, 0),
        ({"nvidia.com/gpumem-percentage": 50}, 0, 0, 50),
        ({"nvidia.com/gpumem": 3000, "nvidia.com/gpumem-percentage": 50}, 0, 3000 * MIB, 0),
        ({"nvidia.com/gpumem": 0, "nvidia.com/gpumem-percentage": 50, "nvidia.com/gpucores": 0}, 0, 0, 50),
        ({"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 1024, "volcano.sh/vgpu-cores": 50}, 50, 1024 * MIB, 0),
        ({"volcano.sh/vgpu-memory-percentage": 25}, 0, 0, 25),
        ({"nvidia.com/vgpu-number": 1, "nvidia.com/vgpu-cores": 20, "nvidia.com/vgpu-memory": 512}, 20, 512 * MIB, 0),
        ({"nvidia.com/gpucores": 20, "nvidia.com/vgpu-cores": 20}, 20, 0, 0),
    ],
)
def test_amounts(limits: dict[str, int], cores: int, memory: int, percent: int) -> None:
    found = resources.spec_amounts(limits)
    assert (found.cores, found.memory, found.percent) == (cores, memory, percent)


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"nvidia.com/gpucores": 101}, "nvidia.com/gpucores: expected at most 100, found 101"),
        ({"nvidia.com/gpumem-percentage": 200}, "nvidia.com/gpumem-percentage: expected at most 100"),
        ({"nvidia.com/gpumem": 1 << 40}, "nvidia.com/gpumem: expected at most"),
        ({"nvidia.com/gpumem": 1, "volcano.sh/vgpu-memory": 2}, "gpumem: 1 and volcano.sh/vgpu-memory: 2"),
    ],
)
def test_absurd_and_contradictory_limits(limits: dict[str, int], text: str) -> None:
    with pytest.raises(VgpuError, match=text):
        resources.spec_amounts(limits)
