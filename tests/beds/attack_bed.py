"""The node that the attacks of tests/system/attacks aim at: its snapshot, a neighbour at work, tenants.

Belongs here: what every attack needs. Not here: the attacks (tests/system/attacks), their records (attack_records), the
rounds without a runtime (attack_rounds).
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import bundles
import container_site
import nodes
from attack_rounds import LONGEST
from checkout import CHECKOUT, LIBRARIES
from container_site import OLD_KERNELS, copied, mounts_with
from daemons import wait_for

from vgpu.config import core_schedule, limits, paths

TENANT = CHECKOUT / "tests/data/attacks/tenant.c"
ROUNDS = CHECKOUT / "tests/beds/attack_rounds.py"
#: What container runtimes give to a container by default.
CAPABILITIES = [
    f"CAP_{name}"
    for name in (
        "CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID", "SETUID", "SETFCAP", "SETPCAP",
        "NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE",
    )
]  # fmt: skip
STRONG = [*CAPABILITIES, "CAP_SYS_ADMIN", "CAP_SYS_PTRACE"]
OLD_KERNEL = ",".join(map(str, OLD_KERNELS["4.18"]))
VOLATILE = (
    "hook.log", "hook.log.1", "ledger.lock", "vgpud.sock", "vgpud.lock", "foreign.json", "health.json", "plugin.json",
    "context-sizes.json", "round.json", "held-time.json", "held-time.log",
)  # fmt: skip
STAYS = ("run/staging", "run/metrics")  #: the hook's empty directory and vgpud's, made at the first need
PASSING = ("sim/", "sim-", "vgpud.log", "run/metrics/.")  #: beginnings of names
MS = 1_000_000


def compiled(directory: Path) -> dict[str, Path]:
    """The tenant's program and the neighbour's."""
    return {"tenant": bundles.static_program(TENANT, directory), "load": bundles.load_generator(directory)}


class Site(container_site.Site):
    """A node of one card, the programs, and a runtime whose containers carry the prefix of this file's."""

    def __init__(
        self, node: nodes.SimulatedNode, directory: Path, tree: Path, runtime: bundles.Runtime,
        programs: dict[str, Path],
    ) -> None:  # fmt: skip
        super().__init__(node, directory, {})
        self.runtime, self.programs = runtime, programs
        self.root = copied(tree, directory)
        self.before = set(runtime.started)

    # ---- containers ----

    def bundle(self, strong: bool = False, **annotations: str) -> bundles.Bundle:  # type: ignore[override]
        """A container with the runtime's default capabilities and the tenant's program; by default with a share."""
        made = super().bundle(self.root, **(annotations or {"cores": "20", "memory": "1Gi"}))
        kinds = ("bounding", "effective", "permitted")
        made.config["process"]["capabilities"] = dict.fromkeys(kinds, STRONG if strong else CAPABILITIES)
        return made.bind(self.programs["tenant"], "/usr/bin/tenant", "ro")

    def end(self) -> None:
        """End this test's containers. The runtime has others of the same file."""
        self.daemon.kill()
        for container in set(self.runtime.started) - self.before:
            self.delete(container)
            self.runtime.started.remove(container)

    def attacker(self, *words: str, strong: bool = False, host_pids: bool = False) -> str:
        """A container with a share whose attack has begun."""
        bundle = self.bundle(strong=strong)
        if host_pids:
            namespaces = bundle.config["linux"]["namespaces"]
            bundle.config["linux"]["namespaces"] = [item for item in namespaces if item["type"] != "pid"]
        container = self.start(bundle, "tenant", *words)
        wait_for(lambda: "ready" in self.printed(bundle), what=lambda: self.printed(bundle))
        return container

    def printed(self, bundle: bundles.Bundle) -> str:
        return (bundle.path / "output").read_text()

    def starts(self, count: int, **annotations: str) -> None:
        """Start so many containers one after the other: none is refused, and none waits for a tenant."""
        for number in range(count):
            began = time.monotonic()
            done = self.runtime.run(self.bundle(**annotations))
            assert done.returncode == 0, f"start {number}: {done.stderr}"
            assert time.monotonic() - began < LONGEST, f"start {number} took {time.monotonic() - began:.1f} s"

    # ---- processes on the host ----

    @contextmanager
    def process(self, *words: str) -> Iterator[subprocess.Popen[bytes]]:
        """The tenant's program on the host, with the effect of another container of the same tenant."""
        process = subprocess.Popen([str(self.programs["tenant"]), *words], stdout=subprocess.PIPE)
        assert process.stdout is not None
        try:
            while process.stdout.readline() not in (b"ready\n", b""):
                pass
            yield process
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
            process.stdout.close()

    def rounds(
        self, bundle: bundles.Bundle, count: int, volumes: Iterable[tuple[Path, str]] = (),
        untouched: Iterable[Path] = (), without: str = "",
    ) -> dict[str, Any]:  # fmt: skip
        """So many starts of the hook in one process (attack_rounds). The system calls `without` fail there."""
        order = {
            "tenant": str(self.programs["tenant"]),
            "bundle": str(bundle.write()),
            "rootfs": str(bundle.rootfs),
            "volumes": [(str(source), path) for source, path in volumes],
            "rounds": count,
            "host": [str(path) for path in driver_files(self.node)],
            "untouched": [str(path) for path in untouched],
        }
        file = bundle.path / "order.json"
        file.write_text(json.dumps(order))
        command = [sys.executable, str(ROUNDS), str(file)]
        if without:
            command = [sys.executable, bundles.WITHOUT_CALLS, without, *command]
        ways = [*(str(path) for path in LIBRARIES), *(path for path in sys.path if path)]
        environment = {**self.node.environment(), "PYTHONPATH": ":".join(ways)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)  # type: ignore[no-any-return]


