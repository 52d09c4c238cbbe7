"""The way through containers: the node's own runtime and hook, a claim in the ledger, a device cgroup.

Belongs here: bundles with nothing in them but the program and this machine's loader and C library, and runc or crun on
them. Does not belong here: changing a share, which the caller does as `vgpuctl set` does. Runs as root.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

from vgpu.config import claims, usage
from vgpu.config.errors import VgpuError, shown
from vgpu.config.inventory import Inventory, nvml_of
from vgpu.config.limits import CardLimit
from vgpu.config.settings import Settings
from vgpu.hook.ledger.ledger import Ledger
from vgpu.node.daemon import client
from vgpu.node.runtimes import programs, verify
from vgpu.node.runtimes.registration import RUNTIMES
from vgpu.node.selftest.program import NAME, NotJudged, Program
from vgpu.node.selftest.way import Box, Share, Way

OCI = ("runc", "crun")
STATE = "state"
PAUSE = 0.01  #: seconds between two looks for a file of the runtime
WHICH = "runtime"  #: a file with the runtime's name, for the run that ends what a killed one has left
#: What the driver's libraries and programs need of the C library, besides what the program needs.
PARTS = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1")
HOOK_ENVIRONMENT = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
#: (container, its new limits)
Change = Callable[[str, list[CardLimit]], None]


def chosen(name: str) -> str:
    """The runtime to use; NotJudged if there is none, or this way does not know it."""
    if name and name not in OCI:
        do = f"{name} starts its containers by one of them" if name in RUNTIMES else "see: docs/selftest.md"
        raise NotJudged("--runtime", expected=" or ".join(OCI), found=name, do=do)
    found = name if name and shutil.which(name) else next(filter(shutil.which, () if name else OCI), "")
    if not found:
        raise NotJudged(
            name or "a runtime", expected=name or " or ".join(OCI), found="none", do="install it, or --bare"
        )
    return found


def end(directory: str) -> None:
    """Delete the containers that a run in this directory has left."""
    with contextlib.suppress(FileNotFoundError):
        with open(f"{directory}/{WHICH}", encoding="utf-8") as file:
            runtime = file.read()
        for container in os.listdir(f"{directory}/{STATE}"):
            programs.run([runtime, "--root", f"{directory}/{STATE}", "delete", "--force", container])


class ContainerBox(Box):
    def __init__(self, way: Containers, number: int, share: Share) -> None:
        self.way = way
        self.id = f"{NAME}-{os.getpid()}-{number}"
        self.path = f"{way.directory}/{self.id}"
        self.programs: list[Program] = []
        self.pid_files: dict[int, str] = {}
        make_root(f"{self.path}/rootfs", way.program)
        with open(f"{self.path}/config.json", "w", encoding="utf-8") as file:
            json.dump(self._spec(share), file)

    def _spec(self, share: Share) -> dict[str, Any]:
        way = self.way
        pairs = [("cores", str(share.cores)), ("memory", f"{share.memory >> 20}Mi"), ("gpus", str(len(way.cards)))]
        pairs += [("core-limit", str(share.core_limit))] if share.core_limit else []
        pairs += [("use-gpuuuid", uuid) for uuid in way.cards]
        hooks = {
            stage: [{"path": way.hook, "args": ["vgpu-hook", "--config", way.config_path, stage],
                     "env": HOOK_ENVIRONMENT}]
            for stage in ("createRuntime", "poststop")
        }  # fmt: skip
        mounts = [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
        ]
        return {
            "ociVersion": "1.0.2",
            "process": {
                "terminal": False, "user": {"uid": 0, "gid": 0}, "args": [f"/{NAME}"], "cwd": "/",
                "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"], "noNewPrivileges": True,
                "capabilities": {key: ["CAP_MKNOD"] for key in ("bounding", "effective", "permitted")},
            },
            "root": {"path": "rootfs"}, "mounts": mounts, "hooks": hooks,
            "annotations": verify.request_annotations(way.node, pairs),
            "linux": {
                "resources": {"devices": [{"allow": False, "access": "rwm"}]},
                "namespaces": [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount")],
            },
        }  # fmt: skip

    def start(self) -> Program:
        if not self.programs:
            words = ["run", "--bundle", self.path, self.id]
        else:
            pid_file = f"{self.path}/pid{len(self.programs)}"
            words = ["exec", "--pid-file", pid_file, self.id, f"/{NAME}"]
        program = Program(self.way.command(*words), self.way.log())
        if self.programs:
            self.pid_files[program.pid] = pid_file
        self.programs.append(program)
        return program

    def kill(self, program: Program) -> None:
        while not (pid := _read(self.pid_files[program.pid])):  # the runtime writes it a moment after the program runs
            time.sleep(PAUSE)
        os.kill(int(pid), signal.SIGKILL)
        program.close()

    def set(self, share: Share) -> None:
        self.way.change(self.id, [share.on(uuid) for uuid in self.way.cards])

    def output(self, *command: str) -> str | None:
        done = programs.run(self.way.command("exec", self.id, *command))
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
        pid = claims.read(self.way.node.run_dir, self.id).pid
        with open(f"/proc/{pid}/root{usage.PATH}", "rb") as file:
            return file.read(usage.CARDS_END)

    def close(self) -> None:
        for program in reversed(self.programs):
            program.close()
        programs.run(self.way.command("delete", "--force", self.id))
        shutil.rmtree(self.path, ignore_errors=True)
        self.way.boxes.pop(self.id, None)


class Containers(Way):
    def __init__(
        self, directory: str, program: str, runtime: str, node: Settings, config_path: str, known: Inventory,
        hook: str, change: Change,
    ) -> None:  # fmt: skip
        found = [library.path for library in known.libraries if library.soname == "libcuda.so.1" and library.bits == 64]
        if not found:
            raise NotJudged("the inventory", expected="libcuda.so.1", found="none", do="run: vgpuctl inventory refresh")
        super().__init__(directory, program, os.path.dirname(found[0]), nvml_of(known.libraries))
        self.name = self.runtime = runtime
        self.node, self.config_path, self.known, self.hook, self.change = node, config_path, known, hook, change
        self.boxes: dict[str, Box] = {}
        self.made = 0
        with open(f"{directory}/{WHICH}", "w", encoding="utf-8") as file:
            file.write(runtime)

    def command(self, *words: str) -> list[str]:
        return [self.runtime, "--root", f"{self.directory}/{STATE}", *words]

    def box(self, share: Share) -> Box:
        self.made += 1
        made = ContainerBox(self, self.made, share)
        self.boxes[made.id] = made
        return made

    def other_nodes(self, uuid: str) -> list[tuple[int, int]]:
        return [(card.device.major, card.device.minor) for card in self.known.cards if card.uuid != uuid]

    def disturbed(self, uuid: str) -> list[str]:
        ledger = Ledger(self.node, self.known.cards)
        held = [claim for claim in ledger.claims() if uuid in (card.uuid for card in claim.cards)]
        return [f"container {claim.name or claim.container}" for claim in held]

    def close(self) -> None:
        for box in list(self.boxes.values()):
            box.close()


def _read(path: str) -> str:
    """The content of a file of the runtime, "" while there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
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
