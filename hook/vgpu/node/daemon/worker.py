"""Work in a forked child: what loads a driver's library, or may hang in it, without the daemon having to.

Belongs here: the fork, the pipe with one JSON object, the time limit, and what all watches have in common that have
their work done by children. The child holds none of the daemon's
descriptors, so that one which hangs in the driver (state D) keeps neither the instance's lock nor the socket, and dies
with the daemon. The daemon is single-threaded, which makes fork without exec safe.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable

from vgpu.config import records
from vgpu.config.errors import VgpuError
from vgpu.config.settings import Settings
from vgpu.hook.linux import syscalls
from vgpu.node.service.log import Conditions

MAX_RESULT = 4 << 20
STANDARD = 3  #: stdin, stdout and stderr stay
SHARE_OF_TIME = 0.05  #: the most of the time that NVML may be asked: it wakes cards without persistence mode

Work = Callable[[], dict[str, object]]


class Worker:
    """`work` runs in a child from now on, until `deadline` at the latest (on the caller's clock).

    When it is `done`, which `ended` is told, `result` is what the work returned, or `error` says what happened
    instead. A child that outlives its deadline is killed, and `gone` only when the kernel has let go of it.
    """

    def __init__(
        self, work: Work, deadline: float, selector: selectors.BaseSelector, ended: Callable[[], None] = lambda: None
    ) -> None:
        self.deadline = deadline
        self.selector = selector
        self.ended = ended
        self.result: dict[str, object] = {}
        self.error = ""
        self.done = False
        self._gone = False
        self._data = bytearray()
        self._fd, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.pid = os.fork()
        if self.pid == 0:
            _run(work, write_end)
        os.close(write_end)
        selector.register(self._fd, selectors.EVENT_READ, self._read)

    def _read(self, _mask: int) -> None:
        """Take what the child has written."""
        try:
            data = os.read(self._fd, 1 << 16)
        except BlockingIOError:
            return
        self._data += data
        if len(self._data) > MAX_RESULT:
            self._end(f"expected at most {MAX_RESULT} bytes of result, found more")
        elif not data:
            self._end(self._understood())

    def check(self, now: float) -> None:
        """Kill it when its time is over."""
        if not self.done and now >= self.deadline:
            self._end("no answer in time: the driver hangs")

    def stop(self) -> None:
        if not self.done:
            self._end("stopped")

    def gone(self) -> bool:
        """Whether the child was waited for; only then may another one follow."""
        if not self._gone:
            self._gone = os.waitpid(self.pid, os.WNOHANG)[0] == self.pid
        return self._gone

    def _understood(self) -> str:
        try:
            answer = records.decode_object(bytes(self._data), "the child's answer")
        except VgpuError as error:
            return str(error) if self._data else "the child died without an answer"
        self.result = answer
        return str(answer.get("error", ""))

    def _end(self, error: str) -> None:
        self.error = error
        self.done = True
        self.selector.unregister(self._fd)
        os.close(self._fd)
        if not self.gone():
            os.kill(self.pid, signal.SIGKILL)  # one that is just leaving takes no harm
        self.ended()


#: (work, deadline) -> the child that does it
Spawn = Callable[[Work, float], Worker]


class Monitor:
    """What has its work done by one child at a time, again and again, each no longer than LIMIT seconds.

    A child's failure is the condition TOPIC, with TROUBLE before the reason. `proc` is the root of procfs, `clock` as
    in the daemon.
    """

    LIMIT: float
    TOPIC: str
    TROUBLE = ""

    def __init__(
        self, settings: Settings, conditions: Conditions, spawn: Spawn, proc: str, clock: Callable[[], float]
    ) -> None:
        self.settings = settings
        self.conditions = conditions
        self.spawn = spawn
        self.proc = proc
        self.clock = clock
        self.worker: Worker | None = None
        self._started = 0.0  # the last one
        self._not_before = 0.0  # the next one

    def stop(self) -> None:
        if self.worker is not None:
            self.worker.stop()

    def _due(self) -> bool:
        """Whether a child may start now."""
        return self.worker is None and self.clock() >= self._not_before

    def _start(self, work: Work) -> None:
        self._started = self.clock()
        self.worker = self.spawn(work, self._started + self.LIMIT)

    def _over(self) -> Worker | None:
        """The child, once, when it is over and the kernel has let go of it."""
        worker = self.worker
        if worker is None:
            return None
        worker.check(self.clock())
        if not worker.done or not worker.gone():
            return None
        self.worker = None
        return worker

    def _rest(self, least: float) -> float:
        """Seconds until the next child: NVML must not take more of the time than SHARE_OF_TIME."""
        return max(least, (self.clock() - self._started) / SHARE_OF_TIME)

    def _report(self, error: str) -> None:
        """Raise or end the condition."""
        self.conditions.set(self.TOPIC, error and f"{self.TROUBLE}: {error}")


def run(work: Work, limit: float) -> dict[str, object]:
    """`work` in a child, waited for; VgpuError when it fails or takes more than `limit` seconds."""
    with selectors.DefaultSelector() as selector:
        worker = Worker(work, time.monotonic() + limit, selector)
        while not worker.done:
            for key, mask in selector.select(max(worker.deadline - time.monotonic(), 0)):
                key.data(mask)
            worker.check(time.monotonic())
    worker.gone()
    if worker.error:
        raise VgpuError(worker.error)
    return worker.result


def _run(work: Work, write_end: int) -> None:
    """The child: it never returns."""
    status = 1
    try:
        syscalls.die_with_parent()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.closerange(STANDARD, write_end)
        os.closerange(write_end + 1, os.sysconf("SC_OPEN_MAX"))
        os.set_blocking(write_end, True)
        try:
            answer = work()
        except (VgpuError, OSError) as error:
            answer = {"error": str(error)}
        data = memoryview((records.encode(answer) + "\n").encode("ascii"))
        while data:
            data = data[os.write(write_end, data) :]
        status = 0
    finally:
        os._exit(status)  # an exception on its way is a bug: the daemon sees a child without an answer
