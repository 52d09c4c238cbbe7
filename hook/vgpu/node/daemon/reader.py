"""A forked process that reads what tenants can block, answers one request after the other, and may be left behind.

Belongs here: the fork, the two pipes, and the limits of time. Does not belong here: what is read, and what becomes of a
container that does not answer (vgpu.node.daemon.region_readers).

Programs of a container with CAP_SYS_ADMIN can make every access to its files wait: by a FUSE mount, or by permission
events of fanotify. SIGKILL does not end a process whose FUSE request the server has read, nor one that waits for
fanotify on an old kernel (it does on Linux 6.18). Therefore nobody waits for a reader's end: it has none of its
parent's descriptors, so it holds no lock, no socket and no pipe of a caller. It ends when the kernel lets it go, at the
latest when the program that blocks it ends.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import time
from collections.abc import Callable, Sequence

from vgpu.config import records
from vgpu.config.errors import VgpuError
from vgpu.node.service import forked

MAX_ANSWER = 1 << 20
BATCH = 64  #: requests that are sent together: they fit into an empty pipe
MAX_REQUEST = 128  #: bytes of one request
TICKS = os.sysconf("SC_CLK_TCK")

Answer = Callable[[object], object]  #: from one JSON value to another; VgpuError and OSError are the answer None


class Reader:
    """A forked process that calls `answer` for each request. After `stop` it is `gone` when the kernel has let it go.

    `stuck`: it has not answered in time, or has died, and must be stopped. `blocked`: because of its last request, and
    not because this machine is slow: it does not run, or has worked for as long as an answer may take.
    """

    def __init__(self, answer: Answer) -> None:
        self.stuck = False
        self.blocked = False
        self._ended = False  # it has died
        self._gone = False
        self._data = bytearray()
        requests, self._requests = os.pipe2(os.O_CLOEXEC)
        self._answers, answers = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._requests, False)
        os.set_blocking(self._answers, False)
        try:
            self.pid = os.fork()
            if self.pid == 0:
                _serve(answer, requests, answers)
        except OSError:
            os.close(self._requests)
            os.close(self._answers)
            raise
        finally:
            os.close(requests)
            os.close(answers)

    def ask(self, requests: Sequence[object], limit: float, total: float) -> list[object]:
        """The answers in the order of the requests, None for a request that failed.

        The list is shorter if an answer took more than `limit` seconds, or all took more than `total`: the reader is
        `stuck` then, with the first request that has no answer.
        """
        found: list[object] = []
        end = time.monotonic() + total
        before = self._state()[1]
        for start in range(0, len(requests), BATCH):
            batch = list(requests[start : start + BATCH])
            if not self._send(batch):
                break
            for _ in batch:
                line = self._line(limit, end)
                if not line:
                    self.stuck = True
                    is_running, worked = self._state()
                    self.blocked = self._ended or not is_running or worked - before >= limit
                    return found
                found.append(records.decode_object(line, "the reader's answer").get("answer"))
        return found

    def begin(self, request: object) -> None:
        """Send one request whose answer is not waited for."""
        self._send([request])

    def poll(self) -> bool:
        """Whether the answer to a request that was sent by `begin` is there."""
        return bool(self._line(0.0, time.monotonic()))

    def stop(self) -> None:
        """Kill the process, and do not wait for it."""
        if self._requests >= 0:
            os.close(self._requests)
            os.close(self._answers)
            self._requests = self._answers = -1
        if not self.gone():
            os.kill(self.pid, signal.SIGKILL)

    def gone(self) -> bool:
        """Whether the kernel has let the process go."""
        if not self._gone:
            self._gone = os.waitpid(self.pid, os.WNOHANG)[0] == self.pid
        return self._gone

    def _send(self, batch: list[object]) -> bool:
        data = (records.encode(batch) + "\n").encode("ascii")
        assert len(data) <= BATCH * MAX_REQUEST, "requests must fit into an empty pipe"
        try:
            self.stuck = os.write(self._requests, data) != len(data)
        except OSError:  # it has died, or reads nothing
            self.stuck = True
        return not self.stuck

    def _line(self, limit: float, end: float) -> bytes:
        """The next line; b"" if it does not come within `limit` seconds, or not before `end`, or the process has died.

        A process that is running, and not blocked, has until `end`.
        """
        due = min(time.monotonic() + limit, end)
        while b"\n" not in self._data:
            left = due - time.monotonic()
            if left <= 0 and due < end and self._state()[0]:
                due = end
                continue
            if not select.select([self._answers], [], [], max(left, 0))[0]:
                if left > 0:
                    continue
                return b""
            data = os.read(self._answers, 1 << 16)
            self._data += data
            self._ended = not data
            if self._ended or len(self._data) > MAX_ANSWER:
                return b""
        line, _, rest = bytes(self._data).partition(b"\n")
        self._data = bytearray(rest)
        return line

    def _state(self) -> tuple[bool, float]:
        """Whether the process runs or is ready to run, so nothing blocks it; and the seconds that it has worked."""
        try:
            with open(f"/proc/{self.pid}/stat", "rb") as stream:
                fields = stream.read().rpartition(b") ")[2].split()
        except OSError:
            return False, 0.0
        return fields[0] == b"R", (int(fields[11]) + int(fields[12])) / TICKS


def _serve(answer: Answer, requests: int, answers: int) -> None:
    """Answer requests in the forked process until the pipe ends. This function never returns."""
    try:
        forked.without_output()
        forked.isolate(requests, answers)
        gc.freeze()  # nobody goes over the daemon's objects here, which would copy the pages that both share
        with open(requests, "rb", closefd=False) as stream:
            for line in stream:
                batch = records.decode(line, "requests")
                for request in batch if isinstance(batch, list) else []:
                    _write(answers, answer, request)
    finally:
        os._exit(1)


def _write(answers: int, answer: Answer, request: object) -> None:
    found: object = None
    with contextlib.suppress(VgpuError, OSError):
        found = answer(request)
    data = memoryview((records.encode({"answer": found}) + "\n").encode("ascii"))
    while data:
        data = data[os.write(answers, data) :]


class Asked:
    """What `each` has found: the answers by index, and the indexes of requests that nobody answered."""

    def __init__(self) -> None:
        self.answers: dict[int, object] = {}
        self.silent: list[int] = []


def each(count: int, work: Callable[[int], object], limit: float, total: float) -> Asked:
    """Call `work` with 0, 1, ... `count` - 1 in readers. A request without an answer in `limit` seconds is silent.

    Another reader goes on with the next request. After `total` seconds all requests that are left are silent.
    """
    found = Asked()
    end = time.monotonic() + total
    left = list(range(count))
    while left:
        seconds = end - time.monotonic()
        if seconds <= 0:
            found.silent += left
            break
        reader = Reader(lambda index: work(int(str(index))))
        try:
            answers = reader.ask(left, limit, seconds)
        finally:
            reader.stop()
        found.answers.update(zip(left, answers))
        found.silent += left[len(answers) : len(answers) + 1]
        left = left[len(answers) + 1 :]
    return found
