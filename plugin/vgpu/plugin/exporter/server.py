"""The exporter over HTTP: /metrics, /metric, /usage, /version and /healthz.

Belongs here: paths, forms of an answer, and the thread of the server. Its connections have bounds of their own
(vgpu.plugin.exporter.connections). An answer is made once for each round of vgpud,
beforehand where somebody scrapes, so that many scrapers cost no more than one and none waits. Not here: what it says.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from importlib import metadata

from aiohttp import web
from prometheus_client.core import Metric

from vgpu.config import paths
from vgpu.config.errors import VgpuError
from vgpu.config.settings import Settings
from vgpu.node.service import single_instance
from vgpu.node.service.log import Log
from vgpu.plugin.exporter import families, page, peer_families, usage
from vgpu.plugin.exporter.connections import PATIENCE, Connections, Handler, MinuteLog
from vgpu.plugin.exporter.exposition import text_of
from vgpu.plugin.exporter.snapshot import Snapshot, Source

START = 10.0  #: seconds in which the server listens
STOP = 5.0  #: seconds that answers in progress have
PACE = 0.25  #: seconds between two looks for a new round
WATCHED = 150.0  #: seconds after a scrape in which the next one's answer is made beforehand
TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Answers:
    """The answers for one node."""

    def __init__(self, settings: Settings, source: Source | None = None) -> None:
        self.wanted = settings.texts("metrics.compat")
        self.source = source or Source(settings.run_dir, os.environ.get("NODE_NAME") or settings.node)
        self.version = metadata.version("vgpu")
        self._kept: dict[str, tuple[object, bytes]] = {}
        self._asked = -WATCHED
        self._prepared = -WATCHED

    def prepare(self) -> None:
        """Make the answer to the next scrape, while somebody scrapes. One thread may call this again and again."""
        now = time.monotonic()
        if now - self._asked < WATCHED:
            self._metrics()
            self._prepared = now

    def metrics(self) -> bytes:
        """The prepared answer if there is one, so that a scrape does not wait for its making."""
        self._asked = time.monotonic()
        if self._asked - self._prepared < 2 * PACE:
            return self._kept["metrics"][1]
        return self._metrics()

    def _metrics(self) -> bytes:
        snapshot, signature = self.source.look()
        return self._once("metrics", signature, lambda: text_of(self._families(snapshot)))

    def usage(self) -> bytes:
        snapshot, signature = self.source.look()
        return self._once("usage", signature, lambda: json.dumps(usage.as_json(snapshot)).encode())

    def page(self) -> bytes:
        snapshot, signature = self.source.look()
        return self._once("page", signature, lambda: page.as_page(snapshot).encode())

    def _once(self, name: str, signature: object, make: Callable[[], bytes]) -> bytes:
        if name not in self._kept or self._kept[name][0] != signature:
            self._kept[name] = signature, make()
        return self._kept[name][1]

    def _families(self, snapshot: Snapshot) -> Iterator[Metric]:
        yield from families.of_snapshot(snapshot, self.version)
        yield from peer_families.of_snapshot(snapshot, self.wanted)


def application(answers: Answers, connections: Connections) -> web.Application:
    """The HTTP application."""

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=answers.metrics(), headers={"Content-Type": TEXT})

    async def show_usage(request: web.Request) -> web.Response:
        if "text/html" in request.headers.get("Accept", ""):
            headers = {"Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": page.POLICY}
            return web.Response(body=answers.page(), headers=headers)
        return web.Response(body=answers.usage(), headers={"Content-Type": "application/json"})

    async def version(_: web.Request) -> web.Response:
        return web.json_response({"version": answers.version})

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    app = web.Application(client_max_size=1 << 10, middlewares=[connections.middleware])
    handlers: dict[str, Handler] = {
        "/metrics": metrics, "/metric": metrics, "/usage": show_usage, "/version": version, "/healthz": healthz,
    }  # fmt: skip
    for path, handler in handlers.items():
        app.router.add_get(path, handler)
    return app


class Exporter:
    """Listens at metrics.listen until `close`, in a thread of its own.

    VgpuError when another exporter of this node runs, or the address cannot be had. `log` gets one line a minute.
    """

    def __init__(self, settings: Settings, listen: str, log: Log | None = None) -> None:
        self.answers = Answers(settings)
        self.listen = listen
        self.minute = MinuteLog(log or Log(name="vgpu-exporter"))
        self.address = ""
        self._problem = ""
        self._lock = _take_lock(settings.run_dir)
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._ended: asyncio.Event | None = None  # before Python 3.10 it belongs to the loop in which it is made
        self._thread = threading.Thread(target=self._run, name="exporter", daemon=True)
        self._thread.start()
        self._started.wait(START)
        if not self.address:
            self.close()
            found = self._problem or "no answer"
            raise VgpuError(f"metrics.listen {listen}", expected="an address to listen at", found=found,
                            do="free the address or change metrics.listen")  # fmt: skip

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._end)
        self._thread.join()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _end(self) -> None:
        if self._ended is not None:
            self._ended.set()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._started.set()
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    async def _serve(self) -> None:
        ended = self._ended = asyncio.Event()
        self._loop.set_exception_handler(lambda _, context: self.minute.note(str(context["message"])))
        connections = Connections(self._loop, self.minute)
        app = application(self.answers, connections)
        logger = self.minute.as_logger()
        runner = web.AppRunner(app, access_log=None, keepalive_timeout=PATIENCE, logger=logger)
        await runner.setup()
        try:
            host, _, port = self.listen.rpartition(":")
            assert runner.server is not None
            bound = connections.listen(host.strip("[]"), int(port), runner.server)
            self.address = f"{bound[0]}:{bound[1]}"
            self._started.set()
            while not ended.is_set():
                await self._loop.run_in_executor(None, self.answers.prepare)
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(ended.wait(), PACE)
        except OSError as error:
            self._problem = error.strerror or str(error)
        finally:
            connections.close()
            await asyncio.wait_for(runner.cleanup(), STOP)


def _take_lock(run_dir: str) -> int:
    path = paths.exporter_lock(run_dir)
    do = "run as root, or by the group that the setting metrics.group names"
    lock = single_instance.take(path, mode=0o700, do=do)
    if lock < 0:
        raise VgpuError(path, expected="to be this node's exporter", found="another one, which is running")
    return lock
