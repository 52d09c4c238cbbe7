"""Group `tenants`: what neighbours and the node lose while a tenant has very many of something.

A row of CARD_ROWS is an attack, and whether the attacker has a share of the neighbours' card or of the other one. Two
neighbours of SHARE always want more of their card, on the wall clock. The figure is what the one of them lost that lost
more, in points. A row of NODE_ROWS is a look at the node, which costs time or bytes.

Measurements without and with it alternate. A pair is one with it and the mean of the two around it; its control is
these two. A card's run whose controls differ by more than a point does not count, because the machine had other work.
For the node, compare the row with its control.

`VGPU_BENCH_RUNS` sets the number of pairs (10 unless set), `VGPU_BENCH_SECONDS` the length of a measurement of a card
(2), and `VGPU_BENCH_ONLY` selects rows.
"""

from __future__ import annotations

import io
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import bundles
import exporter
import nodes
import round_records
import trees
from cores_scenario import MS, SECOND, Load, Outcome, Scenario, Tenant
from cores_workers import Workers
from daemons import Daemon
from fake_apiserver import FakeApiServer
from results import BenchError, Result, table

from vgpu.config import inventory, pods, rounds
from vgpu.config import paths as node_paths
from vgpu.config.request import Request
from vgpu.config.settings import Settings
from vgpu.hook.ledger.ledger import Ledger, Start
from vgpu.hook.linux import procfs
from vgpu.node.service.log import Log
from vgpu.plugin.apiserver import Agent, pod_objects
from vgpu.plugin.apiserver.client import Api

RUNS, SECONDS = 10, 2
SETTLE = SECOND
SHARE, ATTACKERS = 45, 10
FLOOD: Load = {"kernel": f"fixed:{MS}", "wait": 0}
MOST_APART = 1.0  #: points between the two measurements of a control
PRESENCE = "$(find /usr/local/vgpu/presence -type f)"
STARTS = 5  #: of which a figure is the median
SCRAPES = 20
CONTAINERS = 100
CHANGES = 100
UID = "3f1c9a52-0b0e-4c53-9d3a-6f0f8f0f1a11"


class CardRow(NamedTuple):
    """`attack` as in cores_scenario.Tenant, `bar` the points that a neighbour may lose."""

    attack: str
    is_on_same_card: bool
    bar: float
    what: str


CARD_ROWS = {
    "locks_same_card": CardRow(f"tenant locks 20000 {PRESENCE}", True, 5, "20,000 read locks, on the same card"),
    "locks_other_card": CardRow(f"tenant locks 20000 {PRESENCE}", False, 1, "20,000 read locks, on another card"),
    "waiters_same_card": CardRow(f"tenant waiters 5000 {PRESENCE}", True, 5, "5,000 futex waiters, on the same card"),
    "waiters_other_card": CardRow(f"tenant waiters 5000 {PRESENCE}", False, 1, "5,000 futex waiters, on another card"),
    "threads": CardRow("tenant threads 10000", True, 1, "10,000 threads that sleep"),
    "processes": CardRow("tenant processes 2000", True, 1, "2,000 processes that sleep"),
    "mappings": CardRow("tenant mappings 60000", True, 1, "60,000 mappings in a process"),
    "contexts": CardRow("crowd contexts 60", True, 1, "60 contexts in a process: 19 of 40 GiB of the card"),
    "slots": CardRow("crowd processes 60", True, 1, "60 CUDA processes: 19 of 40 GiB of the card"),
    "watches": CardRow(f"tenant watches 100 {PRESENCE}", True, 1, "100 inotify instances on the card's presence file"),
}


def scenario(row: CardRow, with_attack: bool, seconds: int) -> Scenario:
    attacker = Tenant(ATTACKERS, [], cards=1, first_card=0 if row.is_on_same_card else 1,
                      attack=row.attack if with_attack else "")  # fmt: skip
    neighbours = [Tenant(SHARE, [FLOOD], cards=1)] * 2
    window = (SETTLE, SETTLE + seconds * SECOND)
    return Scenario([*neighbours, attacker], window, clock="wall", profile="a100x2")


