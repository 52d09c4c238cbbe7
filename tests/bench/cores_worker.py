"""Runs scenarios (cores_scenario.py): reads one JSON object per line of stdin and answers each with one line.

`cores_worker.py DIRECTORY`: all its files are below DIRECTORY. Each tenant is a box of cores_node.py, in which its
programs run. A child of this process, the *director*, runs on the same clock: it reads the simulator's ledger at the
times of the scenario, and does vgpud's work in between. It is a process of its own, because a process maps one state
until it ends. Workers are processes, so that scenarios run side by side (cores_workers.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bundles
import cores_ideal
import cores_traces
import nodes
import simulated_clock
from checkout import BUILD, CHECKOUT
from cores_node import Daemon, Node
from cores_quota import Quota
from cores_scenario import Scenario
from vcuda_boxes import SOURCES, compile_c

from vgpu.config import limits

PATIENCE = 1800  #: seconds of real time after which a scenario hangs, on a busy machine too
SETTLE_NS = 100_000_000  #: on the wall clock, for a process to start


class Worker:
    """What all scenarios of this process share: the load generator, the driver, the node."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.cpus = os.sched_getaffinity(0)
        self.simctl = nodes.simctl()
        self.driver = directory / "driver"
        self.driver.mkdir()
        for name in ("libcuda", "libnvidia-ml"):
            (found,) = sorted((BUILD / "lib/sim").glob(f"{name}.so.*"))
            shutil.copy(found, self.driver / f"{name}.so.1")
        self.node = Node(directory, self.driver)
        self.program = bundles.load_generator(directory)
        self.tenant = bundles.static_program(CHECKOUT / "tests/data/attacks/tenant.c", directory)
        self.crowd = compile_c(directory / "crowd", SOURCES / "crowd.c", "-ldl")

    def close(self) -> None:
        self.node.close()

    def run(self, scenario: dict[str, Any], number: int) -> dict[str, Any]:
        if scenario["limiter"] == "ideal":
            return dataclasses.asdict(cores_ideal.outcome(Scenario.of(scenario)))
        run = Run(self, scenario, self.directory / f"state{number}")
        try:
            # On the wall clock the programs need all CPUs; the worker is pinned to one for the virtual clock only.
            os.sched_setaffinity(0, range(os.cpu_count() or 1) if scenario["clock"] == "wall" else self.cpus)
            signal.alarm(PATIENCE)
            return run.outcome()
        finally:
            signal.alarm(0)
            run.close()


