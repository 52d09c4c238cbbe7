"""One run of the self-test: whether the card may be tested, the rows one after the other, the document.

Belongs here: what stops a run before anything is judged, and what a row's error means for the rest. Does not belong
here: options and exit statuses (vgpu.node.ctl.selftest).
"""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any

import psutil

from vgpu.config.errors import VgpuError
from vgpu.node.driver import nvml
from vgpu.node.driver.nvml import Conditions
from vgpu.node.selftest import report, rows
from vgpu.node.selftest.bench import Bench, use
from vgpu.node.selftest.program import NotJudged, Program
from vgpu.node.selftest.report import NOT_APPLICABLE, NOT_JUDGED, Row
from vgpu.node.selftest.way import Way

QUICK, FULL = "quick", "full"
LIMIT = 2 << 30  #: bytes of a box, on a card that has room for BOXES of them
BOXES = 4
ODD = (1 << 20) + 512  #: bytes that a driver of the exact kind takes as they are, and no other
NO_DEVICE = 100
MPS = "nvidia-cuda-mps"
Say = Callable[[str], None]


def run(way: Way, card: str, depth: str, only: Sequence[str], say: Say) -> dict[str, Any]:
    """The report of a run. NotJudged if no card may be tested, and why; `say` prints a line of progress."""
    today = datetime.date.today().isoformat()
    way.visible = visible(list(nvml.conditions(way.nvml, lambda _line: None)), card)
    clock = way.plain()
    try:
        hello, chosen, notes = choose(way, clock, card)
        began = elapsed(clock)
        say(f"card {report.short(chosen['uuid'])}, {chosen['name']}; {depth}, by {way.name}")
        bench = prepare(way, clock, chosen["uuid"])
        bench.greeting = chosen
        found = all_rows(bench, [part for part in rows.PARTS if wanted(part, depth, only)], say)
        seconds = elapsed(clock) - began
    finally:
        way.close()
        clock.close()
    head = {
        "vgpu": metadata.version("vgpu"), "date": today, "way": way.name, "depth": depth,
        "seconds": round(seconds, 1), "driver": str(hello.get("release", "")),
        "cuda": f"{hello['driver'] // 1000}.{hello['driver'] % 1000 // 10}", "kernel": platform.release(),
        "machine": platform.machine(), "notes": notes, "profile": bench.profile,
        "card": {"uuid": report.short(chosen["uuid"]), "name": chosen["name"], "memory": chosen["total"],
                 "capability": chosen["capability"]},
    }  # fmt: skip
    return report.document(head, found)


def elapsed(clock: Program) -> float:
    """Seconds of the programs' clock, which is the simulator's where that is virtual."""
    return int(clock.ask("sleep until=0")["now"]) / 1e9


def wanted(part: rows.Part, depth: str, only: Sequence[str]) -> bool:
    return any(name.startswith(tuple(only)) for name in part.ids) if only else depth == FULL or not part.full


# Before


def visible(known: list[str], wish: str) -> str:
    """What CUDA has to be asked for among these cards: it shows one MIG instance, and no whole card beside it."""
    names = [uuid for uuid in known if uuid.startswith(wish)]
    whole = [uuid for uuid in names if not uuid.startswith("MIG-")]
    if len(whole) == len(known):
        return ""
    return ",".join(whole or names[:1])


def choose(way: Way, clock: Program, wish: str) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """(the program's greeting, a card on which a test disturbs nobody, notes); NotJudged if there is none."""
    hello = clock.ask("hello")
    if "missing" in hello:
        raise NotJudged("the driver", expected="libcuda.so.1", found="none", do="install the driver")
    if hello.get("code", 0) or not hello["cards"]:
        raise NotJudged("a card", expected="one", found=f"CUDA error {hello.get('code', NO_DEVICE)}", do="nvidia-smi")
    cards = [card for card in hello["cards"] if card["uuid"].startswith(wish)]
    if not cards:
        raise NotJudged("--card", expected="the beginning of a UUID of this node's cards or MIG instances", found=wish)
    reasons: list[str] = []
    good, there = [], nvml.conditions(way.nvml, reasons.append)
    users = nvml.users(way.nvml, reasons.append)
    for card in cards:
        found = unfit(way, card["uuid"], there.get(card["uuid"]), users.get(card["uuid"], []))
        reasons += found
        good += [] if found else [card]
    if not good:
        raise NotJudged("self-test", expected="a card that nobody uses", found="; ".join(reasons))
    way.free_cards = [card["uuid"] for card in good]
    way.cards = [good[0]["uuid"]]
    persistent = there[good[0]["uuid"]].persistent
    notes = [] if persistent else ["persistence is off: the driver may start again between rows"]
    load, processors = os.getloadavg()[0], os.cpu_count() or 1
    if load > processors:
        notes.append(f"a load of {load:.1f} on {processors} processors: rows of time may not be judged for that")
    return hello, good[0], notes


