"""What every limiter is given the same: the arrivals of an open loop's requests, and the calls of recorded programs.

The load generator (cores_load/requests.c, replay.c) and the reference scheduler (cores_programs.py) replay them. Times
are nanoseconds; those of arrivals count from the scenario's beginning.
"""

from __future__ import annotations

import csv
import dataclasses
import gzip
import random
from array import array
from collections.abc import Iterator
from functools import cache

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


#: The calls of recordings, by their letter in the file that the load generator reads.
CALLS = {
    "launch": "k", "graph": "g", "memset": "m", "event_query": "q", "stream_query": "Q", "event_sync": "e",
    "stream_sync": "s", "device_sync": "S", "wait_event": "w", "event_record": "r",
    "HtoD": "H", "DtoH": "D", "DtoD": "I", "HtoD-pageable": "h", "DtoH-pageable": "d",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Call:
    """A recorded call.

    `gap`: since the call before of the same thread had returned. `card`: how long the card works for it. `other`: the
    stream for which `stream` waits.
    """

    thread: int
    kind: str
    stream: int
    other: int
    gap: int
    card: int
    operations: int
    bytes: int


@cache
def recorded(path: str) -> list[Call]:
    """The calls of a recording, in the order in which they were made.

    A recording is a gzipped CSV file with the columns host_us, call_us, thread, call, stream, card_us, card_operations,
    bytes, way, after a line of text. It does not say which stream an event belongs to: here a wait for an event is of
    the thread's next stream, for the other stream that was used last; a synchronization is of the thread's last stream.
    """
    try:
        with gzip.open(path, "rt") as file:
            file.readline()
            rows = sorted(csv.DictReader(file), key=lambda row: float(row["host_us"]))
        return list(_calls(rows))
    except (OSError, KeyError, ValueError) as error:
        raise BenchError(f"{path}: {error}") from None


def _calls(rows: list[dict[str, str]]) -> Iterator[Call]:
    following: dict[str, str] = {}  # stream, by thread
    for row in reversed(rows):
        row["next"] = following.get(row["thread"], "0")
        following[row["thread"]] = row["stream"] or row["next"]
    ends: dict[str, float] = {}
    streams: dict[str, str] = {}
    used = ["0"]
    for row in rows:
        begin, thread = float(row["host_us"]), row["thread"]
        waits = row["call"] == "wait_event"
        stream = row["stream"] or (row["next"] if waits else streams.get(thread, row["next"]))
        streams[thread] = stream
        others = [other for other in used if other != stream]
        yield Call(
            int(thread), CALLS[row["way"] if row["call"] == "copy" else row["call"]], int(stream),
            int(others[-1] if others else stream), max(round((begin - ends.get(thread, begin)) * 1000), 0),
            round(float(row["card_us"] or 0) * 1000), int(row["card_operations"] or 1), int(row["bytes"] or 0),
        )  # fmt: skip
        ends[thread] = begin + float(row["call_us"])
        if row["stream"]:
            used = [*(other for other in used if other != stream), stream]


def written(calls: list[Call]) -> str:
    """The calls as the load generator reads them (cores_load/replay.c)."""
    fields = (
        (call.thread, call.kind, call.stream, call.other, call.gap, call.card, call.operations, call.bytes)
        for call in calls
    )
    return "".join(" ".join(map(str, line)) + "\n" for line in fields)
