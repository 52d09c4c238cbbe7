"""When the requests of an open loop arrive: the same times for every limiter.

This module only makes the times. The load generator (cores_load/requests.c) and the reference scheduler
(cores_ideal.py) replay them. Times are nanoseconds after the scenario's beginning.
"""

from __future__ import annotations

import random
from array import array

from results import BenchError


def arrivals(spec: str, seed: int, end: int) -> array[int]:
    """The intended times before `end`, in ascending order.

    fixed:INTERVAL            evenly spaced, the first at a random time within the first interval
    poisson:INTERVAL          independent of each other, so many ns apart in the mean
    bursts:INTERVAL:COUNT     COUNT at a time; the bursts are independent of each other, INTERVAL ns for each request
    """
    shape, *numbers = spec.split(":")
    try:
        interval, count = int(numbers[0]), int(numbers[1]) if shape == "bursts" else 1
        if interval < 1 or count < 1 or shape not in ("fixed", "poisson", "bursts"):
            raise ValueError(spec)
    except (IndexError, ValueError):
        raise BenchError(f"{spec}: no arrivals of that form") from None
    source = random.Random(seed)
    times = array("Q")
    time = source.random() * interval if shape == "fixed" else source.expovariate(1 / (interval * count))
    while time < end:
        times.extend([int(time)] * count)
        time += interval if shape == "fixed" else source.expovariate(1 / (interval * count))
    return times


def percentile(values: list[int], percent: float) -> int:
    """The smallest of the values that at least so many percent of them do not exceed."""
    if not values:
        raise BenchError("no requests to take a percentile of")
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(int(rank), 1) - 1]
