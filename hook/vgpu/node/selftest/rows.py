"""The rows of the report: a function for each promise, which measures it and compares.

Belongs here: what is run, and the words of a row. Does not belong here: the limits of a verdict (bounds.py). A function
yields one row or several. Words are fixed and figures are numbers, so that nothing of the node gets into a report.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from vgpu.node.selftest import bounds, card, taken
from vgpu.node.selftest.bench import SECOND, Bench, lost_by, mib, ms, number, percent
from vgpu.node.selftest.bounds import MIB, MS, SOURCES, Range
from vgpu.node.selftest.program import OUT_OF_MEMORY, Program
from vgpu.node.selftest.report import FAIL, INFO, NOT_APPLICABLE, NOT_JUDGED, PASS, Row

KERNEL = MS
FLOOD = f"flood kernel={KERNEL} ahead=8"
STEP = 64 * MIB
SMI = ("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
EPERM, ENXIO, ENODEV = 1, 6, 19
LOOKS, PAUSE = 50, 0.1  #: after a kill: how often the rest looks, and seconds between two looks
MODEL = {"timing.slice_us": 2000, "timing.switch_us": 50}  #: of the simulated driver; its other options are off
AUDITS = 10  #: windows of work in which vgpud may come to its verdict
LAG = 20 * MS  #: libvcuda believes NVML's figure of a process that has changed nothing for so long

Rows = Iterator[Row]


class Part(NamedTuple):
    """One function, the rows that it yields, and whether only --full runs it."""

    function: Callable[[Bench], Rows]
    ids: tuple[str, ...]
    full: bool = False


def judged(name: str, promised: str, measured: str, good: bool, source: str, **figures: float) -> Row:
    page, words = SOURCES[source]
    return Row(name, promised, measured, PASS if good else FAIL, f"docs/{page}: {words}", figures)


def timed(row: Row, lost: int, explained: bool) -> Row:
    """A row of time. It is not judged if the `lost` ns of processor time of its programs explain why it would fail."""
    if row.verdict != FAIL or not explained:
        return row
    measured = f"{row.measured}; the programs lost {ms(lost)} of processor time"
    return replace(row, measured=measured, verdict=NOT_JUDGED, figures={**row.figures, "lost": lost})


def within(
    name: str, what: str, found: Sequence[float], ranges: Sequence[Range], source: str, lost: int, window: int
) -> Row:
    """A row of parts of a card's time in `window` ns."""
    promised = ", ".join(f"{percent(one.least)} to {percent(one.most)}" for one in ranges)
    good = all(one.has(part) for part, one in zip(found, ranges))
    figures = {f"part{number}": round(part, 6) for number, part in enumerate(found)}
    row = judged(
        name, f"{promised} percent {what}", ", ".join(map(percent, found)) + " percent", good, source, **figures
    )
    return timed(row, lost, all(one.wider(lost / window).has(part) for part, one in zip(found, ranges)))


def at_most(name: str, promised: str, found: Sequence[int], most: int, source: str, lost: int, **figures: float) -> Row:
    """A row of times, of which each is more than 0."""
    good = all(0 < time <= most for time in found)
    row = judged(name, promised, ", ".join(map(ms, found)), good, source, **figures)
    return timed(row, lost, all(0 < time <= most + lost for time in found))


# What a program sees


