"""Group `exporter`: the time of a scrape, what 20,000 containers that come and go leave behind, and a flood.

vgpud's record has 64 containers on 8 cards, with every figure known and the metrics of gpu-manager besides; a writer
replaces it every 2 s, as vgpud does. The exporter is a process of its own, scraped over HTTP once each 50 ms. `grow`:
the record has 64 containers that nobody has seen before, again and again, and each record is scraped. `flood`: 2,000
half-open, slow and garbage connections from 64 addresses, those opened again that the exporter closes, while another
address scrapes and kubelet's stand-in calls the device plugin of a simulated node beside it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles

import floods
import kubelet_api
import plugin as plugin_bench
import psutil
import round_records
from kubelet import Kubelet
from kubelet_api import message
from kubelet_devices import Endpoint
from plugin_process import Plugin
from results import BenchError, Result

from vgpu.config.settings import Settings
from vgpu.plugin.exporter.server import Answers

CARDS, CONTAINERS = 8, 64
MOST_SERIES = 60  #: for each container
SCRAPES = 400
PAUSE = 0.05
ROUND = 2.0
COME_AND_GO = 20_000
PROGRAM = "from vgpu.plugin.exporter.command import main; main()"
BARS = {
    "exporter.scrape.p99_ms": 20,
    "exporter.grow.rss_mib": 8,
    "exporter.grow.descriptors": 0,
    "exporter.grow.series": 0,
    "exporter.flood.scrape_max_ms": 2000,
    "exporter.flood.allocate_p99_ms": 1000,
    "exporter.flood.list_p99_ms": 1000,
    "exporter.flood.log_bytes": 100_000,
}
CONNECTIONS, ADDRESSES, SEED, CALLS = 2000, 64, 32, 300


class Process:
    """vgpu-exporter on a record in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.run_dir = str(directory / "run")
        config = directory / "config.json"
        settings = Settings({"paths.run": self.run_dir, "metrics.compat": ["gpu-manager"]})
        config.write_text(json.dumps(settings.record()), encoding="ascii")
        self.write(0)
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "--config", str(config), "--listen", "127.0.0.1:0"],
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        if "address=" not in line:
            raise BenchError(f"vgpu-exporter does not listen: {line.strip()}")
        self.address = line.split("address=")[1].split()[0].strip('"')

    def write(self, first: int) -> None:
        """A record of containers with the numbers from `first` on."""
        made = round_records.record(cards=CARDS)
        made["containers"] = [
            round_records.container(number, [round_records.share(number % CARDS)])
            for number in range(first, first + CONTAINERS)
        ]
        round_records.write(self.run_dir, made)

    def scrape(self) -> bytes:
        with urllib.request.urlopen(f"http://{self.address}/metrics", timeout=30) as answer:
            return bytes(answer.read())

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)


