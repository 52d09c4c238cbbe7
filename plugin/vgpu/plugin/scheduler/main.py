"""The process vgpu-scheduler-extender: elects a leader, follows the cluster, and answers kube-scheduler.

Belongs here: the order of starting and stopping. A replica follows the cluster from the moment it leads, so that it
lists anew; one that loses its lease ends, and its container's next life begins as a follower. A thread that fails ends
the process as well, since its part of the state would not be current any more. One that is told to end answers the
requests under way before it gives the lease up, so that the next leader's list has their bindings.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from aiohttp import web

from vgpu.config.dialects import placements
from vgpu.config.errors import VgpuError
from vgpu.node.service.log import Conditions, Log
from vgpu.plugin.apiserver.client import Api, ApiError, Object
from vgpu.plugin.scheduler import quota, watches
from vgpu.plugin.scheduler.cluster import Cluster
from vgpu.plugin.scheduler.leader import Leader
from vgpu.plugin.scheduler.options import Options
from vgpu.plugin.scheduler.quota import Quotas
from vgpu.plugin.scheduler.server import Server, Tls
from vgpu.plugin.scheduler.service import Service

SETTLE = 5.0  #: seconds that decisions of an earlier process have to be bound before this one decides
TICK = 5.0


@dataclass
class Settings:
    """The command line and the configuration file."""

    host: str = "127.0.0.1"
    port: int = 3456
    kubeconfig: str = ""
    tls: Tls | None = None
    leader_elect: bool = False
    lease: tuple[str, str] = ("kube-system", "vgpu-scheduler-extender")
    quota_map: tuple[str, str] = ("kube-system", "gpuquota")
    assume_life: float = 300.0
    max_body: int = 256 << 20
    options: Options = field(default_factory=Options)
    master: str = ""  #: the API server's URL, "" for the kubeconfig's


def spare_the_collector() -> None:
    """Keep what lives as long as the process out of the garbage collector's rounds, which would delay requests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 1000)


