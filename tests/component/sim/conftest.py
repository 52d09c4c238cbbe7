"""The simulated driver for tests: its libraries with their SONAME links, states, and client processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from checkout import DATA, LIBRARIES
from vcuda_boxes import SOURCES, Client, load_simctl


@pytest.fixture(scope="session")
def simctl() -> ModuleType:
    return load_simctl()


@pytest.fixture(scope="session")
def driver_root(simctl: ModuleType, build: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A driver root without device nodes."""
    return Path(simctl.make_root(str(tmp_path_factory.mktemp("root")), "t4x1", str(build), device_nodes=False))


@pytest.fixture(scope="session")
def libraries(driver_root: Path) -> Path:
    return next((driver_root / "usr/lib").iterdir())


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
        """A client for any call (tests/data/cuda/calls.py)."""
        command = [*wrapper, sys.executable, "-S", str(SOURCES / "calls.py")]
        client = Client(command, self.environment(**environment), self.directory / "log")
        self.clients.append(client)
        assert client.receive() == ["ready"]
        return client

    def opened(self, *wrapper: str) -> Client:
        """The same with a context on the first card."""
        client = self.client(*wrapper)
        client.does("cuInit 0")
        client.does(f"cuCtxSetCurrent {client.made('cuDevicePrimaryCtxRetain & 0')}")
        return client

    def python(self, code: str, *wrapper: str, **environment: str) -> Any:
        """Run code in a new process. Returns the JSON value that it printed."""
        command = [*wrapper, sys.executable, "-c", code]
        return json.loads(subprocess.run(command, check=True, env=self.environment(**environment), stdout=-1).stdout)

    def card(self, index: int = 0) -> dict[str, Any]:
        card: dict[str, Any] = self.simctl.read_state(str(self.directory))["cards"][index]
        return card

    def held(self) -> int:
        """Bytes of the first card without contexts."""
        card = self.card()
        return int(card["used"]) - sum(int(process["context"]) for process in card["processes"])


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
            client.kill()


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
            [sys.executable, str(DATA / "sim/virtual_client.py"), code],
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
