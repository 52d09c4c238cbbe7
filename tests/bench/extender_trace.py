"""Group `extender-trace`: room lost to fragments and the delay of pods, by the rule that chooses nodes and cards.

A simulated cluster: 32 nodes with 8 cards of 80 GiB. The trace is drawn from a seed: 12,000 pods that arrive as a
Poisson process. 85 of 100 are shares of 10 to 80 cores with the same part of the memory or half of it, the others 1, 2,
4 or 8 whole cards. A share lives for 2 hours in the mean and a pod of whole cards for 1, exponentially. The rate of
arrivals is that at which all pods together ask for LOAD of all cores.

A pod that fits nowhere waits. When a pod ends, the waiting ones are tried again in the order of their arrival, as
kube-scheduler does with pods of one priority; none blocks another.

`first-fit` takes the first node in the order of names and its first cards with room. `gpu-admission` is that
project's rule: of the nodes with room that with the fewest free cores, then the least free memory, then by name; on it
the card with the fewest free cores, then the least free memory. `vgpu` is vgpu.plugin.scheduler's decision.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field
from statistics import mean
from typing import Protocol

from gpu_clusters import GIB, make_cards, node_object, pod_object, share
from results import Result

from vgpu.plugin.scheduler import demand
from vgpu.plugin.scheduler.cluster import Cluster
from vgpu.plugin.scheduler.demand import PodSpec
from vgpu.plugin.scheduler.node_answers import Answers

NODES, CARDS, MEMORY = 32, 8, 80  #: GiB of each card
PODS = 12_000
LOAD = 0.9
SHARES = (10, 20, 25, 30, 40, 50, 60, 70, 80)
WHOLES = (1, 1, 1, 1, 1, 2, 2, 4, 4, 8)
PART_OF_SHARES = 0.85
LIFE_OF_SHARE, LIFE_OF_WHOLE = 7200.0, 3600.0  #: seconds, in the mean
SEEDS = (1, 2, 3)


@dataclass(frozen=True)
class Shape:
    """What a pod asks for: a share of one card, or `gpus` whole ones. `memory` is in GiB."""

    cores: int
    memory: int
    gpus: int = 1

    @property
    def whole(self) -> bool:
        return self.cores == 100

    @property
    def all_cores(self) -> int:
        return self.cores * self.gpus


@dataclass(frozen=True)
class Arrival:
    number: int
    at: float
    life: float
    shape: Shape


@dataclass
class Card:
    cores: int = 100  #: free
    memory: int = MEMORY


Place = tuple[int, tuple[int, ...]]  #: a node and its cards
Room = list[list[Card]]


class Rule(Protocol):
    """`ended` hears of a pod that gives its place back."""

    def choose(self, pod: Arrival, room: Room) -> Place | None: ...
    def ended(self, pod: Arrival) -> None: ...


def draw(seed: int, pods: int = PODS) -> list[Arrival]:
    """The trace."""
    rng = random.Random(seed)
    drawn = [_shape(rng) for _ in range(pods)]
    lives = [rng.expovariate(1 / (LIFE_OF_WHOLE if shape.whole else LIFE_OF_SHARE)) for shape in drawn]
    work = sum(shape.all_cores * life for shape, life in zip(drawn, lives))
    interval = work / pods / (LOAD * NODES * CARDS * 100)
    arrivals, now = [], 0.0
    for number, (shape, life) in enumerate(zip(drawn, lives)):
        now += rng.expovariate(1 / interval)
        arrivals.append(Arrival(number, now, life, shape))
    return arrivals


def _shape(rng: random.Random) -> Shape:
    if rng.random() < PART_OF_SHARES:
        cores = rng.choice(SHARES)
        return Shape(cores, max(MEMORY * cores // 100 // rng.choice((1, 2)), 1))
    return Shape(100, MEMORY, rng.choice(WHOLES))


def _cards_for(shape: Shape, cards: list[Card], order: list[int]) -> tuple[int, ...] | None:
    """The first cards in `order` with room."""
    if shape.whole:
        free = [at for at in order if cards[at].cores == 100 and cards[at].memory == MEMORY]
        return tuple(free[: shape.gpus]) if len(free) >= shape.gpus else None
    found = (at for at in order if cards[at].cores >= shape.cores and cards[at].memory >= shape.memory)
    first = next(found, None)
    return None if first is None else (first,)


class FirstFit:
    def choose(self, pod: Arrival, room: Room) -> Place | None:
        for name, cards in enumerate(room):
            found = _cards_for(pod.shape, cards, list(range(len(cards))))
            if found is not None:
                return name, found
        return None

    def ended(self, pod: Arrival) -> None:
        del pod


class GpuAdmission:
    def choose(self, pod: Arrival, room: Room) -> Place | None:
        nodes = [
            (sum(card.cores for card in cards), sum(card.memory for card in cards), name)
            for name, cards in enumerate(room)
        ]
        for _, _, name in sorted(nodes):
            cards = room[name]
            order = sorted(range(len(cards)), key=lambda at: (cards[at].cores, cards[at].memory, at))
            found = _cards_for(pod.shape, cards, order)
            if found is not None:
                return name, found
        return None

    def ended(self, pod: Arrival) -> None:
        del pod


class Vgpu:
    """The extender's own decisions: its state of the cluster, its answers and its order of nodes."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.names = [f"node-{at:02d}" for at in range(NODES)]
        cards = [(name, make_cards(name, CARDS, MEMORY * GIB, "NVIDIA A100-SXM4-80GB", "NV12")) for name in self.names]
        self.cluster.replace_nodes([node_object(name, found) for name, found in cards], 0.0)
        self.answers = Answers(self.cluster)
        self.asked: dict[Shape, PodSpec] = {}

    def choose(self, pod: Arrival, room: Room) -> Place | None:
        del room
        spec = self._spec(pod)
        assert spec.demand is not None
        found = self.answers.to(spec.demand, self.names)
        fitting = [(answer.rank, name) for name, answer in found.items() if answer.decision is not None]
        if not fitting:
            return None
        name = min(fitting)[1]
        decision = found[name].decision
        assert decision is not None
        self.cluster.assume(spec, name, decision, 0.0)
        return self.names.index(name), decision.cards["c0"]

    def ended(self, pod: Arrival) -> None:
        self.cluster.forget(self._spec(pod).uid)

    def _spec(self, pod: Arrival) -> PodSpec:
        shape = pod.shape
        if shape not in self.asked:
            limits = share(shape.gpus * 100, 0) if shape.whole else share(shape.cores, shape.memory * GIB)
            found = demand.parse(pod_object("shape", limits))
            assert found is not None
            self.asked[shape] = found
        one = self.asked[shape]
        return PodSpec(f"pod-{pod.number}", one.namespace, one.name, "", "", 0, "", "", one.demand, "", one.pod)


