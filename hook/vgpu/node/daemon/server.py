"""The server of vgpud's Unix socket: each request and each answer is one line with a JSON object.

Belongs here: clients and their limits. Only root can connect, by the mode of the socket. vgpud reads a client's next
request after the client has read its last answer. A slow client therefore fills only its own buffer and delays no other
client. A silent client is disconnected. Does not belong here: what the answers contain, which is in
vgpu.node.daemon.main.
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
PAUSE = 0.05  #: seconds to wait when this process has no descriptor left
PATIENCE = 10.0  #: seconds without progress after which a client is disconnected

Answer = Callable[[str], "dict[str, object]"]


class Server:
    """Listens at `path`. `answer` receives the name of a request, and raises VgpuError for an unknown one."""

    def __init__(self, path: str, selector: selectors.BaseSelector, answer: Answer, clock: Callable[[], float]) -> None:
        self.path = path
        self.selector = selector
        self.answer = answer
        self.clock = clock
        self._clients: dict[int, _Client] = {}
        self._listener = _listen(path)
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def tick(self) -> None:
        """Disconnect the clients that have made no progress for PATIENCE seconds."""
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
            except BlockingIOError:  # no other client is waiting
                return
            except OSError:  # no descriptor is left; the socket stays readable, so wait here and do not spin
                time.sleep(PAUSE)
                return
            self._welcome(connection)

    def _welcome(self, connection: socket.socket) -> None:
        if len(self._clients) >= MAX_CLIENTS:  # disconnect the client that has been idle for longest
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
        """Answer the next whole line after the last answer is sent. False if the client is finished."""
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
            name = request.get("ask")
            if not isinstance(name, str):
                raise VgpuError("request", expected='{"ask": "health"}', found=shown(request))
            return self.answer(name)
        except VgpuError as error:
            return {"error": str(error)}

    def _drop(self, client: _Client) -> None:
        if self._clients.pop(client.connection.fileno(), None) is not None:
            self.selector.unregister(client.connection)
            client.connection.close()


class _Client:
    """`received` is not yet answered, `waiting` is not yet sent. With `closing`, nothing more is read."""

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
    """The socket. It has mode 0600 from the moment it exists.

    vgpud holds the instance's lock, so a file at the socket's path belongs to a daemon that has died.
    """
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
