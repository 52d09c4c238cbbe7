"""Group `extender`: how long kube-scheduler waits for the extender, its memory, and its bindings per second.

Filter is measured in this process, from the bytes of a request to those of its answer, without HTTP: 100, 1,000 and
5,000 nodes with eight linked cards, filled with shares by a seeded rule. `warm`: the shape of the pod is known, and at
most 10 nodes have changed since the last request. `cold`: the shape is new. The bindings and the memory are those of a
process of its own, over HTTP, against the tests' API server, whose writes take 2 ms. On a machine that other programs
use, the figures of processor time (`cpu`) say what the extender needs.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import quantiles
from typing import Any

import psutil
from extender_process import ExtenderProcess
from fake_apiserver import FakeApiServer
from gpu_clusters import GIB, Site, args, make_cards, node_object, pod_object, share, uid_of
from results import AT_LEAST, Result

from vgpu.config.dialects import placements
from vgpu.plugin.scheduler import main, wire

SIZES = (100, 1000, 5000)
REQUESTS = 200
COLD = 5  # requests of a shape that nobody has asked for
CHANGED = 10
BINDS = 400
BARS = {
    "extender.filter.5000.p99_ms": 50, "extender.filter.5000.cold_share_ms": 600,
    "extender.filter.5000.cold_whole_ms": 1000,
}  # fmt: skip


def measure(requests: int = REQUESTS, sizes: tuple[int, ...] = SIZES, binds: int = BINDS) -> list[Result]:
    """All results of the group."""
    found = []
    for size in sizes:
        found += _filters(size, requests)
    return [*found, *_process(sizes[-1], binds)]


def _nodes(size: int) -> list[Any]:
    return [
        node_object(name, make_cards(name, 8, 80 * GIB, "NVIDIA A100-SXM4-80GB", "NV12"))
        for name in (f"node-{at:04d}" for at in range(size))
    ]


def _shares(size: int, seed: int = 16) -> list[Any]:
    """Bound pods: 0 to 7 shares on each node, each on a card with room."""
    rng, pods = random.Random(seed), []
    for at in range(size):
        name = f"node-{at:04d}"
        for card in rng.sample(range(8), rng.randrange(8)):
            cores, gib = rng.choice((10, 20, 30, 50, 80)), rng.choice((4, 8, 16, 40))
            chosen = {
                placements.OWN: f"c0=GPU-{name}-{card}:{cores}:{gib << 10}", placements.OWN_NODE: name,
            }  # fmt: skip
            pods.append(pod_object(f"p{len(pods)}", share(cores, gib * GIB), node=name, annotations=chosen))
    return pods


def _filters(size: int, requests: int) -> list[Result]:
    site = Site(*_nodes(size), bind=True)
    for pod in _shares(size):
        site.show({**pod, "metadata": {**pod["metadata"], "resourceVersion": "1"}})
    for name in site.names():
        site.cluster.held(name)
    main.spare_the_collector()
    head = f"extender.filter.{size}"
    cold = {
        "cold_share": [_cold(site, 30 + at, 0) for at in range(COLD)],
        "cold_whole": [_cold(site, 0, 1 + at % 8) for at in range(COLD)],
    }
    main.spare_the_collector()
    warm = [quantiles(figures, n=100) for figures in zip(*_warm(site, requests))]
    what = f"a known shape, {CHANGED} nodes changed before each of {requests} requests"
    figures: dict[str, tuple[list[float], str]] = {}
    for at, suffix in enumerate(("ms", "cpu_ms")):
        for name, taken in cold.items():
            figures[f"{name}_{suffix}"] = [one[at] for one in taken], "a shape that is new"
        figures[f"p50_{suffix}"] = [warm[at][49]], what
        figures[f"p99_{suffix}"] = [warm[at][98]], what
    return [
        Result.of(f"{head}.{name}", "ms", BARS.get(f"{head}.{name}"), values, text)
        for name, (values, text) in figures.items()
    ]


def _cold(site: Site, cores: int, cards: int) -> tuple[float, float]:
    name = f"cold-{cores}-{cards}-{site.server.version}"
    pod = site.add(pod_object(name, share(cards * 100, 0) if cards else share(cores, 3 * GIB)))
    site.restart_answers()
    return _asked(site, args(pod, site.names()))


def _warm(site: Site, requests: int) -> list[tuple[float, float]]:
    rng = random.Random(7)
    pod = site.add(pod_object("warm", share(25, 3 * GIB)))
    body = args(pod, site.names())
    _asked(site, body)
    figures = []
    for number in range(requests):
        for at in range(CHANGED):
            name = rng.choice(site.names())
            text = {placements.OWN: f"c0=GPU-{name}-{at % 8}:5:1024", placements.OWN_NODE: name}
            site.add(pod_object(f"new-{number}-{at}", share(5, GIB), node=name, annotations=text))
        figures.append(_asked(site, body))
    return figures


def _asked(site: Site, body: bytes) -> tuple[float, float]:
    """Milliseconds from the bytes of a request to those of its answer, and those of processor time."""
    begun, used = time.perf_counter(), time.process_time()
    found = wire.encode(site.service.filter(body))
    taken = (time.perf_counter() - begun) * 1e3, (time.process_time() - used) * 1e3
    assert b'"Error"' not in found, found[:500]
    return taken


def _process(size: int, binds: int) -> list[Result]:
    with FakeApiServer() as api, tempfile.TemporaryDirectory() as directory:
        for node in _nodes(size):
            api.put_node(node["metadata"]["name"], **node["metadata"]["annotations"])
        for pod in _shares(size):
            api.put_whole_pod(pod)
        waiting = [pod_object(f"bind-{at}", share(20, GIB)) for at in range(binds)]
        for pod in waiting:
            api.put_whole_pod(pod)
        kubeconfig = api.kubeconfig(Path(directory) / "kubeconfig")
        with ExtenderProcess(kubeconfig, Path(directory) / "log", "--bind") as extender:
            extender.ready(patience=600)
            for cores in range(20, 40):
                pod = pod_object(f"ask-{cores}", share(cores, GIB))
                api.put_whole_pod(pod)
                extender.ask("/scheduler/filter", json.loads(args(pod, [f"node-{at:04d}" for at in range(size)])))
            process = psutil.Process(extender.process.pid)
            used = sum(process.cpu_times()[:2])
            rate = _binds(api, extender, waiting)
            each = (sum(process.cpu_times()[:2]) - used) * 1e3 / binds
            rss = process.memory_info().rss / (1 << 20)
    return [
        Result.of(
            "extender.binds_per_s", f"1/s{AT_LEAST}", 100, [rate], f"{binds} bindings, 8 at a time, 2 ms a write"
        ),
        Result.of("extender.bind_cpu_ms", "ms", None, [each], "processor time of the extender, of one binding"),
        Result.of("extender.rss_mib", "MiB", 400, [rss], f"{size} nodes, 20 shapes, after the bindings"),
    ]


def _binds(api: FakeApiServer, extender: ExtenderProcess, pods: list[Any]) -> float:
    api.delay = 0.002
    free = [f"node-{at:04d}" for at in range(len(pods))]

    def bind(at: int) -> str:
        meta = pods[at]["metadata"]
        body = {"PodName": meta["name"], "PodNamespace": "default", "PodUID": uid_of(meta["name"]), "Node": free[at]}
        return str(extender.ask("/scheduler/bind", body)[1]["Error"])

    begun = time.perf_counter()
    with ThreadPoolExecutor(8) as threads:
        errors = [error for error in threads.map(bind, range(min(len(pods), len(free)))) if error]
    taken = time.perf_counter() - begun
    refused = [error for error in errors if "no card fits" not in error]
    assert not refused, refused[0]
    return (len(pods) - len(errors)) / taken