RULES = {"first-fit": FirstFit, "gpu-admission": GpuAdmission, "vgpu": Vgpu}


@dataclass
class Run:
    """What one rule did with one trace. Room is in percent of the cluster's cores, time in seconds."""

    delays: dict[int, float] = field(default_factory=dict)
    lost: float = 0.0  #: the mean over the time of all arrivals
    used: float = 0.0


class Simulation:
    """One trace under one rule, from event to event."""

    def __init__(self, arrivals: list[Arrival], rule: Rule) -> None:
        self.arrivals = arrivals
        self.rule = rule
        self.room: Room = [[Card() for _ in range(CARDS)] for _ in range(NODES)]
        self.free_cores, self.free_memory = NODES * CARDS * 100, NODES * CARDS * MEMORY
        self.waiting: dict[int, Arrival] = {}
        self.ends: list[tuple[float, int, Place]] = []
        self.found = Run()

    def run(self) -> Run:
        """Until every pod has begun. Room counts up to the last arrival."""
        end, now, at = self.arrivals[-1].at, 0.0, 0
        while at < len(self.arrivals) or self.waiting:
            arrives = self.arrivals[at].at if at < len(self.arrivals) else float("inf")
            after = min(arrives, self.ends[0][0]) if self.ends else arrives
            self._account(now, min(after, end))
            now = after
            if arrives <= after:
                self.waiting[at] = self.arrivals[at]
                self._try(now, [self.arrivals[at]])
                at += 1
            else:
                self._end()
                self._try(now, list(self.waiting.values()))
        self.found.lost /= end
        self.found.used /= end
        return self.found

    def lost(self) -> float:
        """The room that is free while a pod waits that asks for no more than all cards have together."""
        fits = (
            pod.shape.all_cores <= self.free_cores and pod.shape.memory * pod.shape.gpus <= self.free_memory
            for pod in self.waiting.values()
        )  # fmt: skip
        return self.free_cores / (NODES * CARDS) if any(fits) else 0.0

    def _account(self, begin: float, end: float) -> None:
        if end > begin:
            self.found.lost += self.lost() * (end - begin)
            self.found.used += (100 - self.free_cores / (NODES * CARDS)) * (end - begin)

    def _try(self, now: float, pods: list[Arrival]) -> None:
        """Place those of `pods` that fit. A shape that has not fitted does not fit a moment later."""
        refused: set[Shape] = set()
        for pod in pods:
            place = None if pod.shape in refused else self.rule.choose(pod, self.room)
            if place is None:
                refused.add(pod.shape)
                continue
            self._take(pod.shape, place, 1)
            heapq.heappush(self.ends, (now + pod.life, pod.number, place))
            self.found.delays[pod.number] = now - pod.at
            del self.waiting[pod.number]

    def _end(self) -> None:
        _, number, place = heapq.heappop(self.ends)
        self._take(self.arrivals[number].shape, place, -1)
        self.rule.ended(self.arrivals[number])

    def _take(self, shape: Shape, place: Place, sign: int) -> None:
        name, cards = place
        assert len(cards) == shape.gpus
        for at in cards:
            card = self.room[name][at]
            card.cores -= sign * shape.cores
            card.memory -= sign * shape.memory
            assert 0 <= card.cores <= 100
            assert 0 <= card.memory <= MEMORY
            self.free_cores -= sign * shape.cores
            self.free_memory -= sign * shape.memory