def totals(bench: Bench) -> Rows:
    before = bench.used()
    with bench.box(50) as box:
        program = bench.ready(box.start())
        bench.context = bench.used() - before
        seen = program.ask("memory")
        limit = bench.limit
        yield judged(
            "totals.cuda", f"total {mib(limit)}, free at most that", f"{mib(seen['total'])}, {mib(seen['free'])}",
            seen["total"] == limit and seen["free"] <= limit, "totals", total=seen["total"], free=seen["free"],
        )  # fmt: skip
        if "nvml_total" in seen:
            yield judged(
                "totals.nvml", f"total {mib(limit)}", mib(seen["nvml_total"]), seen["nvml_total"] == limit, "totals",
                total=seen["nvml_total"], used=seen["nvml_used"],
            )  # fmt: skip
        else:
            yield Row("totals.nvml", f"total {mib(limit)}", "this driver has no NVML", NOT_APPLICABLE)
        text = box.output(*SMI, f"--id={bench.uuid}")
        shown = int(text) if text and text.strip().isdigit() else None
        if shown is None:
            yield Row("totals.smi", f"total {mib(limit)}", "no nvidia-smi here", NOT_APPLICABLE)
        else:
            yield judged("totals.smi", f"total {mib(limit)}", mib(shown * MIB), shown * MIB == limit, "totals",
                         total=shown * MIB)  # fmt: skip
        charged, bound = limit - seen["free"], bounds.memory(limit)
        yield judged(
            "memory.context", f"charged what the card has less, {mib(bench.context)}, within {mib(bound)}",
            mib(charged), abs(charged - bench.context) <= bound, "overhead", card=bench.context, charged=charged,
        )  # fmt: skip


def second_card(bench: Bench) -> Rows:
    name, promised = "device.second-card", "other cards' nodes do not open"
    others = bench.way.other_nodes(bench.uuid)
    if not others:
        yield Row(name, promised, "one card only", NOT_APPLICABLE)
        return
    with bench.box(50) as box:
        program = box.start()
        errors = [int(program.ask(f"node {major} {minor}")["errno"]) for major, minor in others]
    opened = sum(error in (0, ENXIO, ENODEV) for error in errors)
    yield judged(name, promised, f"{opened} of {len(others)} open", opened == 0, "device", opened=opened)


# Memory


def memory_of(kind: str) -> Callable[[Bench], Rows]:
    def fill(bench: Bench) -> Rows:
        limit = bench.limit
        before = bench.used()
        with bench.box(50) as box:
            program = bench.ready(box.start())
            context = bench.used() - before
            held = int(program.ask(f"fill {kind} {STEP}")["bytes"])
            taken = bench.used() - before
            over = 0 if bench.exact else bounds.memory(limit)
            grain = 2 * MIB if kind == "mapping" else MIB
            under = grain - 1 if bench.exact else grain + bounds.memory(limit)
            found, text = Range(limit - context - under, limit - context + over), mib(held)
            good = found.has(held) and taken <= limit + over
            if kind == "device":
                more = int(program.ask("memory")["free"]) + 1
                code = program.ask(f"alloc device {more}")["code"]
                good, text = good and code == OUT_OF_MEMORY, f"{text}; a byte more than is free: CUDA error {code}"
        yield judged(
            f"memory.{kind}", f"{mib(found.least)} to {mib(found.most)} held beside the context", text, good,
            "exact" if bench.exact else "memory", held=held, context=context, taken=taken,
        )  # fmt: skip

    return fill


def killed(bench: Bench) -> Rows:
    with bench.box(50) as box:
        first = bench.ready(box.start())
        before = int(first.ask("memory")["free"])
        second = bench.ready(box.start())
        held = int(second.ask(f"alloc device {4 * STEP}")["bytes"])
        meanwhile = int(first.ask("memory")["free"])
        box.kill(second)
        after = meanwhile
        for _ in range(LOOKS):
            after = int(first.ask("memory")["free"])
            if after >= before:
                break
            time.sleep(PAUSE)
    slack = 0 if bench.exact else bounds.memory(bench.limit)
    good = meanwhile <= before - held and after >= before - slack
    yield judged(
        "memory.killed", f"{mib(before)} free again after kill -9 of a process with {mib(held)}", mib(after), good,
        "killed", before=before, meanwhile=meanwhile, after=after,
    )  # fmt: skip


def contexts(bench: Bench) -> Rows:
    with bench.box(50) as box:
        program = bench.ready(box.start())
        free, used = int(program.ask("memory")["free"]), bench.used()
        made = int(program.ask("contexts 2")["made"])
        charged, taken = free - int(program.ask("memory")["free"]), bench.used() - used
    bound = bounds.memory(bench.limit)
    yield judged(
        "memory.contexts", f"{made} more charged what they take, {mib(taken)}, within {mib(bound)}", mib(charged),
        abs(charged - taken) <= bound, "overhead", charged=charged, taken=taken,
    )  # fmt: skip