def unfit(way: Way, uuid: str, seen: Conditions | None, users: list[tuple[int, bool, int]]) -> list[str]:
    """Why a card cannot be tested now."""
    name = report.short(uuid)
    if seen is None:
        return [f"{name} has no state in NVML, or is in MIG mode"]
    found = [f"{name} is used by {who(pid)}" for pid, _, _ in users]
    found += [f"{name} is held by {what}" for what in way.disturbed(uuid)]
    if not seen.shared:
        found.append(f"{name} is in an exclusive compute mode")
    if seen.display:
        found.append(f"{name} has a display")
    if runs_mps():
        found.append("MPS runs: end it with echo quit | nvidia-cuda-mps-control")
    return found


def who(pid: int) -> str:
    """A process of a card as NVML names it: by its name where this pid namespace has it."""
    try:
        return f"pid {pid} ({psutil.Process(pid).name()})"
    except psutil.Error:
        return f"pid {pid}"


def runs_mps() -> bool:
    pipe = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")  # noqa: S108 - MPS's own default
    names = (process.info["name"] or "" for process in psutil.process_iter(["name"]))
    return os.path.exists(f"{pipe}/control") or any(name.startswith(MPS) for name in names)


def prepare(way: Way, clock: Program, uuid: str) -> Bench:
    """The bench, when a program without a limit has shown that this card takes its code and has room."""
    bench = Bench(way, clock, uuid)
    free, before = nvml.conditions(way.nvml, lambda _line: None)[uuid].free, bench.used()
    plain = way.plain()
    try:
        use(plain, uuid)
        context = bench.used() - before
        listed = sum(size for _, _, size in nvml.users(way.nvml, lambda _line: None).get(uuid, []))
        for kind in ("device", "pool"):
            plain.ask(f"alloc {kind} {ODD}")
        bench.exact = listed == context and bench.used() - before == context + 2 * ODD
    finally:
        plain.close()
    bench.limit = limit = min(LIMIT, free // BOXES) >> 21 << 21
    if limit < 3 * context + (64 << 20):
        raise NotJudged("the card's memory", expected=f"{BOXES * (3 * context + (64 << 20)) >> 20} MiB free",
                        found=f"{free >> 20} MiB")  # fmt: skip
    return bench


# The rows


def all_rows(bench: Bench, parts: Sequence[rows.Part], say: Say) -> list[Row]:
    """Every row of the parts. After a NotJudged, such as a card that is lost, the rest is not judged either."""
    found: list[Row] = []
    lost = False
    for number, part in enumerate(parts, 1):
        reason = next((bench.way.cannot[name] for name in part.ids if name in bench.way.cannot), "")
        if reason or lost:
            verdict = NOT_JUDGED if lost else NOT_APPLICABLE
            found += [Row(name, "", reason or "the card failed before", verdict) for name in part.ids]
            continue
        say(f"{number} of {len(parts)}: {', '.join(part.ids)}")
        made: list[Row] = []
        try:
            made.extend(part.function(bench))
        except (VgpuError, OSError) as error:
            say(str(error))
            lost = isinstance(error, NotJudged)
            there = {row.id for row in made}
            made += [Row(name, "", "an error", NOT_JUDGED) for name in part.ids if name not in there]
        for row in made:
            say(f"{row.id}: {row.verdict}, {row.measured}")
        found += made
    return found