def simulate(seed: int, pods: int = PODS) -> dict[str, tuple[list[Arrival], Run]]:
    """Every rule with the trace of one seed."""
    arrivals = draw(seed, pods)
    return {name: (arrivals, Simulation(arrivals, rule()).run()) for name, rule in RULES.items()}  # type: ignore[abstract]


def measure(pods: int = PODS) -> list[Result]:
    """All results of the group."""
    runs = [simulate(seed, pods) for seed in SEEDS]
    return [result for name in RULES for result in _results(name, [one[name] for one in runs])]


def _results(name: str, runs: list[tuple[list[Arrival], Run]]) -> list[Result]:
    head, what = f"extender-trace.{name}", f"{len(runs)} traces of {len(runs[0][0])} pods: "
    wholes = [[run.delays[pod.number] for pod in arrivals if pod.shape.whole] for arrivals, run in runs]
    shares = [[run.delays[pod.number] for pod in arrivals if not pod.shape.whole] for arrivals, run in runs]
    every = [sorted(run.delays.values()) for _, run in runs]
    return [
        Result.of(f"{head}.lost", "percent", None, [run.lost for _, run in runs],
                  f"{what}cores that are free while a pod waits that they would be enough for"),
        Result.of(f"{head}.used", "percent", None, [run.used for _, run in runs], f"{what}cores in use"),
        Result.of(f"{head}.delay_s", "s", None, [mean(one) for one in every], f"{what}mean delay"),
        Result.of(f"{head}.delay_p95_s", "s", None, [one[int(len(one) * 0.95)] for one in every],
                  f"{what}95 of 100 pods wait no longer"),
        Result.of(f"{head}.whole_s", "s", None, [mean(one) for one in wholes], f"{what}mean delay of whole cards"),
        Result.of(f"{head}.share_s", "s", None, [mean(one) for one in shares], f"{what}mean delay of shares"),
    ]  # fmt: skip