def nvml_lag(bench: Bench) -> Rows:
    with bench.box(50) as box:
        program = bench.ready(box.start())
        before, size = bench.used(), 4 * STEP
        program.ask(f"alloc device {size}")
        began = now = bench.now(bench.clock)
        lag = 0  # until when it was not there for certain, however long a look takes on a busy machine
        while (missing := bench.used() - before < size) and now - began < 10 * SECOND:
            lag, now = now - began, bench.stop_at(now + 5 * MS)
        bench.go_on()
    text = "not within 10 s" if missing else f"{ms(lag)} to {ms(now - began)}"
    yield judged(
        "nvml.lag", f"an allocation is in the card's used memory within {ms(LAG)}", text, not missing and lag <= LAG,
        "lag", lag=lag,
    )  # fmt: skip


# Time


def shares(first: int, second: int) -> Callable[[Bench], Rows]:
    def pair(bench: Bench) -> Rows:
        cores, kernels, window = [first, second], [KERNEL, KERNEL], 4 * SECOND
        with bench.box(first) as one, bench.box(second) as other:
            loads = [(bench.ready(box.start()), FLOOD) for box in (one, other)]
            found = bench.work(loads, window)
            change = max(one.change(), other.change())
        ranges = [bounds.beside(cores, number, kernels, window, change) for number in range(2)]
        lost = lost_by(found)
        yield within(f"share.{first}-{second}", "for two floods", [one["part"] for one in found], ranges, "share",
                     lost, window)  # fmt: skip
        if first == 30:
            most = bounds.container_wait(cores, 0, kernels, change)
            wait = found[0]["spells"]["gap_median"]
            yield at_most("slice.container", f"a wait of at most {ms(most)} for the other's quota", [wait], most,
                          "container", lost, wait=wait)  # fmt: skip
            text = f"a change of contexts takes {change / 2e3:.0f} us, by libvcuda"
            yield Row("cost.change", "", text, INFO, figures={"change": change / 2})

    return pair


def processes(bench: Bench) -> Rows:
    cores, window = 40, 3 * SECOND
    with bench.box(cores) as box:
        found = bench.work([(bench.ready(box.start()), FLOOD) for _ in range(2)], window)
    total = sum(one["part"] for one in found)
    yield within("share.processes", "for two processes together", [total], [bounds.alone(cores, KERNEL, window)],
                 "processes", lost_by(found), window)  # fmt: skip


def process_slice(bench: Bench) -> Rows:
    cores = 90
    with bench.box(cores) as box:
        found = bench.work([(bench.ready(box.start()), FLOOD) for _ in range(2)], 2 * SECOND)
    most = bounds.process_slice(cores, KERNEL)
    spells = [one["spells"]["median"] for one in found]
    yield at_most("slice.process", f"slices of at most {ms(most)}", spells, most, "process", lost_by(found),
                  spell=max(spells))  # fmt: skip


def soft(bench: Bench) -> Rows:
    window = 3 * SECOND
    with bench.box(30, core_limit=100) as box:
        program = bench.ready(box.start())
        (alone,) = bench.work([(program, FLOOD)], window)
        yield within("soft.alone", "for a soft share alone", [alone["part"]],
                     [bounds.alone(100, KERNEL, window)], "soft", lost_by([alone]), window)  # fmt: skip
        with bench.box(60) as hard:
            found = bench.work([(program, FLOOD), (bench.ready(hard.start()), FLOOD)], window)
            limits = bounds.beside([30, 60], 1, [KERNEL, KERNEL], window, hard.change())
        yield within("soft.beside", "for the hard share beside it", [found[1]["part"]], [limits], "neighbour",
                     lost_by(found), window)  # fmt: skip


def request(bench: Bench) -> Rows:
    work = KERNEL
    with bench.box(30) as one, bench.box(70) as other:
        service = bench.ready(one.start()), f"service work={work} period={20 * MS}"
        found = bench.work([service, (bench.ready(other.start()), FLOOD)], 4 * SECOND)
    most, p99 = bounds.request_wait(work, KERNEL), found[0]["latency"]["p99"]
    yield at_most("request.p99", f"at most {ms(most)} beside a flood of kernels of {ms(KERNEL)}", [p99], most,
                  "request", lost_by(found), p99=p99, p50=found[0]["latency"]["p50"])  # fmt: skip