def points(outcome: Outcome) -> list[float]:
    return [share * 100 for share in outcome.shares[:2]]


def alternated(look: Callable[[bool], list[float]], pairs: int) -> tuple[list[float], list[float]]:
    """(what is gained with it, what the controls differ by), for each pair; of several figures the greatest."""
    without, gains, controls = look(False), [], []
    for _ in range(pairs):
        before, during, without = without, look(True), look(False)
        gains.append(max(had - (one + other) / 2 for one, had, other in zip(before, during, without)))
        controls.append(max(abs(one - other) for one, other in zip(before, without)))
    return gains, controls


def measure_card(workers: Workers, name: str, pairs: int, seconds: int) -> list[Result]:
    row = CARD_ROWS[name]
    losses, controls = alternated(
        lambda many: [-share for share in points(workers.run(scenario(row, many, seconds)))], pairs
    )
    counts = max(controls) <= MOST_APART
    unit, bar = ("points", row.bar) if counts else ("points (does not count)", None)
    return [
        Result.of(f"tenants.{name}_points", unit, bar, losses, f"{row.what}: points lost of {SHARE}"),
        Result.of(f"tenants.{name}_control_points", "points", None, controls, "without it: points apart"),
    ]


# ---- the node ----

Look = Callable[[bool], float]  #: with very many of something, or without


@contextmanager
def simulated_node() -> Iterator[nodes.SimulatedNode]:
    with tempfile.TemporaryDirectory(prefix="vgpu-bench-") as name:
        os.chmod(name, 0o755)
        node = nodes.SimulatedNode(Path(name) / "node", "h100x8")
        node.take_inventory()
        yield node


@contextmanager
def repeated(work: Callable[[], None], pause: float) -> Iterator[None]:
    """Another thread does this again and again."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(pause):
            work()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def starts(cores: str, pause: float) -> Iterator[Look]:
    """ms of a start by runc, while another tenant starts and deletes containers of so many cores."""
    with simulated_node() as node:
        runtime = bundles.Runtime(node.directory / "runtime")
        tree = trees.make("debian", node.directory / "image")

        def bundle(name: str, amount: str) -> bundles.Bundle:
            keys = {"vgpu.io/cores": amount, "vgpu.io/memory": "64Mi"}
            return bundles.Bundle(node.directory / name, tree, keys).hooks(node).command("sleep", "600")

        def start(one: bundles.Bundle) -> float:
            began = time.perf_counter()
            container, _ = runtime.create(one)
            taken = (time.perf_counter() - began) * 1000
            runtime.delete(container)
            return taken

        own, others = bundle("own", "1"), bundle("others", cores)

        def look(many: bool) -> float:
            if not many:
                return median(start(own) for _ in range(STARTS))
            with repeated(lambda: (start(others), None)[1], pause):
                return median(start(own) for _ in range(STARTS))

        try:
            yield look
        finally:
            runtime.cleanup()


@contextmanager
def files() -> Iterator[Look]:
    """ms of vgpud's round, with CONTAINERS containers that have cards."""
    with simulated_node() as node:
        found = inventory.read(node.settings.run_dir).cards
        pid, daemon = os.getpid(), Daemon(node).start().ready()

        def look(many: bool) -> float:
            ledger, names = Ledger(node.settings, found), [f"{number:064x}" for number in range(CONTAINERS)]
            for name in names if many else ():
                start = Start(name, pid, procfs.start_time(pid), "/bundle", None, "", time.time())
                ledger.claim(start, Request(1, 1, 64 << 20))
                ledger.confirm(start)
            daemon.rounds(2)
            taken = float(rounds.read(node.settings.run_dir)["vgpud"]["round_seconds"]) * 1000
            for name in names if many else ():
                ledger.withdraw(Start(name, pid, procfs.start_time(pid), "", None, "", 0.0))
            return taken

        try:
            yield look
        finally:
            daemon.kill()