def driver_files(node: nodes.SimulatedNode) -> list[Path]:
    """The driver's files of the host, and libvcuda."""
    libvcuda = Path(node.settings.text("paths.libvcuda"))
    return [path for top in (node.driver, libvcuda) for path in sorted(top.rglob("*")) if path.is_file()]


class Neighbour:
    """A container beside the attacker, whose program always wants more of the card."""

    CORES = 30

    def __init__(self, site: Site) -> None:
        self.site = site
        share = site.bundle(cores=str(self.CORES), memory="2Gi").bind(
            site.programs["load"], "/usr/bin/cores_load", "ro"
        )
        share.config["process"]["env"].append("VGPU_SIM_GROUP=77")
        self.container = site.start(share, "cores_load", "kernel=fixed:1000000", "wait=0", "end=3600000000000")
        wait_for(lambda: self.busy() > 0, what=lambda: site.printed(share))
        self.pid = site.pid(self.container)
        self.before = self.records()

    def busy(self) -> int:
        processes = [process for card in self.site.node.read_cards() for process in card["processes"]]
        return sum(int(process["busy_ns"]) for process in processes if process["group"] == 77)

    def share(self, seconds: float = 1.5) -> float:
        """Percent of the card's time that it uses from now on."""
        began, busy = time.monotonic(), self.busy()
        time.sleep(seconds)
        return (self.busy() - busy) / ((time.monotonic() - began) * 1e9) * 100

    def records(self) -> tuple[Any, ...]:
        """What the host promises it, as far as that does not depend on who else is there."""
        run = self.site.node.settings.run_dir
        claim = json.loads(Path(paths.claim(run, self.container)).read_text())
        _, cards, _ = limits.decode(Path(paths.limits(run, self.container)).read_bytes())
        schedules, _ = core_schedule.decode(Path(paths.core_schedules(run, self.container)).read_bytes())
        return claim, [card.key() for card in cards], [schedule.uuid for schedule in schedules]

    def is_undisturbed(self) -> bool:
        """It makes progress, holds what it held, and is alone with its share again."""
        busy = self.busy()
        wait_for(lambda: self.busy() - busy > 3 * MS, 120, "the neighbour makes no progress")
        assert self.records() == self.before
        assert Path(f"/proc/{self.pid}").exists()
        return True


class Snapshot:
    """What must be the same on the host before and after a round."""

    def __init__(self, node: nodes.Node, prefix: str, pids: Callable[[], Iterable[int]]) -> None:
        self.node = node
        self.prefix = prefix
        self.pids = pids

    def take(self) -> dict[str, Any]:
        return {
            "files": dict(self._files()),
            "mounts": self._mounts(),
            "cgroups": self._cgroups(),
            "descriptors": {pid: self._descriptors(pid) for pid in (os.getpid(), *self.pids())},
            "locks": self._locks(),
            "processes": self._processes(),
        }

    def _files(self) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """State, run and driver: kind, mode, owner and content. The live files are the neighbour's to judge."""
        for path in sorted(self.node.directory.rglob("*")):
            name = str(path.relative_to(self.node.directory))
            if path.name in VOLATILE or name in STAYS or name.startswith(PASSING):
                continue
            with suppress(FileNotFoundError):
                status = path.lstat()
                kept = (oct(status.st_mode), status.st_uid, status.st_gid)
                if path.is_symlink():
                    yield name, (*kept, os.readlink(path))
                elif path.is_file() and path.name not in ("cards", "limits", "inventory.json"):
                    inode = status.st_ino if path.name.startswith("presence-") else 0  # locks on it belong to the inode
                    yield name, (*kept, inode, hashlib.sha256(path.read_bytes()).hexdigest())
                else:
                    yield name, kept

    def _mounts(self) -> list[str]:
        mine = (str(self.node.directory.parents[1]), "/usr/local/vgpu", "/usr/local/nvidia", self.prefix)
        return [line for line in mounts_with("") if any(part in line for part in mine)]

    def _cgroups(self) -> list[str]:
        return sorted(
            os.path.join(top, name)
            for top, directories, _ in os.walk("/sys/fs/cgroup")
            for name in directories
            if name.startswith(self.prefix)
        )

    def _descriptors(self, pid: int) -> list[str]:
        found = []
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
        return sorted(link for link in found if link.startswith("/") and not link.startswith("/proc"))

    def _locks(self) -> list[str]:
        """Leases and locks on files of the node by which anybody could be kept waiting; not those of presence."""
        tops = [self.node.directory / name for name in ("state", "run", "driver", "libvcuda")]
        files = (path for top in tops for path in top.rglob("*") if not path.name.startswith("presence-"))
        inodes = {path.lstat().st_ino for path in files}
        lines = Path("/proc/locks").read_text().splitlines()
        return [line.partition(": ")[2] for line in lines if int(line.split(":")[-1].split()[0]) in inodes]

    def _processes(self) -> list[str]:
        """Processes of vgpu that outlive their work: the hook's, its children."""
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and str(self.node.config) in (entry / "cmdline").read_text():
                    found.append((entry / "cmdline").read_text().replace("\0", " "))
        return sorted(line for line in found if "vgpud" not in line)


def difference(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What is not the same, one line each."""
    found = []
    for part, value in before.items():
        now = after[part]
        if isinstance(value, dict):
            for key in sorted({*value, *now}, key=str):
                if value.get(key) != now.get(key):
                    found.append(f"{part}: {key}: {value.get(key)} -> {now.get(key)}")
        elif value != now:
            found.append(f"{part}: {value} -> {now}")
    return found
