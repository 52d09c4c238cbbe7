"""What a card and its driver do, measured without libvcuda: what the simulated driver assumes (docs/reality.md).

Belongs here: how programs are run beside each other to see it, and the figures that follow. A figure has an error: the
true value lies within it, as far as the way of measuring goes. `profile` makes of the figures what the simulated driver
loads. Does not belong here: what vgpu promises (rows.py), and what a driver takes beside what is asked (taken.py).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from vgpu.node.selftest.bench import LEAD, use
from vgpu.node.selftest.bounds import MIB, MS
from vgpu.node.selftest.program import Program

US = 1_000
STAMPED = 40 * US  #: kernels between whose ends a program sees a change of contexts
WATCHED = 120 * MS
WORK, LONG = 20 * US, 20 * MS
BUSY = "run flood kernel=500000 ahead=4"  #: always has work
COPY = 16 * MIB
STEPS = (100, 400, 2000, 10000)  #: us without work
ROUNDS = 30
CLOSE = 30  #: us between the bounds at which a search ends


class Figure(NamedTuple):
    """`name` is the profile's key after its section, or one without a section that is only for people."""

    name: str
    value: float
    error: float
    unit: str

    def agrees(self, other: Figure) -> bool:
        """Whether both can be the same true value."""
        return abs(self.value - other.value) <= self.error + other.error


@dataclass
class Lab:
    """Starts programs without limits. `greeting` is the card's part of what they say first."""

    start: Callable[[], Program]
    uuid: str

    def program(self) -> Program:
        return use(self.start(), self.uuid)

    def together(self, *loads: tuple[Program, str], window: int = WATCHED) -> list[dict[str, Any]]:
        """What each load answers that runs for `window` ns from one time on."""
        begin = max(int(program.ask("clock")["now"]) for program, _ in loads) + LEAD
        for program, load in loads:
            program.send(f"{load} begin={begin} end={begin + window}")
        return [program.receive(load) for program, load in loads]


def measure(start: Callable[[], Program], uuid: str) -> list[Figure]:
    """Everything about time. Two programs stay on the card for it; a third one would take part in every turn."""
    lab = Lab(start, uuid)
    one, other = lab.program(), lab.program()
    try:
        return list(_all(lab, one, other))
    finally:
        other.close()
        one.close()


def _all(lab: Lab, one: Program, other: Program) -> Iterator[Figure]:
    whole = _whole_kernels(lab, one, other)
    yield Figure("timing.whole_kernels", whole, 0, "")
    turn, switch, overlap = _turns(lab, one, other, STAMPED if whole else 0)
    idle = _idle(lab, one, other, switch)
    yield from (turn, switch, overlap, idle)
    yield _wake(lab, one, other, Turns(turn.value, switch.value, idle.value))
    yield Figure("timing.event_turn", _event_turn(lab, one, other, switch.value), 0, "")
    yield from _copies(lab, one, other)
    yield from _events(lab, one)


# ---- turns ----


class Spells(NamedTuple):
    """When a context ran, and how long it was stopped between; ns. `inner`: when it ran for certain."""

    lengths: list[float]
    stops: list[float]
    inner: list[tuple[float, float]]


def spells(answer: Mapping[str, Any]) -> Spells:
    """Of what `stamps` answers: intervals by the card's clock, or ends of kernels of STAMPED ns each."""
    stamps = answer["stamps"]
    if answer["by"] == "card":
        return Spells(
            [end - begin for begin, end in stamps[1:-1]],
            [later[0] - one[1] for one, later in zip(stamps, stamps[1:])],
            stamps,
        )
    stamps = stamps[1:]  # the first one has the launch in it
    stopped = [(begin, end, end - begin - STAMPED) for begin, end in stamps if end - begin > 1.5 * STAMPED]
    lengths = [later[1] - later[2] - one[1] for one, later in zip(stopped, stopped[1:])]
    inner = [(one[1], later[0]) for one, later in zip(stopped, stopped[1:])]
    return Spells(lengths, [stop for _, _, stop in stopped], inner)


def _mean(values: Sequence[float]) -> tuple[float, float]:
    """The mean of the middle eight tenths, and how far off it may be: four of its standard errors, and 1 us."""
    tenth = len(values) // 10
    middle = sorted(values)[tenth : len(values) - tenth]
    if len(middle) < 2:
        return (middle[0] if middle else 0.0), float("inf")
    return statistics.fmean(middle), 4 * statistics.stdev(middle) / len(middle) ** 0.5 + US


def _turns(lab: Lab, one: Program, other: Program, rest: int) -> tuple[Figure, Figure, Figure]:
    """Two contexts that always have work: the slice, the change, and whether they ever ran at once.

    `rest`: by how much a slice is longer than it has to be, in ns.
    """
    found = [spells(answer) for answer in lab.together(*((each, f"stamps kernel={STAMPED}") for each in (one, other)))]
    length, error = _mean([length for each in found for length in each.lengths])
    stop, stop_error = _mean([stop for each in found for stop in each.stops])
    both = sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in found[0].inner for b in found[1].inner)
    return (
        Figure("timing.slice_us", length / US, (error + rest) / US, "us"),
        Figure("timing.switch_us", max(0.0, (stop - length) / 2) / US, (error + stop_error) / 2 / US, "us"),
        Figure("overlap", both / WATCHED * 100, 1, "percent of the time"),
    )


