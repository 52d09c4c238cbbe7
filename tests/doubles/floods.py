"""Many connections to an address: half-open, slow and garbage ones, in a random mix, from several addresses.

Belongs here: opening and holding them, in a process of its own if need be. A test or a benchmark looks at the server
meanwhile.
"""

from __future__ import annotations

import contextlib
import random
import resource
import select
import socket
import sys

REQUESTS = (
    b"",  # half-open: nothing ever comes
    b"GET /metr", b"GET /metrics HTTP/1.1\r\nHost: a\r\nX-Slow: ",  # slow: the head never ends
    b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n" * 20,  # asks, and reads no answer
    b"POST /metrics HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n", b"GET /metrics\r\n\r\n", b"\0" * 4000,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\xff" * 300,  # garbage
)  # fmt: skip


class Flood:
    """`tick` opens connections from `addresses` until there are `count`, and again those that the server has closed."""

    def __init__(self, address: str, count: int, addresses: int, seed: int) -> None:
        host, port = address.split(":")
        self.to = (host, int(port))
        self.count = count
        self.random = random.Random(seed)
        self.sources = [f"127.0.1.{number + 1}" for number in range(addresses)]
        self.open: list[socket.socket] = []
        self.opened = 0
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, count + 512)), hard))

    def tick(self, most: int = 1 << 30) -> None:
        """Open what is missing, at most so many. A few go on with their request by one byte."""
        over = {one for one in self.open if closed(one)}
        for one in over:
            one.close()
        self.open = [one for one in self.open if one not in over]
        for one in self.random.sample(self.open, min(len(self.open), 50)):
            with contextlib.suppress(OSError):
                one.send(b"x")
        for _ in range(min(self.count - len(self.open), most)):
            one = socket.socket()
            self.opened += 1
            try:
                one.bind((self.random.choice(self.sources), 0))
                one.setblocking(False)
                one.connect_ex(self.to)
                one.setblocking(True)
                one.settimeout(5)
                one.send(self.random.choice(REQUESTS))
                one.setblocking(False)
            except OSError:
                one.close()
                continue
            self.open.append(one)

    def close(self) -> None:
        for one in self.open:
            one.close()


def closed(connection: socket.socket) -> bool:
    """Whether the server has closed the connection."""
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


if __name__ == "__main__":  # ADDRESS COUNT ADDRESSES SEED: until stdin ends; one line when all have been opened once
    made = Flood(sys.argv[1], *map(int, sys.argv[2:]))
    while not select.select([sys.stdin], [], [], 0.05)[0]:
        before, _ = made.opened, made.tick()
        if before < made.count <= made.opened:
            print("floods", flush=True)
    print(made.opened)
