"""The limits in a pod's spec for each vGPU, in the dialects where only the scheduler extender counts them.

Belongs here: the names of resources that are no devices of kubelet, and their reading, as pure functions. Not here: how
far such a limit counts as an amount (vgpu.hook.request.resolve_grants). The spec is admitted and immutable, so it is
worth more than an annotation.
"""

from __future__ import annotations

from vgpu.config.errors import VgpuError
from vgpu.config.request import MIG_RESOURCE

MEMORY = ("nvidia.com/gpumem", "volcano.sh/vgpu-memory", "nvidia.com/vgpu-memory")  #: MiB of each
PERCENT = ("nvidia.com/gpumem-percentage", "volcano.sh/vgpu-memory-percentage")  #: of a card's memory, of each
CORES = ("nvidia.com/gpucores", "volcano.sh/vgpu-cores", "nvidia.com/vgpu-cores")  #: percent of each
MAX_MIB = 1 << 30


class SpecAmounts:
    """The spec's amounts of each card, 0 where it has none: `cores` and `percent` of a card, `memory` bytes."""

    __slots__ = ("cores", "memory", "percent")

    def __init__(self, cores: int, memory: int, percent: int) -> None:
        self.cores = cores
        self.memory = memory
        self.percent = percent


def family(name: str) -> str:
    """The name of a resource, and MIG_RESOURCE for those of all MIG profiles."""
    return MIG_RESOURCE if name.startswith(MIG_RESOURCE) else name


def spec_amounts(limits: dict[str, int]) -> SpecAmounts:
    """The amounts in `limits`; VgpuError where two dialects disagree, or an amount is absurdly large.

    An amount of memory overrides a percentage, as in HAMi and Volcano.
    """
    memory = _one(limits, MEMORY, MAX_MIB)
    return SpecAmounts(_one(limits, CORES, 100), memory << 20, 0 if memory else _one(limits, PERCENT, 100))


def _one(limits: dict[str, int], names: tuple[str, ...], high: int) -> int:
    """The amount under any of `names`. 0 counts as no amount."""
    named = [name for name in names if limits.get(name)]
    if len({limits[name] for name in named}) > 1:
        found = " and ".join(f"{name}: {limits[name]}" for name in named)
        raise VgpuError("the pod's limits", expected=f"one of {', '.join(names)}", found=found)
    if named and limits[named[0]] > high:
        raise VgpuError(f"the pod's limit {named[0]}", expected=f"at most {high}", found=limits[named[0]])
    return limits[named[0]] if named else 0
