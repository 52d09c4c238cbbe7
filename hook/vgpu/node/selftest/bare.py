"""The way without a runtime, a cgroup or root: libvcuda by the loader's path, with limits files of its own.

Belongs here: a copy of libvcuda whose private directory is one of the user's. The library has that directory's name in
it, /usr/local/vgpu, where an ordinary user can make nothing; in a copy it is another name of the same length, so that
no byte moves. It ends in `vgpu` too: compilers build the constants of such paths from overlapping parts.
"""

from __future__ import annotations

import os
import shutil
import string
import subprocess
import sys
from collections.abc import Iterator
from types import MappingProxyType

from vgpu.config import claims, core_schedule, limits, paths, records, usage
from vgpu.config.errors import VgpuError
from vgpu.node.selftest.program import NotJudged, Program
from vgpu.node.selftest.way import Box, Share, Way

LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
NO_CONTAINER = "without a container there is no device cgroup and no hook"
FIND = """
import ctypes, sys
ctypes.CDLL(sys.argv[1])
print(next(line.split()[-1] for line in open("/proc/self/maps") if sys.argv[1].split(".")[0] + ".so" in line))
"""
NAMES = string.digits + string.ascii_lowercase
NVIDIA_SMI = "nvidia-smi"


def places() -> Iterator[str]:
    """The directories of which a run takes one. With a box's letter and `vgpu` each is as long as PRIVATE_DIR."""
    return (f"/tmp/.v{letter}" for letter in NAMES)  # noqa: S108 - made by mkdir, of this user, or not taken


def private(place: str, letter: str) -> str:
    made = f"{place}/{letter}/vgpu"
    assert len(made) == len(limits.PRIVATE_DIR)
    return made


def driver_file(name: str) -> str:
    """The file that the loader finds for a library of the driver. A child loads it, so that it does not stay here."""
    done = subprocess.run([sys.executable, "-c", FIND, name], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotJudged(name, expected="the driver's library", found="none on the loader's path",
                        do="install the driver, or start this container with a card")  # fmt: skip
    return done.stdout.strip()


class BareBox(Box):
    """One copy of libvcuda and its private directory at `path`."""

    def __init__(self, way: Bare, letter: str, share: Share) -> None:
        self.way, self.letter, self.share = way, letter, share
        self.path = private(way.directory, letter)
        self.programs: list[Program] = []
        for name in ("driver", "libraries", "presence", "usage"):
            os.makedirs(f"{self.path}/{name}")
        for name, file in way.driver.items():
            os.symlink(file, f"{self.path}/driver/{name}")
            self._copy(name)
        for name in usage.SHARE_FILES:
            records.write_bytes(f"{self.path}/usage/{name}", b"")
        with open(f"{self.path}/usage/usage", "wb") as region:
            region.write(usage.BEGINNING)
            region.truncate(usage.SIZE)
        for uuid in way.cards:
            os.link(way.presence(uuid), f"{self.path}/presence/{core_schedule.presence_name(uuid)}")
        records.write_bytes(f"{self.path}/limits", limits.encode("selftest", self._limits()))

    def _limits(self) -> list[limits.CardLimit]:
        return [self.share.on(uuid) for uuid in self.way.cards]

    def _copy(self, name: str) -> None:
        with open(f"{self.way.libvcuda}/{name}", "rb") as file:
            packaged = file.read()
        old, new = limits.PRIVATE_DIR.encode(), self.path.encode()
        if old not in packaged:
            raise NotJudged(f"{name} of vgpu", expected=f"a library that names {limits.PRIVATE_DIR}", found="another")
        records.write_bytes(f"{self.path}/libraries/{name}", packaged.replace(old, new))

    @property
    def environment(self) -> dict[str, str]:
        found = os.environ.get("LD_LIBRARY_PATH", "")
        paths = [f"{self.path}/libraries", *filter(None, [found])]
        return {**self.way.environment(), "LD_LIBRARY_PATH": ":".join(paths)}

    def start(self) -> Program:
        self.programs.append(Program([self.way.program], self.way.log(), self.environment))
        return self.programs[-1]

    def kill(self, program: Program) -> None:
        program.process.kill()
        program.close()

    def set(self, share: Share) -> None:
        self.share = share
        limits.update(f"{self.path}/limits", "selftest", self._limits())
        self.way.divide()

    def output(self, *command: str) -> str | None:
        try:
            done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        except OSError:
            return None
        return done.stdout if done.returncode == 0 else None

    def region(self) -> bytes:
        with open(f"{self.path}/usage/usage", "rb") as file:
            return file.read(usage.CARDS_END)

    def close(self) -> None:
        for program in self.programs:
            program.close()
        self.way.leave(self)


class Bare(Way):
    name = "bare"
    cannot = MappingProxyType({"device.second-card": NO_CONTAINER, "audit.use": NO_CONTAINER})

    def __init__(self, directory: str, program: str, libvcuda: str, run_dir: str) -> None:
        if os.path.exists(limits.LIMITS_PATH):
            raise NotJudged("self-test --bare", expected="a whole card", found="a container that has a share already",
                            do="run it on the node, or in a container with a whole card")  # fmt: skip
        for name in LIBRARIES:
            if not os.path.exists(f"{libvcuda}/{name}"):
                raise NotJudged(f"{libvcuda}/{name}", expected="libvcuda", found="none", do="install vgpu")
        self.libvcuda, self.run_dir = libvcuda, run_dir
        self.driver = {name: driver_file(name) for name in LIBRARIES}
        super().__init__(directory, program, "", self.driver[LIBRARIES[1]])
        self.boxes: dict[str, BareBox] = {}

    def presence(self, uuid: str) -> str:
        path = f"{self.directory}/{core_schedule.presence_name(uuid)}"
        if not os.path.exists(path):
            records.write_bytes(path, bytes(core_schedule.PRESENCE_SIZE))
        return path

    def box(self, share: Share) -> Box:
        letter = next(letter for letter in NAMES if not os.path.exists(f"{self.directory}/{letter}"))
        made = self.boxes[letter] = BareBox(self, letter, share)
        self.divide()
        return made

    def leave(self, box: BareBox) -> None:
        if self.boxes.pop(box.letter, None):
            shutil.rmtree(f"{self.directory}/{box.letter}")
            self.divide()

    def divide(self) -> None:
        """Write each box's core schedules, as the hook does at every claim, release and change."""
        tenants = {letter: dict.fromkeys(self.cards, box.share.cores) for letter, box in self.boxes.items()}
        for letter, entries in core_schedule.schedules(tenants).items():
            path = f"{self.boxes[letter].path}/cards"
            if not os.path.exists(path):
                records.write_bytes(path, core_schedule.encode(entries))
            for entry in entries:
                core_schedule.update(path, entry)

    def disturbed(self, uuid: str) -> list[str]:
        """The containers with claims, where this is a node; of each one an ordinary user sees only that it is there."""
        directory, found = paths.containers(self.run_dir), []
        for container in os.listdir(directory) if os.path.isdir(directory) else ():
            try:
                claim = claims.read(self.run_dir, container)
            except (OSError, VgpuError):
                found.append("a container, perhaps: only root can look")
            else:
                if uuid in (card.uuid for card in claim.cards):
                    found.append(f"container {claim.name or claim.container}")
        return found

    def close(self) -> None:
        for box in list(self.boxes.values()):
            box.close()
