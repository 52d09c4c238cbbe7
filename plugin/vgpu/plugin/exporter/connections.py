"""The bounds on the exporter's connections: how many, of whom, for how long, and what the log says of them.

Belongs here: accepting connections for aiohttp, and closing them. Every pod of a cluster may reach the exporter, so
many connections must neither take its descriptors nor keep Prometheus out. Not here: what the server answers.

At most ALL connections are open, and EACH of one address. A further one of that address is closed at once, before it
costs more than its descriptor. When ALL are open, an address that has fewer than another still gets one, and the
exporter closes one for it: of the addresses that have the most, the connection that has been without a finished request
for the longest. So whoever has few connections, as Prometheus has, keeps them and gets in, and a flood is closed at
once. The head of a request has HEAD seconds, and a connection that sends several at once is closed after the first.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from aiohttp import web

from vgpu.config.errors import escaped
from vgpu.node.service.log import Log

ALL, EACH = 64, 8
HEAD = 5.0  #: seconds from a connection's or a request's first byte to the end of its head
PATIENCE = 30.0  #: seconds for an answer, and for an idle connection
BACKLOG = 4096  #: connections that the kernel keeps until they are accepted; it drops more, which come again after 1 s
ADMITTED, CLOSED = 8, 512  #: connections that are admitted, and closed at once, before others get their turn
PAUSE = 0.1  #: seconds until the next attempt when the kernel gives no connection
MINUTE = 60.0

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class MinuteLog(logging.Handler):
    """Writes one line in MINUTE seconds to `log`. The next line says how many were left out before it."""

    def __init__(self, log: Log, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.log = log
        self.clock = clock
        self._last = -MINUTE
        self._left_out = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.note(record.getMessage())

    def note(self, text: str) -> None:
        if self.clock() - self._last < MINUTE:
            self._left_out += 1
            return
        more = f" ({self._left_out} lines before it were left out)" if self._left_out else ""
        self._last, self._left_out = self.clock(), 0
        self.log.warning(escaped(text[:200]) + more)

    def as_logger(self) -> logging.Logger:
        """A logger of its own for a library, which writes nowhere else."""
        logger = logging.Logger("vgpu.exporter", logging.WARNING)
        logger.addHandler(self)
        return logger


class Connection(asyncio.Protocol):
    """One connection, before aiohttp's own protocol `inner`, which gets everything that happens."""

    def __init__(self, connections: Connections, address: str, inner: web.RequestHandler) -> None:
        self.connections = connections
        self.address = address
        self.inner = inner
        self.since = connections.loop.time()  #: of its last finished request, or of its beginning
        self.transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._idle = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.inner.connection_made(transport)
        self._limit(HEAD)

    def data_received(self, data: bytes) -> None:
        if self._idle:
            self._limit(HEAD)
        self._idle = False
        self.inner.data_received(data)

    def eof_received(self) -> bool | None:
        self.inner.eof_received()
        return None

    def pause_writing(self) -> None:
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        self.inner.resume_writing()

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.connections.left(self)
        self.inner.connection_lost(exc)

    def begun(self) -> bool:
        """The head of a request is complete. Whether it may be answered: not if it came together with the last one.

        No scraper sends several at once, and their answers would keep others waiting.
        """
        if self._idle:
            self.close()
            return False
        self._limit(PATIENCE)
        return True

    def finished(self) -> None:
        self.since, self._idle = self.connections.loop.time(), True
        self._limit(PATIENCE)

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def _limit(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.connections.loop.call_later(seconds, self.close)


class Connections:
    """The connections of one server. All calls come from the thread of `loop`. Closed connections go to `minute`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, minute: MinuteLog) -> None:
        self.loop = loop
        self.minute = minute
        self.open: dict[object, Connection] = {}  # aiohttp's protocol -> its connection
        self.counts: Counter[str] = Counter()  # of each address that has one
        self.tasks: set[asyncio.Task[object]] = set()  # they become connections
        self._listeners: list[socket.socket] = []
        self._server: Callable[[], web.RequestHandler] | None = None

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        connection = self.open.get(request.protocol)
        if connection is None:
            return await handler(request)
        if not connection.begun():
            return web.Response(status=429)
        try:
            return await handler(request)
        finally:
            connection.finished()

    def listen(self, host: str, port: int, server: Callable[[], web.RequestHandler]) -> tuple[str, int]:
        """Accept connections for `server` at all addresses of `host`; returns the first. OSError without an address."""
        self._server = server
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, address in dict.fromkeys((item[0], item[4]) for item in found):
            listener = socket.create_server(address, family=family, backlog=BACKLOG)
            self._listeners.append(listener)
            listener.setblocking(False)
            self.loop.add_reader(listener, self._accept, listener)
        name = self._listeners[0].getsockname()
        return str(name[0]), int(name[1])

    def close(self) -> None:
        """Accept no more. aiohttp closes the connections."""
        for listener in self._listeners:
            self.loop.remove_reader(listener)
            listener.close()
        self._listeners = []

    def left(self, connection: Connection) -> None:
        if self.open.pop(connection.inner, None) is None:
            return
        self.counts[connection.address] -= 1
        if not self.counts[connection.address]:
            del self.counts[connection.address]

    def _accept(self, listener: socket.socket) -> None:
        admitted = closed = 0
        while admitted < ADMITTED and closed < CLOSED:
            try:
                accepted, peer = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:  # the listener stays readable, so do not spin
                self.minute.note(f"no connection can be accepted: {error.strerror}")
                self.loop.remove_reader(listener)
                self.loop.call_later(PAUSE, self._again, listener)
                return
            if self._admit(accepted, str(peer[0])):
                admitted += 1
            else:
                closed += 1

    def _again(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            self.loop.add_reader(listener, self._accept, listener)

    def _admit(self, accepted: socket.socket, address: str) -> bool:
        """Whether the connection is admitted."""
        most = max(self.counts.values(), default=0) if len(self.open) >= ALL else EACH
        if self.counts.get(address, 0) >= most:
            accepted.close()
            self.minute.note(f"connections of {address} were closed: more than {EACH} of one address, or {ALL} in all")
            return False
        if len(self.open) >= ALL:
            self._make_room(most)
        assert self._server is not None
        connection = Connection(self, address, self._server())
        self.open[connection.inner] = connection
        self.counts[address] += 1
        accepted.setblocking(False)
        task: asyncio.Task[object] = self.loop.create_task(self._connect(connection, accepted))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return True

    async def _connect(self, connection: Connection, accepted: socket.socket) -> None:
        try:
            await self.loop.connect_accepted_socket(lambda: connection, accepted)
        except OSError:  # the client has gone
            self.left(connection)
            accepted.close()

    def _make_room(self, most: int) -> None:
        candidates = [connection for connection in self.open.values() if self.counts[connection.address] == most]
        oldest = min(candidates, key=lambda connection: connection.since)
        self.minute.note(f"a connection of {oldest.address} was closed for another address: more than {ALL} in all")
        self.left(oldest)
        with contextlib.suppress(OSError):
            oldest.close()
