"""Work in a forked process: it loads the driver's library and may hang there, so the daemon need not.

Belongs here: the fork, the pipe with one JSON object, the deadline, and what all monitors have in common that work in
such a process. Does not belong here: the work itself.

A worker has none of the daemon's descriptors. One that hangs in the driver (state D) therefore holds neither the
instance's lock nor the socket. A worker dies with the daemon. The daemon has one thread, so fork without exec is safe.
"""

from __future__ import annotations

import gc
import os
import selectors
import signal
import time
from collections.abc import Callable

from vgpu.config import records
from vgpu.config.claims import Claim
from vgpu.config.errors import VgpuError
from vgpu.config.settings import Settings
from vgpu.hook.ledger.ledger import Ledger
from vgpu.node.service.forked import isolate, without_output
from vgpu.node.service.log import Conditions

MAX_RESULT = 4 << 20
SHARE_OF_TIME = 0.05  #: the largest part of the time in which NVML runs: it wakes cards without persistence mode

Work = Callable[[], dict[str, object]]


class Worker:
    """A forked process that runs `work` until `deadline` at the latest, on the caller's clock.

    OSError when it cannot be started.
    At its end it is `done` and calls `ended`. Then `result` is what the work returned, or `error` is the reason why
    there is no result. A worker that is alive at its deadline is killed. It is `gone` when the kernel has released it.
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
        try:
            selector.register(self._fd, selectors.EVENT_READ, self._read)
            try:
                self.pid = os.fork()
            except OSError:
                selector.unregister(self._fd)
                raise
        except OSError:
            os.close(self._fd)
            os.close(write_end)
            raise
        if self.pid == 0:
            _run(work, write_end)
        os.close(write_end)

    def _read(self, _mask: int) -> None:
        """Read what the worker has written."""
        try:
            data = os.read(self._fd, 1 << 16)
        except BlockingIOError:
            return
        self._data += data
        if len(self._data) > MAX_RESULT:
            self._end(f"expected at most {MAX_RESULT} bytes of result, found more")
        elif not data:
            self._end(self._decode_answer())

    def check(self, now: float) -> None:
        """Kill the worker after its deadline."""
        if not self.done and now >= self.deadline:
            self._end("no answer in time: the driver hangs")

    def stop(self) -> None:
        if not self.done:
            self._end("stopped")

    def gone(self) -> bool:
        """Whether the worker was waited for. The next one may start only then."""
        if not self._gone:
            self._gone = os.waitpid(self.pid, os.WNOHANG)[0] == self.pid
        return self._gone

    def _decode_answer(self) -> str:
        try:
            answer = records.decode_object(bytes(self._data), "the worker's answer")
        except VgpuError as error:
            return str(error) if self._data else "the worker died without an answer"
        self.result = answer
        return str(answer.get("error", ""))

    def _end(self, error: str) -> None:
        self.error = error
        self.done = True
        self.selector.unregister(self._fd)
        os.close(self._fd)
        if not self.gone():
            os.kill(self.pid, signal.SIGKILL)  # SIGKILL does not harm a worker that is exiting
        self.ended()


#: (work, deadline) -> the worker that does it
Spawn = Callable[[Work, float], Worker]


class Monitor:
    """Starts one worker at a time, again and again. Each worker has LIMIT seconds.

    A worker's failure is the condition TOPIC, with TROUBLE before the reason. `proc` is the root of procfs, and `clock`
    is the daemon's clock.
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
        self._started = 0.0  # when the last worker started
        self._not_before = 0.0  # the earliest start of the next worker

    def stop(self) -> None:
        if self.worker is not None:
            self.worker.stop()

    def abandon(self) -> None:
        """Kill the worker and ignore what it has done."""
        self.stop()
        self.worker = None

    def _living(self) -> list[Claim]:
        ledger = Ledger(self.settings, [], self.proc)
        return [claim for claim in ledger.claims() if claim.pid > 0 and ledger.lives(claim)]

    def _due(self) -> bool:
        """Whether a worker may start now."""
        return self.worker is None and self.clock() >= self._not_before

    def _start(self, work: Work) -> None:
        self._started = self.clock()
        self.worker = self.spawn(work, self._started + self.LIMIT)

    def _finished(self) -> Worker | None:
        """The worker, once, when it has ended and the kernel has released it."""
        worker = self.worker
        if worker is None:
            return None
        worker.check(self.clock())
        if not worker.done or not worker.gone():
            return None
        self.worker = None
        return worker

    def _pause_after(self, least: float) -> float:
        """Seconds until the next worker may start, so that NVML does not run for more than SHARE_OF_TIME."""
        return max(least, (self.clock() - self._started) / SHARE_OF_TIME)

    def _report(self, error: str) -> None:
        """Set or clear the condition TOPIC."""
        self.conditions.set(self.TOPIC, error and f"{self.TROUBLE}: {error}")


def run(work: Work, limit: float) -> dict[str, object]:
    """Run `work` in a worker and wait for it; VgpuError if it fails or takes more than `limit` seconds."""
    with selectors.DefaultSelector() as selector:
        worker = Worker(lambda: _silently(work), time.monotonic() + limit, selector)
        while not worker.done:
            for key, mask in selector.select(max(worker.deadline - time.monotonic(), 0)):
                key.data(mask)
            worker.check(time.monotonic())
    worker.gone()
    if worker.error:
        raise VgpuError(worker.error)
    return worker.result


def _silently(work: Work) -> dict[str, object]:
    without_output()
    return work()


def _run(work: Work, write_end: int) -> None:
    """Do the work in the forked process. This function never returns."""
    status = 1
    try:
        isolate(write_end)
        gc.disable()  # it would touch every page that this process shares with the daemon, and soon ends
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
        os._exit(status)  # another exception is a bug; the daemon reports a worker without an answer