def _whole_kernels(lab: Lab, one: Program, other: Program) -> int:
    """Whether a long kernel keeps others off the card until it ends."""
    _, short = lab.together((one, f"run flood kernel={LONG} ahead=2"), (other, BUSY))
    return int(short["spells"]["gap_max"] > LONG * 9 / 10)


def _late(lab: Lab, busy: Program, waker: Program, gap_us: float) -> float:
    """Nearly the most latency, in us, of WORK ns of work after `gap_us` without, beside one that always has work."""
    pauses = f"run pauses work={WORK} gap={round(gap_us * US)}"
    _, found = lab.together((busy, BUSY), (waker, pauses), window=ROUNDS * (round(gap_us * US) + MS))
    return float(found["latency"]["p99"]) / US


class Turns(NamedTuple):
    """What is known of turns; us."""

    slice: float
    switch: float
    idle: float


def _wake(lab: Lab, one: Program, other: Program, turns: Turns) -> Figure:
    """After how long without work a context ends another's slice at once; 0: it always waits for the slice's end.

    The other's slice begins when this context gives the card up. So a pause that ends shortly before a slice does shows
    nothing.
    """

    def clear(pause: float) -> float:
        return pause - max(0.0, pause % turns.slice - turns.slice * 3 / 4)

    def wakes(pause: float) -> bool:
        at_once = WORK / US + 2 * turns.switch
        return _late(lab, one, other, turns.idle + pause) < at_once + (turns.slice - pause % turns.slice) / 2

    low, high = 0.0, next((pause for pause in map(clear, STEPS) if wakes(pause)), 0.0)
    while low < (middle := clear((low + high) / 2)) and high - low > CLOSE:
        low, high = (low, middle) if wakes(middle) else (middle, high)
    return Figure("timing.wake_us", (low + high) / 2, (high - low) / 2 + CLOSE if high else 0, "us")


def _idle(lab: Lab, one: Program, other: Program, switch: Figure) -> Figure:
    """How long a context without work keeps the card: what it takes of another beyond its work and two changes."""
    pauses = f"run pauses work={5 * WORK} gap={4 * MS}"
    _, watched = lab.together((other, pauses), (one, f"stamps kernel={STAMPED}"))
    stop, error = _mean(spells(watched).stops)
    idle = (stop - 5 * WORK) / US - 2 * switch.value
    error = error / US + 2 * switch.error + 5  # a kernel's own beginning and end
    return Figure("timing.idle_us", idle if idle > error else 0, error, "us")


def _event_turn(lab: Lab, one: Program, other: Program, switch_us: float) -> int:
    """Whether an event in a stream without work waits for a turn, beside a context that always has work."""
    event = f"run pauses work=0 gap={2 * MS} wait=event"
    (alone,) = lab.together((other, event))
    _, beside = lab.together((one, BUSY), (other, event))
    return int(beside["latency"]["p50"] - alone["latency"]["p50"] > max(20, switch_us / 2) * US)


def _copies(lab: Lab, one: Program, other: Program) -> Iterator[Figure]:
    copies = f"run copies kernel=0 bytes={COPY}"
    (alone,) = lab.together((one, copies))
    both = lab.together((one, copies), (other, copies))
    beside, _ = lab.together((one, copies), (other, BUSY))
    slower = min(each["latency"]["p50"] for each in both) / alone["latency"]["p50"]
    yield Figure("timing.shared_copies", int(slower > 1.5), 0, "")
    part = beside["latency"]["p50"] / alone["latency"]["p50"]
    yield Figure("copy beside kernels", part, 0.1, "of the time alone")


def _events(lab: Lab, one: Program) -> Iterator[Figure]:
    """The card's clock, and what a program that is alone sees of a kernel by events."""
    (found,) = lab.together((one, f"stamps kernel={STAMPED}"))
    if found["by"] == "card":
        yield Figure("the card's clock", found["resolution"], 0, "ns")
    pair = one.ask(f"cost pair count={10 * ROUNDS}")
    yield Figure("a pair of events", pair["median"] / US, (pair["max"] - pair["min"]) / US, "us more than a kernel")


# ---- the profile ----


def profile(greeting: Mapping[str, Any], figures: Sequence[Figure]) -> dict[str, Any]:
    """A profile of such a card for `simctl.py state --profile FILE`. `greeting`: the card, as `hello` describes it."""
    found: dict[str, dict[str, Any]] = {"timing": {}, "memory": {}, "model": {}}
    for figure in figures:
        section, _, key = figure.name.partition(".")
        if key:
            whole = section != "timing" or not key.endswith("_us")
            found[section][key] = round(figure.value) if whole else round(figure.value, 3)
    model = {
        "name": greeting["name"],
        "compute_capability": ".".join(map(str, greeting["capability"])),
        **{key: greeting[key] for key in ("sm_count", "clock_mhz", "memory_clock_mhz", "bus_width", "l2_kib")},
        "pci_device_id": 0,
        "pci_subsystem_id": 0,
        **found["model"],
    }
    cards = [{"model": "measured", "bus": "0000:01:00.0"}]
    return {"models": {"measured": model}, "timing": found["timing"], "memory": found["memory"], "cards": cards}
