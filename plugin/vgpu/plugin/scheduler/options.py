"""How the extender is asked to decide: resource names, policy, labels.

Belongs here: the values that the command line and the configuration file choose. Not here: reading these
(vgpu.plugin.scheduler.command).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from vgpu.plugin.scheduler import demand, quota

ARRIVAL = 2.0  #: seconds to wait for the watch to show a pod that the scheduler has seen already


@dataclass
class Options:
    """`bind`: the scheduler calls the bind verb. `names` and `gpu` are the resources of cards."""

    bind: bool = False
    policy: str = "binpack"
    names: tuple[demand.Names, ...] = demand.DEFAULT_NAMES
    gpu: str = demand.GPU
    model_label: str = quota.MODEL_LABEL
    pool_label: str = quota.POOL_LABEL
    arrival: float = ARRIVAL
    clock: Callable[[], float] = field(default=time.monotonic)