class Run:
    """One scenario: its processes and the state that they use."""

    def __init__(self, worker: Worker, scenario: dict[str, Any], state: Path) -> None:
        self.worker = worker
        self.scenario = scenario
        self.state = state
        self.processes: list[list[subprocess.Popen[str]]] = []
        self.attackers: list[subprocess.Popen[str]] = []
        self.quotas: list[Quota] = []
        self.parties = 1 + sum(len(tenant["loads"]) for tenant in scenario["tenants"])
        profile = worker.simctl.load_profile(scenario["profile"])
        profile = {**profile, "timing": {**profile.get("timing", {}), **scenario["timing"]}}
        worker.simctl.make_state(str(state), profile, False, scenario["clock"], self.parties)
        self.uuids = [card["uuid"] for card in worker.simctl.read_state(str(state))["cards"]]
        self.origin = worker.simctl.VIRTUAL_BEGIN_NS
        self.linger = 1  #: the programs end so long after the last reading, which needs them alive
        if scenario["clock"] == "wall":
            self.linger = 3 * SETTLE_NS
        self.is_limited = scenario["limiter"] == "libvcuda"

    def cards(self, tenant: dict[str, Any], cores: int, core_limit: int) -> list[limits.CardLimit]:
        uuids = self.uuids[tenant["first_card"] :][: tenant["cards"] or None]
        return [limits.CardLimit(uuid, limits.UNLIMITED, cores, max(cores, core_limit)) for uuid in uuids]

    def environment(self, rank: int, group: int, tenant: dict[str, Any]) -> dict[str, str]:
        cores = tenant["cores"]
        libraries = BUILD / "lib/vcuda" if self.is_limited else self.worker.driver
        return {
            "PATH": os.environ["PATH"],
            "LD_LIBRARY_PATH": str(libraries),
            "VGPU_SIM_DIR": str(self.state),
            "VGPU_SIM_RANK": str(rank),
            "VGPU_SIM_GROUP": str(group),
            "VGPU_LOG_LEVEL": "error",
            **{name: value.format(cores=cores) for name, value in self.scenario["environment"].items()},
        }

    def options(self, load: dict[str, Any], tenant: dict[str, Any], rank: int) -> list[str]:
        end = self.scenario["window"][1] + self.linger
        options = {
            "seed": self.scenario["seed"] * 1000 + rank,
            "end": end,
            "warm": self.scenario["window"][0],
            "origin": self.origin,
        }
        if self.scenario["limiter"] not in ("libvcuda", "none", "external"):
            options.update(peer=self.scenario["limiter"], limit=tenant["cores"])
        options.update(load)
        if "arrivals" in load:
            options["arrivals"] = str(self.state / f"arrivals{rank}")
            Path(options["arrivals"]).write_bytes(
                cores_traces.arrivals(load["arrivals"], options["seed"], end).tobytes()
            )
        if "replay" in load:
            options["replay"] = str(self.state / f"replay{rank}")
            Path(options["replay"]).write_text(cores_traces.written(cores_traces.recorded(load["replay"])))
        return [f"{name}={value}" for name, value in options.items()]

    def start(self) -> None:
        rank = 0
        if self.is_limited:
            tenants = self.scenario["tenants"]
            self.worker.node.share([self.cards(tenant, tenant["cores"], tenant["core_limit"]) for tenant in tenants])
        for index, tenant in enumerate(self.scenario["tenants"]):
            if tenant["attack"]:
                self.attack(index, tenant)
        if self.scenario["clock"] == "wall":
            self.origin = time.monotonic_ns() + self.parties * SETTLE_NS
        for index, tenant in enumerate(self.scenario["tenants"]):
            started: list[subprocess.Popen[str]] = []
            self.processes.append(started)
            quota = None
            if tenant["cpu_quota"]:
                quota = Quota(f"vgpu-bench-{os.getpid()}-{self.state.name}-{index}", tenant["cpu_quota"])
                self.quotas.append(quota)
            for load in tenant["loads"]:
                rank += 1
                command = [str(self.worker.program), *self.options(load, tenant, rank)]
                if self.is_limited:
                    command = self.worker.node.box(index).command(*command)
                environment = self.environment(rank, index + 1, tenant)
                # The processes of a tenant are one process group, by which a peer's model identifies them.
                command.append(f"group={started[0].pid if started else 0}")
                started.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
                if quota:
                    quota.add(started[-1].pid)

    def attack(self, index: int, tenant: dict[str, Any]) -> None:
        """Begin the attack of a tenant, and wait until it says that it has begun."""
        words, programs = tenant["attack"], {"tenant": self.worker.tenant, "crowd": self.worker.crowd}
        verbs = " ".join(f'{name}() {{ exec {program} "$@"; }};' for name, program in programs.items())
        command = self.worker.node.box(index).command("sh", "-c", f"{verbs} {words}")
        environment = self.environment(0, index + 1, tenant)
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        self.attackers.append(process)
        assert process.stdout
        if process.stdout.readline() != "ready\n":
            raise RuntimeError(f"{words}: the attack did not begin")

    def outcome(self) -> dict[str, Any]:
        self.start()
        looks = self.direct()
        loads = [[self.output(process) for process in started] for started in self.processes]
        return {
            "at": [at for at, _ in looks],
            "busy": [busy for _, busy in looks],
            "loads": loads,
            "origin": self.origin,
            "changes": self.worker.node.changes(len(self.processes)) if self.is_limited else [],
            "stolen": self.worker.simctl.read_state(str(self.state))["clock"]["stolen"],
        }

    @staticmethod
    def output(process: subprocess.Popen[str]) -> dict[str, Any]:
        out, _ = process.communicate()
        if process.returncode != 0:
            raise RuntimeError(f"{process.args}: exit status {process.returncode}")
        printed: dict[str, Any] = json.loads(out)
        return printed

    def direct(self) -> list[tuple[int, list[int]]]:
        """Fork the director and return its readings."""
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(PATIENCE)
            with contextlib.suppress(BaseException):
                os.close(reader)
                os.environ.update(VGPU_SIM_DIR=str(self.state), VGPU_SIM_RANK="0")
                clock = simulated_clock.Clock(str(self.worker.driver / "libcuda.so.1"))
                daemon = Daemon(self.worker.node, clock.now, clock.sleep_until) if self.scenario["lender"] else None
                looks = [self.look(clock, daemon, *step) for step in self.steps()]
                clock.leave()
                with os.fdopen(writer, "w") as stream:
                    json.dump([look for look in looks if look], stream)
                os._exit(0)
            os._exit(1)
        os.close(writer)
        try:
            with os.fdopen(reader) as stream:
                text = stream.read()
        except RuntimeError:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise
        if os.waitpid(child, 0)[1] != 0:
            raise RuntimeError("the director failed")
        seen: list[tuple[int, list[int]]] = json.loads(text)
        return seen

    def steps(self) -> Iterator[tuple[int, Any]]:
        """Pairs of a time and a change (None: read the ledger), in the order of time."""
        changes = [(change[0], change[1:]) for change in self.scenario["changes"]]
        return iter(sorted([*((at, None) for at in self.scenario["looks"]), *changes], key=lambda step: step[0]))

    def look(
        self, clock: simulated_clock.Clock, daemon: Daemon | None, at: int, change: Any
    ) -> tuple[int, list[int]] | None:
        if daemon:
            daemon.work(self.origin + at)
        clock.sleep_until(self.origin + at)
        if change:
            index, cores, core_limit = change
            self.worker.node.change(index, self.cards(self.scenario["tenants"][index], cores, core_limit))
            return None
        busy = [0] * len(self.scenario["tenants"])
        now = clock.now()
        for card in self.worker.simctl.read_state(str(self.state))["cards"]:
            for process in card["processes"]:
                busy[process["group"] - 1] += process["busy_ns"]
        return now - self.origin, busy

    def close(self) -> None:
        for started in [*self.processes, self.attackers]:
            for process in started:
                if process.poll() is None:
                    process.kill()
                assert process.stdout
                process.stdout.close()
                process.wait()
        for quota in self.quotas:
            quota.close()
        shutil.rmtree(self.state)


def give_up(*_: object) -> None:
    raise RuntimeError(f"not done after {PATIENCE} s")


def main(directory: str) -> None:
    signal.signal(signal.SIGALRM, give_up)
    worker = Worker(Path(directory))
    try:
        for number, line in enumerate(sys.stdin):
            try:
                answer = worker.run(json.loads(line), number)
            except (OSError, RuntimeError, subprocess.SubprocessError) as error:
                answer = {"error": f"{type(error).__name__}: {error}; {line[:300]}"}
            print(json.dumps(answer), flush=True)
    finally:
        worker.close()


if __name__ == "__main__":
    main(sys.argv[1])
