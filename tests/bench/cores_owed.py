"""What tenants were owed in the course of a scenario whose programs always have work.

A tenant is *owed* card time while it has used less than its share of the time since it began. This module reads that
from an outcome's readings; it is independent of what a limiter counts as tokens. Times are nanoseconds.
"""

from __future__ import annotations

from collections.abc import Sequence

from cores_scenario import Outcome


def is_owed(outcome: Outcome, look: int, tenant: int, cores: int, begun: int) -> bool:
    """Whether the tenant has used less than its share since it began, at this reading."""
    return outcome.at[look] >= begun and outcome.busy[look][tenant] * 100 <= cores * (outcome.at[look] - begun)


def idle_ns(outcome: Outcome, cores: Sequence[int], begun: Sequence[int]) -> int:
    """How long the card did nothing, in those intervals between readings at whose both ends some tenant was owed."""
    idle = 0
    for look in range(len(outcome.at) - 1):
        owed = [
            all(is_owed(outcome, end, tenant, cores[tenant], begun[tenant]) for end in (look, look + 1))
            for tenant in range(len(cores))
        ]
        if any(owed):
            used = sum(outcome.busy[look + 1]) - sum(outcome.busy[look])
            idle += outcome.at[look + 1] - outcome.at[look] - used
    return idle


def longest_wait_ns(outcome: Outcome, tenant: int, cores: int, begun: int) -> int:
    """The longest time in which the tenant was owed and got nothing, to the interval between readings."""
    longest = waited = 0
    for look in range(len(outcome.at) - 1):
        nothing = outcome.busy[look + 1][tenant] == outcome.busy[look][tenant]
        if nothing and is_owed(outcome, look, tenant, cores, begun):
            waited += outcome.at[look + 1] - outcome.at[look]
        else:
            waited = 0
        longest = max(longest, waited)
    return longest
