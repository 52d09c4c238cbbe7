"""The health endpoint: a Unix socket, one JSON object a line in, one a line out.

Belongs here: clients and their bounds. What the answers are is the daemon's. Root only, by the socket's mode. A client
is read only when it has taken its last answer, so a slow one costs its own buffer and nobody's time; silent ones go.
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections.abc import Callable

from vgpu.config import records
from vgpu.config.errors import VgpuError, shown

MAX_LINE = 4096
MAX_CLIENTS = 64
BACKLOG = 256
PAUSE = 0.05  #: seconds
PATIENCE = 10.0  #: seconds without progress after which a client is let go

Answer = Callable[[str], "dict[str, object]"]


class Server:
    """Listens at `path`; `answer` gets what a request asks for, and raises VgpuError for what it does not know."""

    def __init__(self, path: str, selector: selectors.BaseSelector, answer: Answer, clock: Callable[[], float]) -> None:
        self.path = path
        self.selector = selector
        self.answer = answer
        self.clock = clock
        self._clients: dict[int, _Client] = {}
        self._listener = _listen(path)
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def tick(self) -> None:
        """Let go of those that have not moved for a while."""
        late = self.clock() - PATIENCE
        for client in [client for client in self._clients.values() if client.moved <= late]:
            self._drop(client)

    def close(self) -> None:
        for client in list(self._clients.values()):
            self._drop(client)
        self.selector.unregister(self._listener)
        self._listener.close()
        if os.path.exists(self.path):
            os.unlink(self.path)

    def _accept(self, _mask: int) -> None:
        for _ in range(MAX_CLIENTS):
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:  # no more
                return
            except OSError:  # no descriptor left on this machine: the socket stays readable, so do not spin
                time.sleep(PAUSE)
                return
            self._welcome(connection)

    def _welcome(self, connection: socket.socket) -> None:
        if len(self._clients) >= MAX_CLIENTS:  # the one that has been still for longest makes room
            self._drop(min(self._clients.values(), key=lambda client: client.moved))
        connection.setblocking(False)
        client = _Client(connection, self.clock())
        self._clients[connection.fileno()] = client
        self.selector.register(connection, selectors.EVENT_READ, lambda mask: self._serve(client, mask))

    def _serve(self, client: _Client, mask: int) -> None:
        try:
            alive = client.write() if mask & selectors.EVENT_WRITE else client.read()
        except BlockingIOError:
            return
        except OSError:
            alive = False
        if alive:
            client.moved = self.clock()
            alive = self._answered(client)
        if not alive:
            self._drop(client)

    def _answered(self, client: _Client) -> bool:
        """Answer the next whole line, if the last answer is out; False when nothing is left to be done."""
        line, found, rest = client.received.partition(b"\n")
        if not client.waiting and found:
            client.received = rest
            client.waiting = _encoded(self._reply(bytes(line)))
        elif not client.waiting and len(client.received) > MAX_LINE:
            client.waiting = _encoded({"error": f"expected a line of at most {MAX_LINE} bytes, found more"})
            client.received, client.closing = bytearray(), True
        wanted = selectors.EVENT_WRITE if client.waiting else selectors.EVENT_READ
        self.selector.modify(client.connection, wanted, self.selector.get_key(client.connection).data)
        return bool(client.waiting) or not client.closing

    def _reply(self, line: bytes) -> dict[str, object]:
        try:
            request = records.decode_object(line, "request")
            asked = request.get("ask")
            if not isinstance(asked, str):
                raise VgpuError("request", expected='{"ask": "health"}', found=shown(request))
            return self.answer(asked)
        except VgpuError as error:
            return {"error": str(error)}

    def _drop(self, client: _Client) -> None:
        if self._clients.pop(client.connection.fileno(), None) is not None:
            self.selector.unregister(client.connection)
            client.connection.close()


class _Client:
    """`received` and not yet answered, `waiting` to be sent; `closing` when nothing more will be read."""

    def __init__(self, connection: socket.socket, now: float) -> None:
        self.connection = connection
        self.received = bytearray()
        self.waiting = bytearray()
        self.closing = False
        self.moved = now

    def read(self) -> bool:
        data = self.connection.recv(MAX_LINE)
        self.received += data
        self.closing = self.closing or not data
        return bool(data) or bool(self.received)

    def write(self) -> bool:
        sent = self.connection.send(self.waiting)
        del self.waiting[:sent]
        return True


def _encoded(reply: dict[str, object]) -> bytearray:
    return bytearray((records.encode(reply) + "\n").encode("ascii"))


def _listen(path: str) -> socket.socket:
    """The socket, mode 0600 from its first moment. What lies at its path is a dead daemon's: we hold the lock."""
    if os.path.lexists(path):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    mask = os.umask(0o177)
    try:
        listener.bind(path)
    except OSError as error:
        listener.close()
        raise VgpuError(path, expected="a place for the daemon's socket", found=error.strerror or str(error),
                        do="set paths.run to a shorter path of a local file system") from error  # fmt: skip
    finally:
        os.umask(mask)
    listener.listen(BACKLOG)
    return listener
