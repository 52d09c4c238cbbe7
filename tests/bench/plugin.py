"""Group `plugin`: how long kubelet waits for the device plugin, and what the plugin costs the node.

The kubelet is the tests' fake one, in this process: real sockets, real gRPC, kubelet's message limit. The plugin is a
process of its own on a simulated node with eight H200. Each round has a plugin of its own and gives one figure.

`plugin.allocate.p99_ms` is the 99th percentile of ALLOCATIONS calls over the socket, less the 99th percentile of as
many grants that the benchmark itself writes to the same disk, alternating with the calls: temporary file, fsync,
rename, fsync of the directory. Other figures have the whole call with the grants on a tmpfs, where fsync costs nothing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles

import nodes
from daemons import wait_for
from fake_apiserver import FakeApiServer
from kubelet import Kubelet
from kubelet_api import message
from kubelet_devices import Endpoint
from kubelet_runtimes import Runtime
from plugin_process import Plugin
from results import BenchError, Result

from vgpu.config import inventory
from vgpu.config.errors import VgpuError
from vgpu.node.service import kubelet_resources

ROUNDS = 7
ALLOCATIONS = 300
IDS = 20  # of 256 MiB each
PROFILE = "h200x8"
CORE, MEMORY = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"
UNITS = (1, 2, 4, 8, 16, 32, 64, 128)  # MiB
MIB = 1 << 20
READY = 60.0

Figures = dict[str, list[float]]


def measure(rounds: int = ROUNDS) -> list[Result]:
    """All results of the group."""
    if os.geteuid() != 0:
        raise BenchError("needs root: grants are root's")
    figures: Figures = {}
    with _directory(None) as disk, _directory("/dev/shm") as memory:
        node = Node(disk)
        unit = node.smallest_unit()
        print(f"grants on {disk}, then on a tmpfs; smallest memory unit that fits: {unit} MiB; {_load()}")
        for _ in range(rounds):
            _add(figures, node.round())
            _add(figures, node.round(**{"paths.state": str(memory / "state")}), only=("allocate",), suffix="_tmpfs")
            _add(figures, node.round(**{"resources.memory_unit": unit * MIB}), only=("list",), suffix="_smallest")
            _add(figures, node.round(api=True), only=("rss",), suffix="_api")
        print(f"done; {_load()}")
    return results(figures, unit)


def results(figures: Figures, unit: int) -> list[Result]:
    added = [call - raw for call, raw in zip(figures["allocate_ms"], figures["fsync_ms"])]
    total = "the plugin and its child that watches the cards"
    return [
        Result.of("plugin.allocate.p99_ms", "ms", 5, added, "p99 of Allocate less p99 of writing a grant alone"),
        Result.of(
            "plugin.allocate.whole_p99_ms", "ms", None, figures["allocate_ms"], "p99 of Allocate, fsyncs included"
        ),
        Result.of("plugin.allocate.fsync_p99_ms", "ms", None, figures["fsync_ms"], "p99 of writing a grant by hand"),
        Result.of(
            "plugin.allocate.tmpfs_p99_ms", "ms", None, figures["allocate_ms_tmpfs"], "Allocate, grants on tmpfs"
        ),
        Result.of("plugin.allocate.tmpfs_median_ms", "ms", None, figures["allocate_median_ms_tmpfs"], "its median"),
        Result.of("plugin.list_and_watch.bytes", "B", 4 << 20, figures["list_bytes"], "8 x 141 GiB in 256 MiB"),
        Result.of("plugin.list_and_watch.ms", "ms", None, figures["list_ms"], "from ListAndWatch to the list, 256 MiB"),
        Result.of(
            "plugin.list_and_watch.smallest_bytes", "B", 4 << 20, figures["list_bytes_smallest"], f"in {unit} MiB"
        ),
        Result.of("plugin.list_and_watch.smallest_ms", "ms", None, figures["list_ms_smallest"], f"in {unit} MiB"),
        Result.of(
            "plugin.start_to_registered_s",
            "s",
            1,
            figures["start_s"],
            "from exec to the Register call of the last resource",
        ),
        Result.of("plugin.rss_mib", "MiB", 80, figures["rss_mib"], f"resident after {ALLOCATIONS} allocations"),
        Result.of("plugin.rss_api_mib", "MiB", 130, figures["rss_mib_api"], "the same with access to an API server"),
        Result.of("plugin.rss_all_mib", "MiB", None, figures["rss_all_mib"], f"proportional (PSS), {total}"),
    ]


def _add(figures: Figures, found: dict[str, float], only: tuple[str, ...] = (), suffix: str = "") -> None:
    for name, value in found.items():
        if not only or name.startswith(only):
            figures.setdefault(name + suffix, []).append(value)


class Node:
    """The node below `directory`; each round starts from nothing."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.node = nodes.SimulatedNode(
            directory / "node", PROFILE,
            **{
                "plugin.socket_dir": str(directory / "k/device-plugins"),
                "plugin.pod_resources_socket": str(directory / "k/pod-resources/kubelet.sock"),
                "plugin.http": "", "metrics.listen": "",
            },
        )  # fmt: skip
        self.usual = dict(self.node.settings.record()["settings"])  # type: ignore[call-overload]
        self.node.take_inventory()

    def smallest_unit(self) -> int:
        """MiB of the smallest unit of memory that fits into kubelet's message limit."""
        cards = inventory.read(self.node.settings.run_dir).cards
        for unit in UNITS:
            self.set_values({"resources.memory_unit": unit * MIB})
            with contextlib.suppress(VgpuError):
                kubelet_resources.advertised(self.node.settings, cards)
                return unit
        raise BenchError("no memory unit fits into kubelet's message limit")

    def set_values(self, values: dict[str, object]) -> None:
        self.node.settings = type(self.node.settings)({**self.usual, **values}, "testnode", "bench")
        self.node.write_settings()

    def round(self, api: bool = False, **settings: object) -> dict[str, float]:
        """Figures by name."""
        with self._access(api) as access:
            self.set_values({**access, **settings})
            kubelet = Kubelet(self.directory / "k", NoRuntime()).start()
            started = time.monotonic()
            plugin = Plugin(self.node).start()
            try:
                return self._measured(kubelet, plugin, started)
            except AssertionError as error:
                raise BenchError(f"{error}: {plugin.text()[-2000:]}") from None
            finally:
                plugin.kill()
                kubelet.end()
                shutil.rmtree(self.directory / "k")
                shutil.rmtree(self.grants, ignore_errors=True)

    @contextmanager
    def _access(self, api: bool) -> Iterator[dict[str, object]]:
        if not api:
            yield {"kubernetes.api": "never"}
            return
        with FakeApiServer() as server:
            server.put_node("testnode")
            config = server.kubeconfig(self.directory / "kubeconfig")
            yield {"kubernetes.api": "always", "kubernetes.kubeconfig": config}

    @property
    def grants(self) -> Path:
        return Path(self.node.settings.state_dir) / "grants"

    def _measured(self, kubelet: Kubelet, plugin: Plugin, started: float) -> dict[str, float]:
        kubelet.ready(CORE, MEMORY)
        last = max(at for at, _ in kubelet.devices.registrations)
        endpoint = kubelet.devices.endpoints[MEMORY]
        ids = sorted(kubelet.devices.healthy[MEMORY])
        calls, raw = self._allocations(endpoint, ids)
        wait_for(lambda: _children(plugin.pid), READY, "the child that watches the cards has not started")
        time.sleep(1)  # the plugin starts more services after registration
        family = [plugin.pid, *_children(plugin.pid)]
        return {
            "start_s": last - started,
            "allocate_ms": 1000 * _p99(calls),
            "allocate_median_ms": 1000 * median(calls),
            "fsync_ms": 1000 * _p99(raw),
            "list_bytes": endpoint.list_bytes,
            "list_ms": 1000 * endpoint.list_seconds,
            "rss_mib": plugin.resident() / MIB,
            "rss_all_mib": sum(_proportional(pid) for pid in family) / MIB,
        }

    def _allocations(self, endpoint: Endpoint, ids: list[str]) -> tuple[list[float], list[float]]:
        """Seconds of each Allocate, and of each grant written by hand."""
        calls, raw = [], []
        beside = self.grants.with_name("by-hand")
        beside.mkdir(parents=True)
        record = b""
        for number in range(ALLOCATIONS):
            first = number * IDS % (len(ids) - IDS)
            one = message("v1beta1.ContainerAllocateRequest")(devices_ids=ids[first : first + IDS])
            request = message("v1beta1.AllocateRequest")(container_requests=[one])
            started = time.perf_counter()
            endpoint.call("Allocate", request, "AllocateResponse")
            calls.append(time.perf_counter() - started)
            record = record or next(self.grants.glob("*.json")).read_bytes()
            raw.append(_write(beside / f"{number}.json", record))
        shutil.rmtree(beside)
        return calls, raw


def _write(path: Path, data: bytes) -> float:
    """Write a grant durably; return the seconds."""
    started = time.perf_counter()
    temporary = path.with_suffix(".tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(fd, data)
    os.fsync(fd)
    os.close(fd)
    os.rename(temporary, path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(directory)
    os.close(directory)
    return time.perf_counter() - started


def _p99(seconds: list[float]) -> float:
    return quantiles(seconds, n=100)[98]


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for path in tasks for child in path.read_text().split()]


def _proportional(pid: int) -> int:
    """Resident bytes; memory that other processes share counts in proportion (PSS)."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    return 0


class NoRuntime(Runtime):
    """A container runtime without pods."""


@contextmanager
def _directory(above: str | None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="vgpu-bench-", dir=above) as name:
        yield Path(name)


def _load() -> str:
    return "load " + Path("/proc/loadavg").read_text().rpartition(" ")[0]