class Extender:
    """One replica. `lost` is called when it cannot go on: the lease is lost, or a thread has failed."""

    def __init__(self, settings: Settings, api: Api, log: Log, lost: Callable[[], None]) -> None:
        self.settings = settings
        self.api = api
        self.log = log
        self.lost = lost
        self.conditions = Conditions(log)
        self.cluster = Cluster(settings.assume_life, settings.options.clock)
        self.service = Service(self.cluster, api, self.not_ready, settings.options)
        self.stopped = threading.Event()
        self.leader: Leader | None = None
        if settings.leader_elect:
            identity = f"{socket.gethostname()}_{os.getpid()}_{os.urandom(4).hex()}"
            self.leader = Leader(api, *settings.lease, identity, self.conditions)
        clock = settings.options.clock
        pods = watches.pods(self.cluster, self.conditions, settings.options)
        quotas = watches.quota_map(*settings.quota_map, self._take_quotas, self.conditions)
        self.watches = [watches.nodes(self.cluster, self.conditions, clock), pods, quotas]
        self.quota_problem = ""
        self.failure = ""  #: why this process ends, "" while it goes on
        self._has_quotas = False
        self._spared = False
        self._ready_from = 0.0
        self._settled = settings.options.bind

    def start(self) -> None:
        if self.leader is not None:
            self._thread("leader", self._lead)
        else:
            self._follow()

    def stop(self) -> None:
        self.stopped.set()
        for watch in self.watches:
            watch.stopped.set()
        if self.leader is not None:
            self.leader.stopped.set()
            self.leader.release()
        self.api.interrupt()

    def not_ready(self) -> str:
        """Why this replica may not answer now, "" where it may."""
        if self.failure:
            return self.failure
        if self.leader is not None and not self.leader.leads():
            return "another replica leads"
        for watch in self.watches:
            if watch.problem:
                return f"the state of {watch.path} is not current: {watch.problem}"
        if self.quota_problem:
            return self.quota_problem
        return "" if self._is_settled() else "decisions of an earlier process are being bound"

    def _lead(self) -> None:
        assert self.leader is not None
        self.leader.run(self._follow, lambda: self._fail("the lease could not be renewed in time"))

    def _follow(self) -> None:
        self.log.info("follows the cluster", bind=self.settings.options.bind)
        for watch in self.watches:
            self._thread(watch.path, lambda one=watch: one.run(self.api))  # type: ignore[misc]
        self._thread("expiry", self._expire)

    def _fail(self, text: str) -> None:
        self.failure = text
        self.log.warning(text)
        self.lost()

    def _thread(self, name: str, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except Exception as error:  # what nobody expected
                self._fail(f"the thread {name} has failed: {type(error).__name__}: {error}")

        threading.Thread(target=guarded, name=name, daemon=True).start()

    def _expire(self) -> None:
        while not self.stopped.wait(TICK):
            if self._is_current():
                if not self._spared:
                    self._spared = True
                    spare_the_collector()
                with self.cluster.guard:
                    late = self.cluster.expire(self.settings.options.clock())
                if late:
                    self.log.warning("decisions expired that nobody bound", pods=len(late))

    def _is_settled(self) -> bool:
        """Whether decisions of an earlier process that wait for their binding have had the time for it."""
        if self._settled:
            return True
        clock = self.settings.options.clock
        if not self._ready_from:
            self._ready_from = clock() + (SETTLE if self._has_unbound_decisions() else 0.0)
        self._settled = clock() >= self._ready_from
        return self._settled

    def _is_current(self) -> bool:
        return not any(watch.problem for watch in self.watches)

    def _has_unbound_decisions(self) -> bool:
        keys = (placements.OWN_NODE, placements.HAMI_NODE)
        with self.cluster.guard:
            pods = list(self.cluster.pods.values())
        return any(not pod.node and any(key in pod.pod.annotations for key in keys) for pod in pods)

    def _take_quotas(self, text: str | None) -> None:
        """The last map that could be read stays in force; without one, nothing is decided."""
        try:
            self.service.quotas, self.quota_problem = quota.parse(text) if text is not None else Quotas(), ""
            self._has_quotas = True
            self.conditions.set("quota", "")
        except VgpuError as error:
            if not self._has_quotas:
                self.quota_problem = f"no quotas could be read: {error}"
            self.conditions.set("quota", str(error))
            self._event(str(error))

    def _event(self, text: str) -> None:
        namespace, name = self.settings.quota_map
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        event: Object = {
            "apiVersion": "v1", "kind": "Event", "type": "Warning", "reason": "QuotaUnreadable", "message": text[:1000],
            "metadata": {"generateName": f"{name}.", "namespace": namespace},
            "involvedObject": {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "namespace": namespace},
            "source": {"component": "vgpu-scheduler-extender"}, "firstTimestamp": now, "lastTimestamp": now, "count": 1,
        }  # fmt: skip
        try:
            self.api.post(f"/api/v1/namespaces/{namespace}/events", event)
        except ApiError as error:
            self.conditions.set("events", f"no event could be written: {error}")


def run(settings: Settings) -> int:
    """Serve until SIGTERM; 1 when the lease was lost, or a thread failed."""
    log = Log(name="vgpu-scheduler-extender")
    api = Api(settings.kubeconfig, settings.master)
    return asyncio.run(_serve(settings, api, log))


async def _serve(settings: Settings, api: Api, log: Log) -> int:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    status = 0

    def end(code: int) -> None:
        nonlocal status
        status = code
        ended.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, 0)

    def lost() -> None:
        loop.call_soon_threadsafe(end, 1)

    extender = Extender(settings, api, log, lost)
    server = Server(extender.service, log, settings.tls, settings.max_body)
    runner = web.AppRunner(server.app, access_log=None)
    await runner.setup()
    context = settings.tls.context if settings.tls is not None else None
    site = web.TCPSite(runner, settings.host, settings.port, ssl_context=context)
    try:
        await site.start()
    except OSError as error:
        raise VgpuError(f"--address {settings.host}:{settings.port}", expected="an address to listen at",
                        found=str(error.strerror)) from None  # fmt: skip
    extender.start()
    bound = runner.addresses[0]
    log.info("listens", address=f"{bound[0]}:{bound[1]}", tls=context is not None)
    await ended.wait()
    await runner.cleanup()
    extender.stop()
    return status
