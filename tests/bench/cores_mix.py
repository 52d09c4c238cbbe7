"""Random mixes of programs on random cards: each container's share and use against the reference scheduler, and the
latency of those that ask for less than their share against no limiter.

A mix is 2 to 10 containers with random shares. Their programs are random (rounds with pauses, ways of waiting, graphs,
copies, streams, requests) or recorded ones (tests/data/recorded, or the files of `VGPU_BENCH_RECORDED`). The card's
timing is random, too. `VGPU_BENCH_SEED` chooses the mixes (1), `VGPU_BENCH_MIXES` how many there are (200). Each figure
is that of the worst mix, of which a picture is left (pictures.py); one is how many of all meet every bar. A line on
standard error says what each mix gave as soon as it is known. vgpud's part of a node is there, as on a real one.
"""

from __future__ import annotations

import dataclasses
import math
import os
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pictures
from checkout import DATA
from cores_scenario import MS, SECOND, US, Load, Outcome, Scenario, Tenant
from cores_traces import percentile
from cores_workers import Workers
from results import BenchError, Result

MIXES = 200
SEEDS = 1000  #: the scenarios of a seed are numbered from its multiple of this on
WINDOW = (SECOND, 5 * SECOND)
LIMITERS = ("libvcuda", "none", "ideal")
ASKS_AT_MOST = 0.8  #: part of its share that a container asks for whose requests are not to be harmed
POINTS, BEYOND, USE, HARM_MS = 2, 1, 0.97, 1  #: the bars
AT_ONCE = 8  #: mixes that run before their lines are written
REQUESTS = 100  #: fewer requests have no 99th percentile
WAYS = ("stream", "context", "event", "query", "stream_query", "thread", "host", "flag")
#: What is known of cards, and what is believed of some.
TIMING: dict[str, tuple[int, ...]] = {
    "slice_us": (1000, 2000, 10_000, 30_000),
    "switch_us": (50, 170, 500),
    "wake_us": (0, 1000),
    "whole_kernels": (0, 0, 1),
    "idle_us": (0, 0, 1000),
    "shared_copies": (0, 1),
    "event_turn": (0, 0, 1),
}


def recordings() -> list[str]:
    """Paths of recorded programs."""
    named = os.environ.get("VGPU_BENCH_RECORDED", "").split()
    found = named or sorted(map(str, (DATA / "recorded").glob("*.csv.gz")))
    if not found:
        raise BenchError("there are no recorded programs")
    return found


def log_uniform(source: random.Random, least: float, most: float) -> int:
    return int(math.exp(source.uniform(math.log(least), math.log(most))))


def kernel(source: random.Random, least: int = 10 * US, most: int = 10 * MS) -> tuple[str, float]:
    """The load generator's option, and the mean duration."""
    median = log_uniform(source, least, most)
    shape = source.choice(("fixed", "fixed", "lognormal", "bimodal"))
    if shape == "lognormal":
        sigma = source.uniform(0.2, 1.0)
        return f"lognormal:{median}:{int(sigma * 1000)}:{most}", min(median * math.exp(sigma**2 / 2), most)
    if shape == "bimodal":
        other, part = log_uniform(source, least, most), source.randrange(10, 500)
        return f"bimodal:{median}:{other}:{part}", (median * (1000 - part) + other * part) / 1000
    return f"fixed:{median}", median


def flood(source: random.Random, share: int) -> Load:
    return {"kernel": kernel(source, 20 * US)[0], "wait": 0, "streams": source.choice((1, 1, 1, 3))}


def rounds(source: random.Random, share: int) -> Load:
    """Kernels that the program waits for, and a pause."""
    shape, mean = kernel(source, most=2 * MS)
    length = log_uniform(source, 200 * US, 20 * MS)
    pause = source.choice((0, log_uniform(source, 20 * US, 10 * MS)))
    return {"kernel": shape, "launches": max(int(length / mean), 1), "gap": pause, "wait": source.choice(WAYS)}


def graphs(source: random.Random, share: int) -> Load:
    shape, mean = kernel(source, most=500 * US)
    length = log_uniform(source, 2 * MS, 200 * MS)
    nodes = min(max(int(length / mean), 2), 3000)
    return {"kernel": shape, "graph": nodes, "gap": source.choice((0, MS)), "wait": source.choice(WAYS)}


def copies(source: random.Random, share: int) -> Load:
    load: Load = {"kernel": kernel(source, 200 * US, 5 * MS)[0], "copy": log_uniform(source, 1 << 14, 64 << 20)}
    load["launches"] = source.choice((1, 1, 4, 16))
    return {**load, "apart": source.choice((0, 1)), "wait": source.choice((0, "stream", "event", "query"))}


