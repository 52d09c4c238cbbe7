"""The limiters that the suite compares: each is a column of its table.

`none`, `ideal` (cores_ideal.py), `libvcuda`, and the models of other projects' limiters (cores_load/peers.c). A further
column, `external`, is any library that limits through its environment: VGPU_BENCH_EXTERNAL has the variables of the
programs, in which {cores} stands for a tenant's share. VGPU_BENCH_EXTERNAL_CLOCK=wall is for a library that sleeps
without the simulator's clock.
"""

from __future__ import annotations

import dataclasses
import os
import shlex

from cores_scenario import Scenario
from results import BenchError

NAMES = ("none", "ideal", "libvcuda", "tokens", "aimd")
EXTERNAL = "external"


@dataclasses.dataclass(frozen=True)
class Column:
    name: str
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    clock: str = "virtual"

    def of(self, scenario: Scenario) -> Scenario:
        """The scenario under this limiter."""
        is_lent = self.name == "libvcuda" and any(tenant.core_limit for tenant in scenario.tenants)
        return dataclasses.replace(
            scenario, limiter=self.name, environment=self.environment, clock=self.clock, lender=is_lent
        )


def columns() -> list[Column]:
    """Those of VGPU_BENCH_LIMITERS (all unless set), and the external one if it is described."""
    names = os.environ.get("VGPU_BENCH_LIMITERS", " ".join(NAMES)).split()
    if unknown := set(names) - set(NAMES):
        raise BenchError(f"VGPU_BENCH_LIMITERS: {' '.join(sorted(unknown))} is none of {' '.join(NAMES)}")
    found = [Column(name) for name in names]
    external = os.environ.get("VGPU_BENCH_EXTERNAL")
    if external:
        pairs = [word.partition("=") for word in shlex.split(external)]
        clock = os.environ.get("VGPU_BENCH_EXTERNAL_CLOCK", "virtual")
        found.append(Column(EXTERNAL, {name: value for name, _, value in pairs}, clock))
    return found
