"""A way to run programs under limits, and without: what the rows of the self-test use, whichever way it is.

Belongs here: the interface. The ways are container.py and bare.py. A `Box` is what a container is: its programs share
its limits.
"""

from __future__ import annotations

import abc
import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from vgpu.config import usage
from vgpu.config.limits import CardLimit
from vgpu.node.selftest.program import Program


@dataclass(frozen=True)
class Share:
    """What a box may use of each of its cards. `core_limit` 0: as much as `cores`."""

    cores: int
    memory: int
    core_limit: int = 0

    def on(self, uuid: str) -> CardLimit:
        return CardLimit(uuid, self.memory, self.cores, max(self.core_limit, self.cores))


class Box(abc.ABC):
    """Programs under one set of limits. `close` ends them all."""

    @abc.abstractmethod
    def start(self) -> Program:
        """A further program in it."""

    @abc.abstractmethod
    def kill(self, program: Program) -> None:
        """SIGKILL a program that is not the first one, and wait until it is gone."""

    @abc.abstractmethod
    def set(self, share: Share) -> None:
        """Change the limits, as `vgpuctl set` does."""

    @abc.abstractmethod
    def output(self, *command: str) -> str | None:
        """What a program of the driver prints in it; None if there is none."""

    @abc.abstractmethod
    def region(self) -> bytes:
        """The beginning of the usage region."""

    @abc.abstractmethod
    def close(self) -> None: ...

    def audited(self) -> dict[str, object] | None:
        """What vgpud says of its use of its first card: `used`, `seen` by NVML, whether it has `judged` them and has
        `doubted` the use. None: there is no vgpud."""
        return None

    def change(self) -> int:
        """Twice what a change of contexts takes, in ns, by libvcuda; 0: not measured yet."""
        return 2 * usage.change(self.region()[: usage.CARDS_END])[1]


class Way(abc.ABC):
    """`name` as in the report; `cannot` has for rows that this way cannot judge the reason; `cards` in use."""

    name: str
    cannot: Mapping[str, str] = MappingProxyType({})

    def __init__(self, directory: str, program: str, driver_directory: str, nvml: str) -> None:
        self.directory, self.program = directory, program
        self.nvml = nvml  #: the path of the driver's NVML
        self.driver_directory = driver_directory  #: of the driver's own libraries; "": the loader finds them
        self.logs = itertools.count()
        self.cards: list[str] = []  #: of the boxes that are made from now on
        self.visible = ""  #: for CUDA_VISIBLE_DEVICES of programs outside containers, on a node with MIG instances
        self.free_cards: list[str] = []  #: those on which a test would disturb nobody

    def log(self) -> str:
        return f"{self.directory}/log{next(self.logs)}"

    def environment(self) -> dict[str, str]:
        """Of the programs outside containers."""
        return {**os.environ, **({"CUDA_VISIBLE_DEVICES": self.visible} if self.visible else {})}

    def plain(self) -> Program:
        """A program without limits."""
        environment = self.environment()
        if self.driver_directory:
            environment["LD_LIBRARY_PATH"] = self.driver_directory
        return Program([self.program], self.log(), environment)

    @abc.abstractmethod
    def box(self, share: Share) -> Box:
        """A new box on `cards`."""

    def other_nodes(self, uuid: str) -> list[tuple[int, int]]:
        """The device numbers of the node's other cards."""
        return []

    @abc.abstractmethod
    def disturbed(self, uuid: str) -> list[str]:
        """Whom a test on the card would disturb, besides the processes that NVML lists there."""

    @abc.abstractmethod
    def close(self) -> None:
        """End what is left."""
