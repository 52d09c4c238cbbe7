"""A pool of workers (cores_worker.py), one pinned to each CPU, and the queue of scenarios that they run.

The processes of a scenario hand the virtual time to one another, which is fast on one CPU and slow across two.
cores_scenario.py describes scenarios.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from queue import Empty, Queue
from typing import TypeVar

import nodes
from checkout import BUILD, LIBRARIES
from cores_scenario import Outcome, Scenario
from results import BenchError

Cell = TypeVar("Cell")
WORKER = Path(__file__).with_name("cores_worker.py")


class Workers:
    """Runs scenarios side by side; a context manager."""

    def __init__(self, count: int = 0) -> None:
        if not (BUILD / "lib/vcuda/libcuda.so.1").exists():
            raise BenchError(f"libvcuda is not built in {BUILD}: run `make build`")
        cpus = sorted(os.sched_getaffinity(0))
        self.cpus = cpus[: count or len(cpus)]

    def __enter__(self) -> Workers:
        self.directory = tempfile.TemporaryDirectory(prefix="vgpu-cores-")
        self.workers = [self._start(cpu) for cpu in self.cpus]
        return self

    def _start(self, cpu: int) -> subprocess.Popen[str]:
        place = Path(self.directory.name) / f"worker{cpu}"
        place.mkdir()
        paths = [str(WORKER.parent), *map(str, LIBRARIES), *filter(None, sys.path)]
        return subprocess.Popen(
            ["taskset", "-c", str(cpu), sys.executable, str(WORKER), str(place)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.communicate()
        self.directory.cleanup()

    def card(self) -> str:
        """The UUID of the first simulated card: the same in every state of a profile."""
        simctl, state = nodes.simctl(), Path(self.directory.name) / "card"
        simctl.make_state(str(state), Scenario([], (0, 0)).profile, False)
        return str(simctl.read_state(str(state))["cards"][0]["uuid"])

    def run(self, scenario: Scenario) -> Outcome:
        return self.run_all([scenario])[0]

    def by_run(
        self, runs: int, cells: Sequence[Cell], scenario: Callable[[Cell, int], Scenario]
    ) -> list[list[Outcome]]:
        """The outcomes of each run, in the order of the cells; `scenario` is of a cell and a run's number."""
        outcomes = self.run_all(scenario(cell, run) for run in range(runs) for cell in cells)
        return [outcomes[run * len(cells) : (run + 1) * len(cells)] for run in range(runs)]

    def run_all(self, scenarios: Iterable[Scenario]) -> list[Outcome]:
        """The outcomes in the order of the scenarios."""
        queue: Queue[tuple[int, Scenario]] = Queue()
        for item in enumerate(scenarios):
            queue.put(item)
        answers: dict[int, Outcome | str] = {}
        threads = [threading.Thread(target=_serve, args=(worker, queue, answers)) for worker in self.workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        failed = [answer for answer in answers.values() if isinstance(answer, str)]
        if failed or not answers:
            raise BenchError(failed[0] if failed else "no scenarios")
        return [outcome for _, outcome in sorted(answers.items()) if isinstance(outcome, Outcome)]


def _serve(
    worker: subprocess.Popen[str], queue: Queue[tuple[int, Scenario]], answers: dict[int, Outcome | str]
) -> None:
    assert worker.stdin and worker.stdout
    while True:
        try:
            number, scenario = queue.get_nowait()
        except Empty:
            return
        with contextlib.suppress(BrokenPipeError):
            worker.stdin.write(json.dumps({**scenario.json(), "looks": scenario.looks}) + "\n")
            worker.stdin.flush()
        line = worker.stdout.readline()
        answer = json.loads(line) if line else {"error": "the worker ended"}
        answers[number] = answer["error"] if "error" in answer else Outcome(**answer)
        if not line:
            return