def streams(source: random.Random, share: int) -> Load:
    count = source.randrange(2, 5)
    return {**rounds(source, share), "streams": count}


def requests(source: random.Random, share: int) -> Load:
    """Requests that come on their own and ask for a part of the share."""
    asked = source.uniform(0.2, 0.95)
    interval = log_uniform(source, 5 * MS, 25 * MS)
    work = interval * asked * share / 100
    launches = source.choice((1, 1, 5, 20))
    arrivals = source.choice((f"poisson:{interval}", f"fixed:{interval}", f"bursts:{interval}:3"))
    way = source.choice(WAYS)
    return {
        "kernel": f"fixed:{max(int(work / launches), 5 * US)}",
        "launches": launches,
        "arrivals": arrivals,
        "wait": way,
    }


def recorded(source: random.Random, share: int) -> Load:
    return {"replay": source.choice(recordings())}


KINDS: tuple[Callable[[random.Random, int], Load], ...] = (
    flood, rounds, rounds, graphs, copies, streams, requests, requests, recorded,
)  # fmt: skip


def shares(source: random.Random, count: int) -> list[int]:
    """Of 4 percent and more; they fill the card in most mixes."""
    whole = source.choice((100, 100, 100, 60))
    cuts = sorted(source.sample(range(1, whole - 4 * count + count), count - 1))
    return [after - before + 3 for before, after in zip([0, *cuts], [*cuts, whole - 4 * count + count])]


def mix(seed: int, number: int) -> Scenario:
    source = random.Random(seed * 1_000_003 + number)
    parts = shares(source, source.choice((2, 2, 2, 3, 3, 4, 5, 6, 8, 10)))
    tenants = []
    for share in parts:
        load = source.choice(KINDS)(source, share)
        tenants.append(Tenant(share, [{**load, "begin": source.randrange(200 * MS)}]))
    timing = {name: source.choice(values) for name, values in TIMING.items()}
    return Scenario(tenants, WINDOW, timing=timing, seed=seed * SEEDS + number, every=100 * MS, lender=True)


@dataclasses.dataclass(frozen=True)
class Found:
    """One mix: points of the card that a container lacks beside the reference, has beyond its cap; the use of all over
    that of the reference; by tenant, ms by which requests that ask for little are later than 1.1 x without a limiter.
    """

    number: int
    scenario: Scenario
    lacks: float
    beyond: float
    use: float
    harms: dict[int, float]
    outcomes: tuple[Outcome, ...]

    @property
    def harm_ms(self) -> float:
        """The worst; 0 where nobody asks for little."""
        return max(self.harms.values(), default=0.0)

    @property
    def is_met(self) -> bool:
        """Whether it is within every bar."""
        is_shared = self.lacks <= POINTS and self.beyond <= BEYOND and self.use >= USE
        return is_shared and self.harm_ms <= HARM_MS


def asks_for_little(tenant: Tenant) -> bool:
    load = tenant.loads[0]
    if "arrivals" not in load:
        return False
    work = int(str(load["kernel"]).split(":")[1]) * int(load["launches"])
    return work / int(str(load["arrivals"]).split(":")[1]) <= ASKS_AT_MOST * tenant.cores / 100


def p99_ms(outcome: Outcome, tenant: int) -> float:
    return percentile(outcome.loads[tenant][0]["latency_ns"], 99) / MS


def judge(number: int, scenario: Scenario, outcomes: Sequence[Outcome]) -> Found:
    """`outcomes` in the order of LIMITERS."""
    got, free, ideal = outcomes
    lacks = [(wanted - share) * 100 for wanted, share in zip(ideal.shares, got.shares)]
    beyond = [share * 100 - tenant.cores for tenant, share in zip(scenario.tenants, got.shares)]
    harms = {
        index: p99_ms(got, index) - 1.1 * p99_ms(free, index)
        for index, tenant in enumerate(scenario.tenants)
        if asks_for_little(tenant) and len(got.loads[index][0]["latency_ns"]) >= REQUESTS
    }
    use = sum(got.shares) / sum(ideal.shares)
    return Found(number, scenario, max(lacks), max(beyond), use, harms, tuple(outcomes))


