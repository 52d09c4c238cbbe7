"""The simulated driver for tests: its libraries with their SONAME links, states, and client processes."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from checkout import CHECKOUT, DATA, LIBRARIES

PROGRAMS = DATA / "sim"
SIM = CHECKOUT / "libvcuda/sim" / "tools"


@pytest.fixture(scope="session")
def simctl() -> ModuleType:
    spec = importlib.util.spec_from_file_location("simctl", SIM / "simctl.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def driver_root(simctl: ModuleType, build: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A driver root without device nodes."""
    return Path(simctl.make_root(str(tmp_path_factory.mktemp("root")), "t4x1", str(build), device_nodes=False))


@pytest.fixture(scope="session")
def libraries(driver_root: Path) -> Path:
    return next((driver_root / "usr/lib").iterdir())


class Client:
    """One process with the simulated libcuda."""

    def __init__(self, environment: dict[str, str], wrapper: tuple[str, ...] = ()) -> None:
        self.process = subprocess.Popen(
            [*wrapper, sys.executable, str(PROGRAMS / "cuda_client.py")],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def send(self, *command: Any) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def receive(self) -> Any:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, f"client ended with {self.process.wait()}"
        return json.loads(line)

    def __call__(self, *command: Any) -> Any:
        self.send(*command)
        return self.receive()

    def start(self, device: int = 0) -> Client:
        assert self("init") == 0
        assert self("context", device) == 0
        return self

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream:
                stream.close()


class Node:
    """A simulated node: a state directory and the processes that were started on it."""

    def __init__(self, simctl: ModuleType, directory: Path, libraries: Path) -> None:
        self.simctl = simctl
        self.directory = directory
        self.libraries = libraries
        self.clients: list[Client] = []

    def environment(self, **extra: str) -> dict[str, str]:
        base = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "VGPU_SIM_"))}
        return {**base, "LD_LIBRARY_PATH": str(self.libraries), "VGPU_SIM_DIR": str(self.directory), **extra}

    def client(self, *wrapper: str, **environment: str) -> Client:
        client = Client(self.environment(**environment), wrapper)
        self.clients.append(client)
        return client

    def python(self, code: str, *wrapper: str, **environment: str) -> Any:
        """Run code in a new process. Returns the JSON value that it printed. A signal or an error fails the test."""
        done = subprocess.run(
            [*wrapper, sys.executable, "-c", code],
            check=False,
            env=self.environment(**environment),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"status {done.returncode}: {done.stderr}"
        return json.loads(done.stdout)

    def card(self, index: int = 0) -> dict[str, Any]:
        card: dict[str, Any] = self.simctl.read_state(str(self.directory))["cards"][index]
        return card


@pytest.fixture
def make_node(simctl: ModuleType, libraries: Path, tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """make_node(profile, device_nodes=False, clock="wall", parties=0) -> Node."""
    nodes: list[Node] = []

    def make(profile: Any, device_nodes: bool = False, clock: str = "wall", parties: int = 0) -> Node:
        directory = tmp_path / f"state{len(nodes)}"
        simctl.make_state(str(directory), profile, device_nodes, clock, parties)
        nodes.append(Node(simctl, directory, libraries))
        return nodes[-1]

    yield make
    for node in nodes:
        for client in node.clients:
            client.close()


@pytest.fixture
def node(make_node: Callable[..., Node]) -> Node:
    """One T4 that every process sees."""
    return make_node("t4x1")


class Line:
    """A node whose time is virtual, and the programs on it, by rank."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.started: list[subprocess.Popen[str]] = []

    def start(self, code: str, rank: int | None = None, **environment: str) -> subprocess.Popen[str]:
        rank = len(self.started) if rank is None else rank
        process = subprocess.Popen(
            [sys.executable, str(PROGRAMS / "virtual_client.py"), code],
            env=self.node.environment(
                PYTHONPATH=os.pathsep.join(map(str, LIBRARIES)), VGPU_SIM_RANK=str(rank), **environment
            ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def run(self, *codes: str) -> list[Any]:
        """The value that each program prints."""
        return [self.said(process) for process in [self.start(code) for code in codes]]

    @staticmethod
    def said(process: subprocess.Popen[str]) -> Any:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        return json.loads(out)

    @property
    def stolen(self) -> int:
        stolen: int = self.node.simctl.read_state(str(self.node.directory))["clock"]["stolen"]
        return stolen


@pytest.fixture
def line(make_node: Callable[..., Node]) -> Iterator[Callable[..., Line]]:
    """line(parties, profile="t4x1", clock="virtual") -> Line."""
    lines: list[Line] = []

    def make(parties: int, profile: Any = "t4x1", clock: str = "virtual") -> Line:
        lines.append(Line(make_node(profile, clock=clock, parties=parties)))
        return lines[-1]

    yield make
    for made in lines:
        for process in made.started:
            process.kill()
            process.communicate()