@contextmanager
def series() -> Iterator[Look]:
    """ms of a scrape, with CONTAINERS containers that have a share."""
    with tempfile.TemporaryDirectory(prefix="vgpu-bench-") as name:
        process = exporter.Process(Path(name))

        def scrape() -> float:
            began = time.perf_counter()
            process.scrape()
            return (time.perf_counter() - began) * 1000

        def look(many: bool) -> float:
            round_records.write(process.run_dir, round_records.record(8, CONTAINERS if many else 1))
            return median(scrape() for _ in range(SCRAPES))

        try:
            yield look
        finally:
            process.stop()


@contextmanager
def annotations() -> Iterator[Look]:
    """KiB of a pod's record, with 256 KiB of annotations that have control characters only."""
    with tempfile.TemporaryDirectory(prefix="vgpu-bench-") as run_dir:

        def look(many: bool) -> float:
            text = "\1" * (pod_objects.MAX_KEPT - 1024) if many else ""
            pod = FakeApiServer().put_pod("p", "node", UID, {}, {f"vgpu.io/{number}": text for number in range(4)})
            made = pod_objects.parse(pod, frozenset())
            assert made
            pods.write(run_dir, made.pod)
            return os.path.getsize(node_paths.pod(run_dir, UID)) / 1024

        yield look


@contextmanager
def events() -> Iterator[Look]:
    """Posts to the API server in an hour, with CHANGES changes of a pod's annotations that have no effect."""
    with tempfile.TemporaryDirectory(prefix="vgpu-bench-") as name:
        server = FakeApiServer()
        config = server.kubeconfig(Path(name) / "kubeconfig")
        settings = Settings({"paths.run": f"{name}/run", "kubernetes.kubeconfig": config}, "node")

        def look(many: bool) -> float:
            agent, before = Agent(settings, Log(io.StringIO(), False), "node"), len(server.requests)
            for number in range(CHANGES):
                pod = server.put_pod("p", "node", UID, {}, {f"{'vgpu.io' if many else 'other'}/{number}": "1"})
                made = pod_objects.parse(pod, frozenset())
                assert made
                agent._complain(Api(config), [made])
            return len(server.requests) - before

        yield look


class NodeRow(NamedTuple):
    """`look` makes what is looked at."""

    look: Callable[[], AbstractContextManager[Look]]
    unit: str
    what: str


NODE_ROWS = {
    "pods": NodeRow(lambda: starts("1", 0.1), "ms", "starts and deletes, some ten a second: a start takes longer by"),
    "lines": NodeRow(lambda: starts("bad", 0), "ms", "refused starts, each after the other: a start takes longer by"),
    "files": NodeRow(files, "ms", f"{CONTAINERS} containers with cards: a round of vgpud takes longer by"),
    "series": NodeRow(series, "ms", f"{CONTAINERS} containers with shares: a scrape takes longer by"),
    "annotations": NodeRow(annotations, "KiB", "256 KiB of annotations: a pod's record is larger by"),
    "events": NodeRow(events, "posts", f"{CHANGES} changes of annotations: posts in an hour"),
}


def measure_node(name: str, pairs: int) -> list[Result]:
    row = NODE_ROWS[name]
    with row.look() as look:
        losses, controls = alternated(lambda many: [look(many)], pairs)
    return [
        Result.of(f"tenants.{name}_{row.unit.lower()}", row.unit, None, losses, row.what),
        Result.of(f"tenants.{name}_control_{row.unit.lower()}", row.unit, None, controls, "without it: apart"),
    ]


def measure() -> list[Result]:
    """All results of the group."""
    runs = int(os.environ.get("VGPU_BENCH_RUNS", RUNS))
    seconds = int(os.environ.get("VGPU_BENCH_SECONDS", SECONDS))
    known = [*CARD_ROWS, *NODE_ROWS]
    names = os.environ.get("VGPU_BENCH_ONLY", " ".join(known)).split()
    if runs < 1 or seconds < 1 or not set(names) <= set(known):
        raise BenchError(f"runs and seconds must be at least 1, VGPU_BENCH_ONLY some of {' '.join(known)}")
    results: list[Result] = []
    with Workers(1) as workers:
        for name in names:
            began = time.monotonic()
            found = measure_card(workers, name, runs, seconds) if name in CARD_ROWS else measure_node(name, runs)
            print(f"{table(found)}\nin {time.monotonic() - began:.0f} s", flush=True)
            results += found
    return results
