"""/healthz and /readyz over HTTP, for probes; every other path answers 404.

Belongs here: the HTTP listener. The main loop decides whether the plugin is alive and ready. One thread serves one
client at a time, with a time limit: probes are rare, and a slow client cannot delay the plugin.
"""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler

from vgpu.config.errors import VgpuError

PATIENCE = 5.0  #: seconds that a client may take

Check = Callable[[], tuple[bool, str]]


class Probes:
    """Listens at `address` (host:port) until `close`. `checks`: path -> a function that returns (passed, text)."""

    def __init__(self, address: str, checks: dict[str, Check]) -> None:
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        handler = type("Handler", (_Handler,), {"checks": checks})
        kind = type("Server", (_Server,), {"address_family": socket.AF_INET6 if ":" in host else socket.AF_INET})
        try:
            self._server: socketserver.TCPServer = kind((host, int(port)), handler)
        except OSError as error:
            raise VgpuError(f"plugin.http {address}", expected="an address to listen at", found=error.strerror,
                            do="free the address or change plugin.http; probes fail until then") from error  # fmt: skip
        self.port: int = self._server.server_address[1]
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing = True
        self._server.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._thread.join()
        self._server.server_close()

    def _serve(self) -> None:
        while not self._closing:
            self._server.handle_request()


class _Server(socketserver.TCPServer):
    allow_reuse_address = True
    request_queue_size = 32

    def handle_error(self, *_: object) -> None:
        """A client that closed its connection is not logged."""


class _Handler(BaseHTTPRequestHandler):
    checks: dict[str, Check]
    timeout = PATIENCE
    server_version = "vgpu-device-plugin"
    sys_version = ""

    def do_GET(self) -> None:
        check = self.checks.get(self.path.partition("?")[0])
        good, text = check() if check else (False, "not found")
        self.send_response((200 if good else 503) if check else 404)
        body = f"{text}\n".encode()
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Requests are not logged."""
