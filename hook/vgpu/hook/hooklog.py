"""The hook's log, `<run>/hook.log`: one JSON line for each start and stop of a container with a card.

Belongs here: the form of a line, and the bounded file. The log exists because crun shows its user only a hook's exit
status, and containerd keeps one line at most. Past MAX_SIZE the file is renamed to hook.log.1. A line that cannot be
written fails no container: the hook has reported the same on stderr.
"""

from __future__ import annotations

import os
import time

from vgpu.config import paths
from vgpu.config.records import encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

MAX_SIZE = 1 << 20

#: When this module was loaded, and the processor time that the gate and the interpreter had taken by then.
_LOADED, _USED = time.monotonic(), time.process_time()


class Run:
    """One run of the hook. `step` is the step that runs; `steps` are all so far with the times at which they began.

    `name` is namespace/pod/container, or "". `run_dir` is known from the settings on. `keep` is what a start still has
    to do after its report. `held` is what a stop has released, for the line in the log.
    """

    __slots__ = ("held", "keep", "name", "run_dir", "steps")

    def __init__(self) -> None:
        self.run_dir = ""
        self.name = ""
        self.steps = [("state", time.monotonic())]
        self.keep: Callable[[], None] | None = None
        self.held: dict[str, object] | None = None

    @property
    def step(self) -> str:
        return self.steps[-1][0]

    @step.setter
    def step(self, name: str) -> None:
        self.steps.append((name, time.monotonic()))


def record(
    stage: str,
    state: dict[str, object],
    notes: list[str],
    error: str,
    name: str = "",
    steps: list[tuple[str, float]] | None = None,
    held: dict[str, object] | None = None,
) -> dict[str, object]:
    """The record of one run of the hook; `state` is the runtime's state JSON.

    `name` is namespace/pod/container, or "". `seconds` is how long this process has run. Before this module was loaded
    it had hardly waited, so that part is its processor time. `steps` has when each step began by the monotonic clock,
    and the record how long each took; a step that was left for another one and went on later has two entries. `held` is
    what the container held until now (vgpu.hook.stop).
    """
    now = time.monotonic()
    container, pid = state.get("id"), state.get("pid")
    return {
        "time": time.time(), "stage": stage, "container": container if isinstance(container, str) else "",
        "name": name, "pid": pid if isinstance(pid, int) else 0, "notes": notes, "error": error,
        "seconds": round(now - _LOADED + _USED, 4), "steps": _taken(steps or [], now),
        **({"held": held} if held else {}),
    }  # fmt: skip


def _taken(steps: list[tuple[str, float]], now: float) -> list[list[object]]:
    """[step, seconds] in their order."""
    ends = [began for _, began in steps[1:]] + [now]
    return [[step, round(end - began, 5)] for (step, began), end in zip(steps, ends)]


def write(run_dir: str, entry: dict[str, object]) -> None:
    """Append `entry` as one line, by a single write(2) to an O_APPEND file: lines of concurrent hooks stay whole."""
    path = paths.hook_log(run_dir)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.write(fd, (encode(entry) + "\n").encode("ascii"))
            status = os.fstat(fd)
            if status.st_size > MAX_SIZE and status.st_ino == os.stat(path).st_ino:  # else another hook has renamed it
                os.rename(path, path + ".1")
        finally:
            os.close(fd)
    except OSError:
        return