def find(workers: Workers, seed: int, numbers: Sequence[int]) -> list[Found]:
    """Run the mixes of these numbers, some at a time, and write a line for each on standard error."""
    found: list[Found] = []
    while at_once := numbers[len(found) : len(found) + AT_ONCE]:
        mixes = [mix(seed, number) for number in at_once]
        outcomes = workers.run_all(dataclasses.replace(one, limiter=name) for one in mixes for name in LIMITERS)
        for number, one in zip(at_once, mixes):
            found.append(judge(number, one, outcomes[: len(LIMITERS)]))
            del outcomes[: len(LIMITERS)]
            print(line(found[-1]), file=sys.stderr, flush=True)
    return found


def line(one: Found) -> str:
    """What a mix gave: the four figures, then each tenant's share under the limiters, in percent."""
    shares_of = zip(names(one.scenario.tenants), *(outcome.shares for outcome in one.outcomes))
    tenants = (f"{name} " + "/".join(f"{share * 100:.1f}" for share in shares) for name, *shares in shares_of)
    figures = f"points {one.lacks:.1f}, beyond {one.beyond:.1f}, use {one.use:.3f}, harm_ms {one.harm_ms:.1f}"
    state = "met" if one.is_met else "MISSED"
    return f"mix {one.number}, {state}: {figures} ({'/'.join(LIMITERS)}: {'; '.join(tenants)})"


def does(load: Load) -> str:
    """What a tenant does, in a few words."""
    if "replay" in load:
        return Path(str(load["replay"])).name.split(".")[0]
    if "arrivals" in load:
        return f"requests each {int(str(load['arrivals']).split(':')[1]) / MS:.0f} ms"
    if "graph" in load:
        return f"graph of {load['graph']}"
    if "copy" in load:
        return f"copies of {int(load['copy']) / (1 << 20):.1f} MiB"
    return "flood" if load["wait"] == 0 else f"rounds of {load['launches']}"


def names(tenants: Sequence[Tenant]) -> list[str]:
    """Of all tenants, each different: share and deed, and the number where two would be called the same."""
    found = [f"{tenant.cores}: {does(tenant.loads[0])}" for tenant in tenants]
    return [f"{name}, tenant {at + 1}" if found.count(name) > 1 else name for at, name in enumerate(found)]


def draw(one: Found) -> None:
    """The shares over time, and the latency of the service that was harmed most, if there is one."""
    tenants = one.scenario.tenants
    called = names(tenants)
    title = f"Mix {one.number} of seed {one.scenario.seed // SEEDS}"
    shares_of = {name: tenant.cores for name, tenant in zip(called, tenants)}
    pictures.shares(f"mix-{one.number}.svg", title, one.outcomes[0], shares_of)
    if one.harms:
        worst = max(one.harms, key=lambda index: one.harms[index])
        curves = {name: each.loads[worst][0]["latency_ns"] for name, each in zip(LIMITERS, one.outcomes)}
        pictures.latencies(f"mix-{one.number}-latency.svg", f"{title}, {called[worst]}", curves)


def measure(workers: Workers, runs: int) -> list[Result]:
    """One run of all mixes: they differ among each other."""
    seed, count = (int(os.environ.get(f"VGPU_BENCH_{name}", value)) for name, value in (("SEED", 1), ("MIXES", MIXES)))
    if count < 1:
        raise BenchError("VGPU_BENCH_MIXES must be at least 1")
    found = find(workers, seed, range(count))
    lacks, beyond = max(found, key=lambda one: one.lacks), max(found, key=lambda one: one.beyond)
    use = min(found, key=lambda one: one.use)
    harm = max([one for one in found if one.harms] or found, key=lambda one: one.harm_ms)
    for one in {each.number: each for each in (lacks, use, harm)}.values():
        draw(one)
    what = f"the worst of {count} random mixes, seed {seed}: mix "
    points = f"{what}{lacks.number}, a container's share below the reference's, percent of the card"
    over = f"{what}{beyond.number}, a container's share above its cap, percent of the card"
    met = f"of {count} random mixes, seed {seed}: within all of these bars"
    less = f"{what}{use.number}, use of the card over the reference's"
    late = f"{what}{harm.number}, p99 of who asks for at most {ASKS_AT_MOST} of its share, above 1.1 x none's"
    return [
        Result.of("cores.mix.points", "points", POINTS, [lacks.lacks], points),
        Result.of("cores.mix.beyond", "points", BEYOND, [beyond.beyond], over),
        Result.at_least("cores.mix.use", USE, [use.use], less),
        Result.of("cores.mix.harm_ms", "ms", HARM_MS, [harm.harm_ms], late),
        Result.of("cores.mix.met", "mixes", None, [sum(one.is_met for one in found)], met),
    ]
