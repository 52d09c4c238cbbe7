"""Scenarios for measuring a limiter: tenants with their shares, their programs, and the times of measurement.

This module has the descriptions, their JSON, and the shares computed from an outcome. Running a scenario is in
cores_worker.py. Times are nanoseconds after the scenario's beginning.
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
    core_limit: int = 0  #: 0: the same as `cores`, a hard share
    cpu_quota: int = 0  #: percent of one CPU for all its programs; 0: as much as there is
    cards: int = 0  #: so many cards of the profile, from `first_card` on; 0: all of them
    first_card: int = 0
    attack: str = ""  #: what it does besides: a command line of sh, with data/attacks/tenant.c and data/cuda/crowd.c


@dataclasses.dataclass(frozen=True)
class Scenario:
    """Tenants on the cards of a profile; shares are measured during `window`."""

    tenants: list[Tenant]
    window: tuple[int, int]
    limiter: str = "libvcuda"  #: none, ideal (cores_ideal.py), external, or a peer of cores_load/peers.c
    clock: str = "virtual"
    profile: str = "t4x1"
    timing: dict[str, float] = dataclasses.field(default_factory=dict)
    every: int = 0  #: interval of further readings of the ledger; 0: none
    changes: list[tuple[int, int, int, int]] = dataclasses.field(default_factory=list)  #: time, tenant, cores, limit
    lender: bool = False
    seed: int = 1
    environment: dict[str, str] = dataclasses.field(default_factory=dict)  #: of the programs; {cores}: a tenant's share

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Scenario:
        """A scenario of its JSON."""
        tenants = [Tenant(**tenant) for tenant in fields["tenants"]]
        changes = [tuple(change) for change in fields["changes"]]
        known = {field.name: fields[field.name] for field in dataclasses.fields(cls)}
        return cls(**{**known, "tenants": tenants, "changes": changes, "window": tuple(fields["window"])})

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
    """Readings of the ledger (`busy[look][tenant]` ns of card time, at the times `at[look]`), and the programs' output.

    `stolen`: how often the virtual clock passed over a running thread that slept elsewhere or was killed. If it is not
    0, the figures are not repeatable.
    """

    at: list[int]
    busy: list[list[int]]
    loads: list[list[dict[str, Any]]]
    stolen: int
    origin: int  #: the scenario's beginning on its clock
    changes: list[int] = dataclasses.field(default_factory=list)  #: what a change of contexts costs, as tenants say: ns

    def share(self, tenant: int, first: int = 0, last: int = -1) -> float:
        """The part of the card's time that the tenant used between two readings."""
        return (self.busy[last][tenant] - self.busy[first][tenant]) / (self.at[last] - self.at[first])

    @property
    def shares(self) -> list[float]:
        return [self.share(tenant) for tenant in range(len(self.busy[0]))]


def error_percent(share: float, target: float) -> float:
    """The error of a delivered share (1: the whole card) in percent of its target, which is in percent of the card."""
    return abs(share * 100 - target) / target * 100


def jain(values: list[float]) -> float:
    """Jain's index of fairness: 1 when all are equal."""
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))
