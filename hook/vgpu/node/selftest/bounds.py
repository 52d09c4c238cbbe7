"""The limits of the verdicts, computed from the sentences of docs/compute-limit.md and docs/memory-limit.md.

Belongs here: pure functions from a promise to the least and the most that may be measured. Each names its sentence in
SOURCES; a test compares these with the documents. Times are ns, shares are parts of a card's time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from vgpu.config import core_schedule

MS = 1_000_000
MIB = 1 << 20
SHORTEST_PERIOD, SHORTEST_QUOTA, ALONE = 20 * MS, 2 * MS, 100 * MS
PROCESS_SLICE = 10 * MS
RUN_AHEAD_ALONE, RUN_AHEAD_BESIDE = 10 * MS, 3 * MS  #: at most, work that is in flight when a slice ends
LIVE_CHANGE = 20 * MS
REQUEST_WAIT = 2 * MS

#: Row -> the sentence from which its limits come: (page, words that stand there).
SOURCES = {
    "share": ("compute-limit.md", "Over any window, use differs from the share by at most"),
    "full": ("compute-limit.md", "each container loses the same part of its share to the changes between containers"),
    "alone": ("compute-limit.md", "100 ms of its share for a container that is alone on all of its cards"),
    "soft": ("compute-limit.md", "goes on beyond its tokens, up to its core limit, while nobody else wants the card"),
    "neighbour": ("compute-limit.md", "Neither takes anything of another container's share"),
    "process": ("compute-limit.md", "10 ms of use while others wait"),
    "run-ahead": ("compute-limit.md", "run-ahead: most work in flight"),
    "container": ("compute-limit.md", "two containers that always have work run for a quota each in every period"),
    "set": ("compute-limit.md", "counts at the next launch, and within 20 ms for a launch that waits already"),
    "request": ("compute-limit.md", "A request waits for the kernel that a neighbour runs, and up to 2 ms more"),
    "processes": ("compute-limit.md", "All processes, threads and streams of the container share one account"),
    "memory": ("memory-limit.md", "The bound is 64 MiB or 1 percent of the limit, whichever is more"),
    "exact": ("memory-limit.md", "On a driver that takes just what it is asked for, both hold to the byte"),
    "totals": ("memory-limit.md", "show the limit as the total and the container's charges as used"),
    "killed": ("memory-limit.md", "A slot is dead when pid and start time say so"),
    "overhead": ("memory-limit.md", "The overhead of a process is NVML's figure for it less its other charges"),
    "memory set": ("memory-limit.md", "the next allocation counts by it"),
    "lag": ("memory-limit.md", "and nothing of it changes for 20 ms, no call is under way, and NVML is right"),
    "audit": (
        "compute-limit.md",
        "exceeds 1.25 times the lesser of what the container said and its core limit, and 10",
    ),
    "device": ("architecture.md", "bind mounts of the host's nodes, numbers checked"),
}


class Range(NamedTuple):
    """What may be measured: from `least` to `most`, both included."""

    least: float
    most: float

    def has(self, value: float) -> bool:
        return self.least <= value <= self.most

    def wider(self, by: float) -> Range:
        return Range(self.least - by, self.most + by)


def memory(limit: int) -> int:
    """By how much a container may exceed its limit, in bytes."""
    return max(64 * MIB, limit // 100)


def alone(cores: int, kernel: int, window: int, change: int = 0) -> Range:
    """A container that is alone on its cards: its share, and a burst of ALONE of it at most twice."""
    share = cores / 100
    error = (kernel + 2 * max(share * ALONE, SHORTEST_QUOTA)) / window
    return Range(share - error, share + error)


def beside(cores: Sequence[int], own: int, kernels: Sequence[int], window: int, change: int) -> Range:
    """Container number `own` beside the others with `cores` percent of one card, all of which always have work.

    `kernels` are the longest kernels of each, `change` is twice what a change of contexts takes.
    """
    change = max(change, core_schedule.CHANGE_NS)
    schedule = core_schedule.schedule("GPU-00000000-0000-0000-0000-000000000000", list(cores), change)[own]
    share, promised = cores[own] / 100, schedule.share / 1_000_000
    others = max(kernel for number, kernel in enumerate(kernels) if number != own)
    error = (kernels[own] + others + 2 * share * schedule.period) / window
    return Range(promised - error, share + error)


def container_wait(cores: Sequence[int], own: int, kernels: Sequence[int], change: int) -> int:
    """How long a container that always has work waits for the others' quotas in a period, for what is in flight then,
    and for a kernel of each."""
    period = core_schedule.period_of(list(cores), max(change, core_schedule.CHANGE_NS))
    others = sum(cores) - cores[own]
    return period * others // 100 + RUN_AHEAD_BESIDE + sum(kernels)


def process_slice(cores: int, kernel: int) -> int:
    """How long a process of a container that is alone works while another one waits: its slice, what is in flight
    then, half a quota, and a kernel."""
    return PROCESS_SLICE + min(SHORTEST_PERIOD * cores // 200, RUN_AHEAD_ALONE) + kernel


def request_wait(work: int, kernel: int) -> int:
    """The latency of a request of `work` ns beside a neighbour's kernels."""
    return work + kernel + REQUEST_WAIT