def measure(scrapes: int = SCRAPES, come_and_go: int = COME_AND_GO) -> list[Result]:
    """All results of the group."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # /run/vgpu lies in memory, too
    with tempfile.TemporaryDirectory(dir=memory) as directory:
        one = Process(Path(directory))
        try:
            return [*_scrapes(one, scrapes), *_growth(one, come_and_go), *_flood(one, Path(directory))]
        finally:
            one.stop()


def _scrapes(one: Process, scrapes: int) -> list[Result]:
    text = one.scrape().decode()
    series = sum('pod="web-3"' in line or 'pod_name="web-3"' in line for line in text.splitlines())
    if series > MOST_SERIES:
        raise BenchError(f"a container has {series} series, and may have {MOST_SERIES}")
    took, written = [], time.monotonic()
    for _ in range(scrapes):
        if time.monotonic() - written >= ROUND:
            one.write(0)
            written = time.monotonic()
        begun = time.perf_counter()
        one.scrape()
        took.append((time.perf_counter() - begun) * 1000)
        time.sleep(PAUSE)
    cuts = quantiles(took, n=100)
    answers, made = Answers(Settings({"paths.run": one.run_dir, "metrics.compat": ["gpu-manager"]})), []
    for _ in range(20):
        one.write(0)
        begun = time.perf_counter()
        answers.metrics()
        made.append((time.perf_counter() - begun) * 1000)
    return [
        _result("exporter.scrape.p99_ms", "ms", [cuts[98]], f"p99 of {scrapes} scrapes of {text.count(chr(10))} lines"),
        _result("exporter.scrape.p50_ms", "ms", [cuts[49]], "their median"),
        _result("exporter.render_ms", "ms", made, "reading a new record and making its answer, beforehand"),
        _result("exporter.series", "series", [series], f"of one container, at most {MOST_SERIES}"),
    ]


def _growth(one: Process, come_and_go: int) -> list[Result]:
    process = psutil.Process(one.process.pid)
    steps = range(CONTAINERS, come_and_go + CONTAINERS, CONTAINERS)
    warm = len(steps) // 4  # the remembered labels are full by then
    begun: tuple[int, int, int] = (0, 0, 0)
    for step, first in enumerate(steps):
        one.write(first)
        lines = _scraped_anew(one, first)
        if step == warm:
            begun = lines, process.memory_info().rss, _descriptors(process)
    what = f"what {come_and_go} containers that come and go add"
    return [
        _result("exporter.grow.series", "series", [abs(lines - begun[0])], what),
        _result("exporter.grow.rss_mib", "MiB", [max(process.memory_info().rss - begun[1], 0) / (1 << 20)], what),
        _result("exporter.grow.descriptors", "descriptors", [max(_descriptors(process) - begun[2], 0)], what),
    ]


def _flood(one: Process, directory: Path) -> list[Result]:
    """Call plugin and exporter in turn under the flood. Ends the exporter, for its log."""
    command = [sys.executable, Path(floods.__file__), one.address, *map(str, (CONNECTIONS, ADDRESSES, SEED))]
    with (
        _plugin(directory) as endpoint,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as flood,
    ):
        assert flood.stdin is not None
        assert flood.stdout is not None
        flood.stdout.readline()
        took = [(_allocate(endpoint), _list(endpoint), _timed(one.scrape)) for _ in range(CALLS)]
        descriptors = psutil.Process(one.process.pid).num_fds()
        flood.stdin.close()
        opened = int(flood.stdout.read())
    one.stop()
    assert one.process.stderr is not None
    log = one.process.stderr.read()
    allocate, list_and_watch, scrape = zip(*took)
    what = f"of {CALLS} under {CONNECTIONS} connections, {opened} in all"
    return [
        _result("exporter.flood.scrape_max_ms", "ms", [max(scrape)], f"the longest {what}"),
        _result("exporter.flood.scrape_p99_ms", "ms", [quantiles(scrape, n=100)[98]], f"p99 {what}"),
        _result("exporter.flood.allocate_p99_ms", "ms", [quantiles(allocate, n=100)[98]], f"p99 {what}"),
        _result("exporter.flood.list_p99_ms", "ms", [quantiles(list_and_watch, n=100)[98]], f"p99 {what}"),
        _result("exporter.flood.descriptors", "descriptors", [descriptors], "of the exporter meanwhile"),
        _result("exporter.flood.log_bytes", "B", [len(log)], "of the exporter's log"),
    ]


@contextmanager
def _plugin(directory: Path) -> Iterator[Endpoint]:
    """A registered plugin's resource of cores."""
    made = plugin_bench.Node(directory / "flooded")
    made.set_values({"kubernetes.api": "never"})
    kubelet = Kubelet(made.directory / "k", plugin_bench.NoRuntime()).start()
    plugin = Plugin(made.node).start()
    try:
        kubelet.ready(plugin_bench.CORE, plugin_bench.MEMORY)
        yield kubelet.devices.endpoints[plugin_bench.CORE]
    finally:
        plugin.kill()
        kubelet.end()


def _timed(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return (time.perf_counter() - begun) * 1000


def _allocate(endpoint: Endpoint) -> float:
    (first, *_) = endpoint.manager.healthy[plugin_bench.CORE]
    one = message("v1beta1.ContainerAllocateRequest")(devices_ids=[first])
    request = message("v1beta1.AllocateRequest")(container_requests=[one])
    return _timed(lambda: endpoint.call("Allocate", request, "AllocateResponse"))


def _list(endpoint: Endpoint) -> float:
    def first() -> None:
        path = "/v1beta1.DevicePlugin/ListAndWatch"
        stream = kubelet_api.stream(endpoint.channel, path, message("v1beta1.Empty")(), "v1beta1.ListAndWatchResponse")
        next(iter(stream))
        stream.cancel()

    return _timed(first)


def _descriptors(process: psutil.Process) -> int:
    """Its open files without the connection of a scrape that has just ended: the fewest within two seconds."""
    counts = []
    for _ in range(20):
        counts.append(process.num_fds())
        time.sleep(0.1)
    return min(counts)


def _scraped_anew(one: Process, first: int) -> int:
    """The lines of a scrape that shows the record with container `first`."""
    wanted = f'pod="web-{first}"'.encode()
    end = time.monotonic() + 30
    while time.monotonic() < end:
        text = one.scrape()
        if wanted in text:
            return text.count(b"\n")
        time.sleep(0.01)
    raise BenchError("a new record is not shown within 30 s")


def _result(name: str, unit: str, figures: list[float], what: str) -> Result:
    return Result.of(name, unit, BARS.get(name), figures, what)
