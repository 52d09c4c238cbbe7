"""What is run to judge a limiter: tenants with their shares, the programs in them, and how long one looks.

Belongs here: descriptions, their JSON, and what an outcome says in shares. Running them is cores_worker.py's business.
Times are nanoseconds after the scenario's beginning.
"""

from __future__ import annotations

import dataclasses
from typing import Any

US, MS, SECOND = 1_000, 1_000_000, 1_000_000_000

Load = dict[str, "int | str"]  #: options of cores_load/load.c


@dataclasses.dataclass(frozen=True)
class Tenant:
    """One container: percent of each card, and its programs."""

    cores: int
    loads: list[Load]
    core_limit: int = 0  #: 0: as `cores`, a hard share

    @property
    def most(self) -> int:
        return max(self.cores, self.core_limit)


@dataclasses.dataclass(frozen=True)
class Scenario:
    """Tenants on the cards of a profile; `window` is when shares are taken."""

    tenants: list[Tenant]
    window: tuple[int, int]
    limiter: str = "libvcuda"  #: none, or a peer of cores_load/peers.c
    clock: str = "virtual"
    profile: str = "t4x1"
    timing: dict[str, float] = dataclasses.field(default_factory=dict)
    every: int = 0  #: further looks at the ledger, so far apart
    changes: list[tuple[int, int, int, int]] = dataclasses.field(default_factory=list)  #: when, tenant, cores, limit
    arbiter: bool = False
    seed: int = 1

    def json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @property
    def looks(self) -> list[int]:
        """When the ledger is read."""
        begin, end = self.window
        between = range(begin + self.every, end, self.every) if self.every else ()
        return [begin, *between, end]

    @property
    def processes(self) -> int:
        return sum(len(tenant.loads) for tenant in self.tenants)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What the ledger said: `busy[look][tenant]` ns of card time, `at[look]`; and what each program printed.

    `stolen`: how often the virtual clock had to take the turn from somebody; not 0: the figures are not repeatable.
    """

    at: list[int]
    busy: list[list[int]]
    loads: list[list[dict[str, Any]]]
    stolen: int
    origin: int  #: the scenario's beginning, by its clock

    def share(self, tenant: int, first: int = 0, last: int = -1) -> float:
        """The part of the card's time that the tenant had between two looks."""
        return (self.busy[last][tenant] - self.busy[first][tenant]) / (self.at[last] - self.at[first])

    @property
    def shares(self) -> list[float]:
        return [self.share(tenant) for tenant in range(len(self.busy[0]))]


def error_percent(share: float, target: float) -> float:
    """How far a delivered share (1: the whole card) is from its target in percent, in percent of the target."""
    return abs(share * 100 - target) / target * 100


def jain(values: list[float]) -> float:
    """Jain's index of fairness: 1 when all are equal."""
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))