def beside_flood(name: str, load: str, kernel: int) -> Callable[[Bench], Rows]:
    """A load with a share of 30 beside a flood with 70: it gets no more than its share, the flood no less."""

    def pair(bench: Bench) -> Rows:
        cores, kernels, window = [30, 70], [kernel, KERNEL], 4 * SECOND
        with bench.box(30) as one, bench.box(70) as other:
            found = bench.work([(bench.ready(one.start()), load), (bench.ready(other.start()), FLOOD)], window)
            change = max(one.change(), other.change())
        mine, others = (bounds.beside(cores, number, kernels, window, change) for number in range(2))
        yield within(f"share.{name}", "for it and for the flood", [one["part"] for one in found],
                     [Range(0, mine.most), others], "share", lost_by(found), window)  # fmt: skip

    return pair


def two_cards(bench: Bench) -> Rows:
    second = next((uuid for uuid in bench.way.free_cards if uuid != bench.uuid), "")
    if not second:
        yield Row("share.cards", "30 percent of each of two cards", "one free card only", NOT_APPLICABLE)
        return
    bench.way.cards, window = [bench.uuid, second], 3 * SECOND
    try:
        with bench.box(30) as box:
            loads = [(bench.ready(box.start(), uuid), FLOOD) for uuid in bench.way.cards]
            found = bench.work(loads, window)
    finally:
        bench.way.cards = [bench.uuid]
    limits = bounds.alone(30, KERNEL, window)
    yield within("share.cards", "of two cards", [one["part"] for one in found], [limits, limits], "alone",
                 lost_by(found), window)  # fmt: skip


def live(bench: Bench) -> Rows:
    before, after, window, at = 30, 60, 3 * SECOND, SECOND // 2
    with bench.box(before) as box:
        program = bench.ready(box.start())
        bench.work([(program, FLOOD)], SECOND)
        times: list[int] = []  # between which the limits change

        def change() -> None:
            times.append(bench.now(bench.clock))
            bench.change(box, after)
            times.append(bench.now(bench.clock))

        (found,) = bench.measure([(program, FLOOD)], window, at, change)
        first, last = ((after * window - (after - before) * (time - found["begin"])) / window / 100 for time in times)
        error = bounds.alone(after, KERNEL, window)
        slack = (error.most - error.least) / 2 + (after - before) / 100 * bounds.LIVE_CHANGE / window
        yield within("set.live", f"where `set` makes {before} to {after} after {ms(at)} of {ms(window)}",
                     [found["work"] / window], [Range(last - slack, first + slack)], "set", lost_by([found]),
                     window)  # fmt: skip
        smaller = bench.limit * 3 // 4 >> 20 << 20
        bench.change(box, after, smaller)
        seen = program.ask("memory")["total"]
        code = program.ask(f"alloc device {smaller}")["code"]
    yield judged(
        "set.memory", f"total {mib(smaller)}, and more is refused", f"{mib(seen)}, CUDA error {code}",
        seen == smaller and code == OUT_OF_MEMORY, "memory set", total=seen,
    )  # fmt: skip


def audit(bench: Bench) -> Rows:
    """vgpud compares what a container says with NVML, as soon as it has looked nine times: after 50 s, or later where
    NVML is slow."""
    name, cores, window = "audit.use", 30, 30 * SECOND
    found: dict[str, object] = {}

    def ask() -> None:
        found.update(box.audited() or {})

    with bench.box(cores) as box:
        program = bench.ready(box.start())
        if box.audited() is None:
            yield Row(name, "vgpud finds no false word", "vgpud does not run", NOT_APPLICABLE)
            return
        for _ in range(AUDITS):
            bench.measure([(program, FLOOD)], window, window - SECOND, ask)
            if found.get("judged"):
                break
    used, seen = (float(str(found.get(key) or 0)) for key in ("used", "seen"))
    row = judged(name, "vgpud finds no false word", f"said {used:.1f} percent, NVML {seen:.1f}",
                 not found.get("doubted"), "audit", used=used, seen=seen)  # fmt: skip
    yield row if found.get("judged") else replace(row, measured="vgpud has not compared them", verdict=NOT_JUDGED)


