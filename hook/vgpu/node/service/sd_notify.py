"""sd_notify(3) and systemd's watchdog without libsystemd: datagrams to $NOTIFY_SOCKET.

Belongs here: the protocol. Without systemd these functions do nothing. If a datagram cannot be sent, it is dropped:
systemd acts on the datagrams that arrive. Does not belong here: when a program is ready or alive, which it decides.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

MICROSECONDS = 1_000_000


class Notifier:
    """`interval`: seconds between the keep-alives for the watchdog, 0.0 without a watchdog."""

    def __init__(self, environment: Mapping[str, str], pid: int) -> None:
        path = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + path[1:] if path.startswith("@") else path
        wanted = environment.get("WATCHDOG_USEC", "")
        mine = environment.get("WATCHDOG_PID", str(pid)) == str(pid)
        self.interval = int(wanted) / MICROSECONDS / 2 if mine and wanted.isdigit() else 0.0
        self._status = ""

    def ready(self) -> None:
        self._send(f"READY=1\nMAINPID={os.getpid()}")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def alive(self) -> None:
        self._send("WATCHDOG=1")

    def status(self, text: str) -> None:
        """Set the text that `systemctl status` shows. It is sent only if it has changed."""
        if text != self._status:
            self._status = text
            self._send("STATUS=" + text.replace("\n", " "))

    def _send(self, text: str) -> None:
        if not self._address:
            return
        kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        try:
            with socket.socket(socket.AF_UNIX, kind) as sender:
                sender.sendto(text.encode("utf-8", "replace"), self._address)
        except OSError:
            return
