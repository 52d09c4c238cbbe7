"""The way through containers: the node's own runtime and hook, a claim in the ledger, a device cgroup.

Belongs here: a root file system with nothing in it but the program and this machine's loader and C library, and the
programs in containers on it. Does not belong here: the runtimes' command lines (clients.py), and changing a share,
which the caller does as `vgpuctl set` does. Runs as root.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator

import psutil

from vgpu.config import claims, paths, usage
from vgpu.config.errors import VgpuError, shown
from vgpu.config.inventory import Inventory, nvml_of
from vgpu.config.limits import CardLimit
from vgpu.config.settings import Settings
from vgpu.hook.ledger.ledger import Ledger
from vgpu.node.daemon import client, slot_owners
from vgpu.node.runtimes import programs, verify
from vgpu.node.selftest.clients import Client, end_container
from vgpu.node.selftest.program import NAME, NotJudged, Program
from vgpu.node.selftest.way import Box, Share, Way

PAUSE = 0.05  #: seconds between two looks for what a runtime does
RELEASED_WITHIN = 60  #: seconds from a container's end to the end of its claim: Docker's client does not wait for it
#: What the driver's libraries and programs need of the C library, besides what the program needs.
PARTS = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1")
#: (container, its new limits)
Change = Callable[[str, list[CardLimit]], None]


class ContainerBox(Box):
    def __init__(self, way: Containers, number: int, share: Share) -> None:
        self.way, self.share = way, share
        self.name = f"{NAME}-{os.getpid()}-{number}"
        self.path = f"{way.directory}/{self.name}"
        self.programs: list[Program] = []
        self.known = ""
        make_root(f"{self.path}/rootfs", way.program)

    def _annotations(self) -> dict[str, str]:
        way, share = self.way, self.share
        pairs = [("cores", str(share.cores)), ("memory", f"{share.memory >> 20}Mi"), ("gpus", str(len(way.cards)))]
        pairs += [("core-limit", str(share.core_limit))] if share.core_limit else []
        pairs += [("use-gpuuuid", uuid) for uuid in way.cards]
        return verify.request_annotations(way.node, pairs)

    @property
    def id(self) -> str:
        """The container's id in the ledger; once a program in it has answered."""
        if not self.known:
            self.known = self.way.client.id_of(self.name)
        return self.known

    @property
    def init(self) -> int:
        return claims.read(self.way.node.run_dir, self.id).pid

    def start(self) -> Program:
        runtime = self.way.client
        if self.programs:
            command = runtime.further(self.name, f"/{NAME}")
        else:
            command = runtime.run(self.name, self.path, self._annotations())
        self.programs.append(Program(command, self.way.log()))
        return self.programs[-1]

    def kill(self, program: Program) -> None:
        """By the host's pid: runtimes differ in how one kills a further program, and not all can."""
        own = int(program.ask("processes")["own"])
        namespace = _pid_namespace(self.init)
        here = [pid for pid in psutil.pids() if _pid_namespace(pid) == namespace and slot_owners.pid_inside(pid) == own]
        if len(here) != 1:
            raise VgpuError("the program in the container", expected=f"its pid {own} there", found=str(here))
        os.kill(here[0], signal.SIGKILL)
        program.close()

    def set(self, share: Share) -> None:
        self.way.change(self.id, [share.on(uuid) for uuid in self.way.cards])

    def output(self, *command: str) -> str | None:
        done = programs.run(self.way.client.further(self.name, *command))
        return done.stdout if done.returncode == 0 else None

    def audited(self) -> dict[str, object] | None:
        try:
            found = client.ask(self.way.node.run_dir, "health").get("cores")
        except VgpuError:
            return None
        rows = [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []
        mine = (row for row in rows if (row.get("container"), row.get("card")) == (self.id, self.way.cards[0]))
        return next(mine, {})

    def region(self) -> bytes:
        with open(f"/proc/{self.init}/root{usage.PATH}", "rb") as file:
            return file.read(usage.CARDS_END)

    def close(self) -> None:
        container = self.id if self.programs else ""
        for program in reversed(self.programs):
            program.close()
        end_container(self.way.client, self.name)
        if container:
            self._wait_for_release(paths.container(self.way.node.run_dir, container))
        shutil.rmtree(self.path, ignore_errors=True)
        self.way.boxes.pop(self.name, None)

    @staticmethod
    def _wait_for_release(claimed: str) -> None:
        """The next container may need the room."""
        deadline = time.monotonic() + RELEASED_WITHIN
        while os.path.exists(claimed):
            if time.monotonic() > deadline:
                raise VgpuError("a container's claim", expected="an end with the container", found="none")
            time.sleep(PAUSE)


class Containers(Way):
    def __init__(
        self, directory: str, program: str, runtime: str, runs: Client, node: Settings, known: Inventory, change: Change
    ) -> None:
        found = [library.path for library in known.libraries if library.soname == "libcuda.so.1" and library.bits == 64]
        if not found:
            raise NotJudged("the inventory", expected="libcuda.so.1", found="none", do="run: vgpuctl inventory refresh")
        super().__init__(directory, program, os.path.dirname(found[0]), nvml_of(known.libraries))
        self.name, self.client, self.node, self.known, self.change = runtime, runs, node, known, change
        self.boxes: dict[str, Box] = {}
        self.made = 0

    def box(self, share: Share) -> Box:
        self.made += 1
        made = ContainerBox(self, self.made, share)
        self.boxes[made.name] = made
        return made

    def other_nodes(self, uuid: str) -> list[tuple[int, int]]:
        nodes = {card.uuid: {(node.major, node.minor) for node in card.nodes} for card in self.known.cards}
        return sorted(set().union(*nodes.values()) - nodes[uuid])

    def disturbed(self, uuid: str) -> list[str]:
        ledger = Ledger(self.node, self.known.cards)
        held = [claim for claim in ledger.claims() if uuid in (card.uuid for card in claim.cards)]
        return [f"container {claim.name or claim.container}" for claim in held]

    def close(self) -> None:
        for box in list(self.boxes.values()):
            box.close()


def _pid_namespace(pid: int) -> str:
    """ "" for a process that has ended."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def make_root(root: str, program: str) -> None:
    """A root file system with the program, its loader and the C library, and nothing else."""
    for name in ("usr/bin", "usr/lib", "usr/lib64", "proc", "dev", "etc", "tmp", "run"):
        os.makedirs(f"{root}/{name}")
    for name in ("bin", "lib", "lib64"):
        os.symlink(f"usr/{name}", f"{root}/{name}")
    for path in needed(program):
        target = root + path
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copy(path, target)
    shutil.copy(program, f"{root}/{NAME}")


def needed(program: str) -> Iterator[str]:
    """The loader of this machine and the files of its C library, by the names by which a program asks for them."""
    done = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    paths = [word for line in done.stdout.splitlines() for word in line.split() if word.startswith("/")]
    libc = next((path for path in paths if os.path.basename(path) == PARTS[0]), "")
    if not libc:
        raise NotJudged("ldd vgpu-selftest", expected="a C library", found=shown(done.stderr or done.stdout))
    beside = (f"{os.path.dirname(libc)}/{name}" for name in PARTS)
    yield from dict.fromkeys([*paths, *(path for path in beside if os.path.exists(path))])