# What has no promise


def costs(bench: Bench) -> Rows:
    """Pairs of medians, with libvcuda and without. They say what it costs here; nothing is promised."""

    def medians(program: Program) -> dict[str, float]:
        return {what: program.ask(f"cost {what} count=2000")["median"] for what in ("launch", "alloc")}

    began = time.monotonic()
    plain = bench.ready(bench.way.plain())
    try:
        without = {**medians(plain), "start": (time.monotonic() - began) * SECOND}
    finally:
        plain.close()
    with bench.box(99) as box:
        began = time.monotonic()
        limited = medians(bench.ready(box.start()))
        limited["start"] = (time.monotonic() - began) * SECOND
    for what, unit in (("launch", 1e3), ("alloc", 1e3), ("start", 1e6)):
        name = "us" if unit == 1e3 else "ms"
        text = f"{limited[what] / unit:.2f} {name} with libvcuda, {without[what] / unit:.2f} without"
        yield Row(f"cost.{what}", "", text, INFO, figures={"limited": limited[what], "plain": without[what]})


def card_itself(bench: Bench) -> Rows:
    """What the card does without libvcuda, beside what the simulated driver does unless its profile says otherwise."""
    figures = [*card.measure(bench.way.plain, bench.uuid), *taken.measure(bench.way.plain, bench.uuid)]
    bench.profile = card.profile(bench.greeting, figures)
    for figure in figures:
        section, _, key = figure.name.partition(".")
        known = f"; the simulated driver: {MODEL.get(figure.name, 0)}" if key and section != "model" else ""
        name = re.sub("[^a-z0-9]+", "-", key or section)
        text = " ".join(filter(None, (number(figure.value), figure.unit)))
        yield Row(f"card.{name}", "", f"{text}, within {number(figure.error)}{known}", INFO,
                  figures={"value": figure.value, "error": figure.error})  # fmt: skip


def driver_limit(_bench: Bench) -> Rows:
    yield Row("driver.limit", "the driver's own limit (R615)", "vgpu sets none yet", NOT_APPLICABLE)


PARTS = (
    Part(totals, ("totals.cuda", "totals.nvml", "totals.smi", "memory.context")),
    Part(second_card, ("device.second-card",)),
    *(Part(memory_of(kind), (f"memory.{kind}",)) for kind in ("device", "pool", "managed", "array", "mapping")),
    *(Part(memory_of(kind), (f"memory.{kind}",), True) for kind in ("pitch", "graph")),
    Part(killed, ("memory.killed",)),
    Part(contexts, ("memory.contexts",), True),
    Part(nvml_lag, ("nvml.lag",)),
    Part(shares(30, 70), ("share.30-70", "slice.container", "cost.change")),
    Part(shares(10, 90), ("share.10-90",)),
    Part(processes, ("share.processes",)),
    Part(process_slice, ("slice.process",)),
    Part(soft, ("soft.alone", "soft.beside")),
    Part(request, ("request.p99",)),
    Part(beside_flood("pauses", f"pauses work={2 * MS} gap={MS // 2} wait=stream", KERNEL), ("share.pauses",), True),
    Part(beside_flood("graphs", f"graphs kernel={KERNEL} nodes=10", 10 * KERNEL), ("share.graphs",), True),
    Part(beside_flood("copies", f"copies kernel={KERNEL} bytes={16 * MIB}", KERNEL), ("share.copies",), True),
    Part(two_cards, ("share.cards",), True),
    Part(live, ("set.live", "set.memory")),
    Part(audit, ("audit.use",), True),
    Part(costs, ("cost.launch", "cost.alloc", "cost.start"), True),
    Part(card_itself, ("card.",), True),
    Part(driver_limit, ("driver.limit",), True),
)
