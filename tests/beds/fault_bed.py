"""Starts of containers under one fault each, and what has to hold after every one of them.

Belongs here: a container without a runtime (a process with a mount namespace, a root file system and a device cgroup),
the hook on it with a fault (fault_hook), and the checks. A fault in a runtime's container would be hidden: the runtime
destroys the container after a refusal, and with it whatever the hook left inside. Here the container lives on.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bundles
import cgroup_trees
import nodes
from fake_systemd import FakeSystemd, Unit
from fault_errnos import ERRNOS, EXEMPT, OF_SERVICES

from vgpu.config import claims, core_schedule, paths, prepared
from vgpu.config.errors import VgpuError
from vgpu.hook.linux import staleness

BEDS = Path(__file__).parent
LAST = 20
PATIENCE = 120.0  #: seconds for what a process does that nobody waits for
LOGS = ("hook.log", "hook.log.1")
SHARED = ("presence-", "containers", "staging")  #: made by the first start that needs them; they stay
#: Cores and GiB of memory of a start, so that a lost one denies the next on the node's one card, and of a neighbour.
SHARE, NEIGHBOUR = (60, 8), (10, 1)

#: A container's mounts before any hook: its root is an overlay whose changes end with it.
CONTAINER = """set -e
mount --make-rprivate /; mount -t tmpfs upper "$2"; mkdir "$2/u" "$2/w"
mount -t overlay -o "lowerdir=$1,upperdir=$2/u,workdir=$2/w" root "$3"
mount -t tmpfs dev "$3/dev"; mount -t proc proc "$3/proc"; echo; exec sleep 3600
"""


def compile_library(directory: Path) -> Path:
    """fault_calls.c as a library."""
    library = directory / "libfault_calls.so"
    command = ["cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-shared", "-o"]
    subprocess.run([*command, library, BEDS / "fault_calls.c"], check=True)
    return library


def numbers(directory: Path) -> dict[str, int]:
    """The numbers of the system calls of all tables on this machine's processor."""
    names = sorted({*ERRNOS, *EXEMPT, *OF_SERVICES})
    lines = "".join(f'#ifdef SYS_{name}\nprintf("{name} %d\\n", SYS_{name});\n#endif\n' for name in names)
    source, program = directory / "numbers.c", directory / "numbers"
    source.write_text(f"#include <stdio.h>\n#include <sys/syscall.h>\nint main(void)\n{{\n{lines}return 0;\n}}\n")
    subprocess.run(["cc", "-o", program, source], check=True)
    found = (
        line.split()
        for line in subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()
    )
    return {name: int(number) for name, number in found}


@dataclass(frozen=True)
class Fault:
    """`error` "" kills the process. `sticky`: the calls that go on failing afterwards. `first` happens before it."""

    site: str = ""
    occurrence: int = 1
    error: str = ""
    sticky: tuple[str, ...] = ()
    first: Fault | None = None

    def order(self) -> list[dict[str, object]]:
        error = getattr(errno, self.error) if self.error else 0
        own = {"site": self.site, "occurrence": self.occurrence, "error": error, "sticky": list(self.sticky)}
        return [*(self.first.order() if self.first else []), own]

    def describe(self) -> str:
        return f"{self.error or 'kill -9'}{' for ever' * bool(self.sticky)} at {self.site} ({self.occurrence})"


@dataclass
class Tools:
    """What fault_hook needs, made once."""

    directory: Path
    run: str = "/run"  #: where the hook looks for systemd, and how many seconds it waits for it
    wait: float = 10.0
    library: Path = field(init=False)
    numbers: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.library = compile_library(self.directory)
        self.numbers = numbers(self.directory)

    def command(self, fault: Fault, *program: str, without: tuple[int, ...] = ()) -> list[str]:
        """The command that runs `program` with the fault; `happened` and `sites` say afterwards what it did."""
        self.out.unlink(missing_ok=True)
        order = {
            "out": str(self.out), "numbers": self.numbers, "faults": fault.order(),
            "path": [path for path in sys.path if path], "run": self.run, "wait": self.wait,
        }  # fmt: skip
        path = self.directory / "order.json"
        path.write_text(json.dumps(order))
        command = ["/usr/bin/python3", "-I", "-S", str(BEDS / "fault_hook.py"), str(self.library), str(path), *program]
        if without:
            command = ["/usr/bin/python3", bundles.WITHOUT_CALLS, ",".join(map(str, without)), *command]
        return command

    @property
    def out(self) -> Path:
        return self.directory / "happened"

    def happened(self, fault: Fault) -> bool:
        return self.out.exists() and f"happened {fault.site}" in self.out.read_text().splitlines()

    def sites(self) -> list[str]:
        lines = self.out.read_text().splitlines() if self.out.exists() else []
        return [line for line in lines if not line.startswith("happened ")]


class Container:
    """A living container before its pivot_root, with no device permitted."""

    def __init__(
        self, directory: Path, tree: Path, node: nodes.SimulatedNode, top: str, pod: str, amounts: tuple[int, int],
        suffix: str = "", claim: bool = False,
    ) -> None:  # fmt: skip
        self.id = f"fault-{uuid.uuid4().hex[:8]}{suffix}"
        self.node = node
        self.records: list[str] = []  #: of the plugin, for as long as the pod is there
        self.options: list[str] = []  #: of the hook
        self.root = directory / "root"
        upper = directory / "upper"
        for path in (self.root, upper):
            path.mkdir(parents=True, exist_ok=True)
        place = f"{bundles.pod_cgroup(top, pod)}/{self.id}" if pod else f"{top}/{self.id}"
        self.devices = Path(f"/sys/fs/cgroup/devices{place}")
        self.devices.mkdir(parents=True)
        command = ["unshare", "-m", "sh", "-c", CONTAINER, "sh", str(tree), str(upper), str(self.root)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"\n"
        (self.devices / "devices.deny").write_text("a")
        (self.devices / "cgroup.procs").write_text(str(self.process.pid))
        self.bundle = bundles.Bundle(directory / "bundle", self.root, {} if pod else annotations(amounts))
        if pod:
            self.bundle.pod(pod, "main", top)
        if claim:
            self._prepare(pod, *amounts)
        elif pod:
            grants = [node.grant("cores", amounts[0]), node.grant("memory", amounts[1] << 30)]
            self.records = [paths.grant(node.settings.state_dir, one) for one in grants]
            keys = {"vgpu.io/grant-cores": grants[0], "vgpu.io/grant-memory": grants[1]}
            self.bundle.config["annotations"].update(keys)

    def _prepare(self, pod: str, cores: int, gib: int) -> None:
        """A prepared claim that is reserved for the pod."""
        card, uid = str(self.node.read_cards()[0]["uuid"]), str(uuid.uuid4())
        result = prepared.Result(0, "gpu", "n", card.lower(), card, cores, gib << 30, False)
        claim = prepared.PreparedClaim(uid, "default", "c", staleness.boot_id(), [pod], [result])
        prepared.write(self.node.settings.state_dir, claim)
        self.records = [paths.prepared_claim(self.node.settings.state_dir, uid)]
        self.options = ["--prepared", *claim.ids()]

    def state(self) -> bytes:
        value = {"ociVersion": "1.0.2", "id": self.id, "pid": self.process.pid, "status": "created"}
        return json.dumps({**value, "bundle": str(self.bundle.write())}).encode()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()
        cgroup_trees.remove_one(str(self.devices), time.monotonic() + PATIENCE)

    # What it looks like

    def mounts(self) -> list[str]:
        """Mount point, options and kind of each mount, in their order, from the container's root on."""
        lines = Path(f"/proc/{self.process.pid}/mountinfo").read_text().splitlines()
        fields = [line.split() for line in lines]
        ours = [item for item in fields if item[4].startswith(str(self.root))]
        return [f"{item[4][len(str(self.root)) :]} {item[5]} {item[item.index('-') + 1]}" for item in ours]

    def files(self) -> dict[str, str]:
        """Each file below the root with its kind and size, or its link's target, without /proc and the mounts."""
        top = f"/proc/{self.process.pid}/root{self.root}"
        device = os.lstat(top).st_dev
        found = {}
        for directory, below, names in os.walk(top):
            below[:] = [name for name in below if os.lstat(f"{directory}/{name}").st_dev == device]
            for name in (*below, *names):
                path = f"{directory}/{name}"
                status = os.lstat(path)
                if status.st_dev == device:
                    link = os.readlink(path) if os.path.islink(path) else ""
                    size = 0 if os.path.isdir(path) else status.st_size
                    found[path[len(top) :]] = f"{status.st_mode:o} {size} {link}"
        return found

    def permitted(self) -> str:
        return (self.devices / "devices.list").read_text()


@dataclass
class Outcome:
    """What the hook did: "share", "refused" or "killed"; `problems` are the rules that it broke."""

    what: str
    line: str
    problems: list[str]


class Bed:
    """A node, by default of one card, with containers. `pods`: each is a pod's. `systemd` has a scope for each."""

    def __init__(
        self, directory: Path, tools: Tools, tree: Path, top: str, pods: bool = False,
        systemd: FakeSystemd | None = None, profile: str = "t4x1", claims: bool = False,
    ) -> None:  # fmt: skip
        self.directory = directory
        self.systemd = systemd
        self.tools = tools
        self.tree = tree
        self.top = top
        self.pods, self.claims = pods, claims
        self.without: tuple[int, ...] = ()  # system calls that answer ENOSYS in all hooks
        self.prefix: list[str] = []  # of every command
        values: dict[str, object] = {} if pods else {"standalone.enabled": True}
        self.node = nodes.SimulatedNode(directory / "node", profile, **values)
        self.node.take_inventory()
        self.last = subprocess.CompletedProcess[bytes]([], 0)
        self.neighbour = self.container(NEIGHBOUR)
        try:
            self.healthy(self.neighbour, "prestart")
            self.expected = self.full_share()
        except BaseException:
            self.close()
            raise
        self.at_rest = self.records()

    def healthy(self, container: Container, stage: str) -> None:
        assert self.run(container, Fault("none"), stage).returncode == 0, self.last.stderr

    def full_share(self) -> tuple[list[str], dict[str, str], str]:
        """The mounts, files and devices of a start without a fault."""
        share = self.container()
        try:
            self.healthy(share, "prestart")
            found = (share.mounts(), share.files(), share.permitted())
        finally:
            self.end(share)
        self.healthy(share, "poststop")
        return found

    # Containers

    def container(self, amounts: tuple[int, int] = SHARE) -> Container:
        pod, suffix = str(uuid.uuid4()) if self.pods else "", ".scope" if self.systemd else ""
        place = self.directory / uuid.uuid4().hex[:8]
        made = Container(place, self.tree, self.node, self.top, pod, amounts, suffix, self.claims)
        if self.systemd:
            self.systemd.units[made.id] = Unit(allow=[("/dev/char/1:3", "rwm")])
        return made

    def end(self, container: Container) -> None:
        """The container's processes and cgroup are gone, and its pod is deleted."""
        container.end()
        for record in container.records:
            os.unlink(record)
        if self.pods:
            container.devices.parent.rmdir()

    def run(self, container: Container, fault: Fault, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        words = ["--config", str(self.node.config), *container.options, *arguments]
        command = self.tools.command(fault, "hook", *words, without=self.without)
        self.last = subprocess.run(
            [*self.prefix, *command], input=container.state(), capture_output=True, timeout=120, check=False, cwd="/"
        )
        return self.last

    def sweep(self, fault: Fault) -> subprocess.CompletedProcess[bytes]:
        """vgpud's reaper with a fault."""
        command = self.tools.command(fault, "reaper", str(self.node.config))
        return subprocess.run([*self.prefix, *command], capture_output=True, timeout=120, check=False, cwd="/")

    # Records

    def records(self) -> dict[str, bytes]:
        """Every file and directory of the state with its content, without logs; core schedules decoded."""
        found = {}
        for top in (self.node.settings.run_dir, self.node.settings.state_dir):
            for directory, below, names in os.walk(top):
                for name in (*below, *names):
                    path = f"{directory}/{name}"
                    if name not in (*LOGS, "ledger.lock"):
                        data = Path(path).read_bytes() if os.path.isfile(path) else b""
                        found[path] = repr(schedules(data)).encode() if name == paths.CORE_SCHEDULES else data
        return found

    # Rounds

    def start(self, fault: Fault) -> Outcome:
        """One start with a fault, and the checks on the container while it lives. It has ended afterwards."""
        container = self.container()
        try:
            before = (container.mounts(), container.files(), self.records())
            self.run(container, fault, "prestart")
            return self.judged(container, before, fault)
        finally:
            self.end(container)

    def judged(self, container: Container, before: tuple[Any, ...], fault: Fault) -> Outcome:
        """What the last start did, and the rules that it broke."""
        error = self.last.stderr.decode()
        # Two answers of a bus may come together, and then a later read is not made.
        may_miss = fault.site == "none" or ("dbus._read" in fault.site and fault.occurrence > 1)
        problems = [] if may_miss or self.tools.happened(fault) else ["the fault did not happen"]
        if self.last.returncode == 0:
            return Outcome("share", error, problems + self._of_share(container))
        if self.last.returncode == -9 and not fault.error:
            return Outcome("killed", "", problems + self._of_kill(container, before, fault))
        if self.last.returncode != 1 or not error.startswith("vgpu-hook: ") or error.count("\n") != 1:
            problems.append(f"status {self.last.returncode} and one line expected: {error!r}")
        return Outcome("refused", error.strip(), problems + self._of_refusal(container, before))

    def _of_share(self, container: Container) -> list[str]:
        mounts, files, permitted = self.expected
        # Where the host's overlay cannot be had, the files are bound as they are, and a line says so: the kinds differ.
        # Where it has to be attached first, the files are cloned last: their order differs,
        # but not that of mounts at one place.
        both = [[line.rpartition(" ")[0] for line in lines] for lines in (container.mounts(), mounts)]
        now = [sorted(lines, key=lambda line: line.partition(" ")[0]) for lines in both]
        problems = [] if now[0] == now[1] else [f"other mounts than a share has: {set(now[0]) ^ set(now[1])}"]
        problems += difference("files", files, container.files())
        problems += [] if container.permitted() == permitted else ["other devices than a share has"]
        try:
            claim = claims.read(self.node.settings.run_dir, container.id)
        except (OSError, VgpuError) as error:
            return [*problems, f"no claim: {error}"]
        return problems if claim.ready and claim.devices else [*problems, "the claim is not ready"]

    def _of_kill(self, container: Container, before: tuple[Any, ...], fault: Fault) -> list[str]:
        """The hook was killed, and its child undoes everything. Where it had said KEEP already, everything stays."""
        end = time.monotonic() + PATIENCE
        while True:
            now, known = container.mounts(), before[0]
            left = [f"mounts are left: {[mount for mount in now if mount not in known]}"] if now != known else []
            left += difference("files", before[1], container.files())
            if not left or (" < execute.keep " in fault.site and not self._of_share(container)):
                return []
            if time.monotonic() > end:
                return left
            time.sleep(0.01)

    def _of_refusal(self, container: Container, before: tuple[Any, ...]) -> list[str]:
        mounts, files, records = before
        left = [mount for mount in container.mounts() if mount not in mounts]
        problems = [f"mounts are left: {left}"] if left else []
        problems += difference("files", files, container.files())
        now = self.records()
        made = {path for path in now.keys() - records.keys() if not os.path.basename(path).startswith(SHARED)}
        problems += [f"records are left: {sorted(made)}"] if made else []
        changed = sorted(path for path in records.keys() & now.keys() if records[path] != now[path])
        problems += [f"records have changed: {changed}"] if changed else []
        missing = sorted(records.keys() - now.keys())
        return [*problems, f"records are gone: {missing}"] if missing else problems

    def round(self, fault: Fault) -> Outcome:
        """A start with a fault, and the next one."""
        outcome = self.start(fault)
        outcome.problems += self.next_start()
        return outcome

    def hard_round(self, fault: Fault) -> Outcome:
        """A start with faults that also hinder its undoing, and the next one. What the hook could not undo inside the
        container stands in its line; its records may stay until the container has ended.
        """
        outcome = self.start(fault)
        said = "not undone" in outcome.line
        excused = ("records", *(("mounts", "files") if said else ()))
        if outcome.what == "refused":
            outcome.problems = [problem for problem in outcome.problems if not problem.startswith(excused)]
        outcome.problems += self.next_start()
        return outcome

    def next_start(self) -> list[str]:
        """The next container on the same card: it gets its share, and ends. Then the reaper leaves nothing."""
        container = self.container()
        try:
            if self.run(container, Fault("none"), "prestart").returncode != 0:
                return [f"the next start was refused: {self.last.stderr.decode()}"]
            problems = [f"the next start: {problem}" for problem in self._of_share(container)]
        finally:
            self.end(container)
        self.run(container, Fault("none"), "poststop")
        if self.last.returncode != 0:
            problems.append(f"the next stop: {self.last.stderr.decode()}")
        return problems + self.leftovers()

    def leftovers(self) -> list[str]:
        """What the reaper did not remove."""
        done = self.sweep(Fault("none"))
        problems = [f"the reaper: {done.stderr.decode()}"] if done.returncode else []
        now = self.records()
        new = now.keys() - self.at_rest.keys()
        left = sorted(path for path in new if not os.path.basename(path).startswith(SHARED))
        problems += [f"left over: {left}"] if left else []
        changed = sorted(path for path, data in self.at_rest.items() if now.get(path) != data)
        return [*problems, f"the neighbour's records have changed: {changed}"] if changed else problems

    # Stops and the reaper

    def ended(self) -> Container:
        """A container that started with its share, and has ended."""
        container = self.container()
        try:
            self.healthy(container, "prestart")
        finally:
            self.end(container)
        return container

    def stop_round(self, fault: Fault) -> Outcome:
        """A stop with a fault, and the next start."""
        done = self.run(self.ended(), fault, "poststop")
        outcome = self._finished(done, fault)
        outcome.problems += self.next_start()
        return outcome

    def reaper_round(self, fault: Fault) -> Outcome:
        """The reaper with a fault after a container without poststop and a hook that was killed; and the next start."""
        self.leave_behind()
        done = self.sweep(fault)
        outcome = self._finished(done, fault)
        outcome.problems += self.next_start()
        return outcome

    def leave_behind(self) -> None:
        """A dead claim, a directory without a claim, and temporary files."""
        self.ended()
        for name in (".claim.json.1.tmp", paths.LIMITS):
            path = Path(paths.container(self.node.settings.run_dir, "killed"), name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"")
        Path(self.node.settings.run_dir, ".presence.1.tmp").write_bytes(b"")

    def _finished(self, done: subprocess.CompletedProcess[bytes], fault: Fault) -> Outcome:
        error = done.stderr.decode()
        problems = [] if self.tools.happened(fault) else ["the fault did not happen"]
        if done.returncode == -9 and not fault.error:
            return Outcome("killed", "", problems)
        if done.returncode not in (0, 1) or error.count("\n") != done.returncode:
            problems.append(f"status {done.returncode}, and as many lines: {error!r}")
        return Outcome("failed" if done.returncode else "done", error.strip(), problems)

    # Sites

    def sites(self, stage: str) -> list[str]:
        """The sites of a start or of a stop, in their order, with repetitions."""
        container = self.container()
        try:
            self.run(container, Fault("none" if stage == "poststop" else ""), "prestart")
            assert self.last.returncode == 0, self.last.stderr
            found = self.tools.sites()
        finally:
            self.end(container)
        self.run(container, Fault("none" if stage == "prestart" else ""), "poststop")
        assert self.last.returncode == 0, self.last.stderr
        return found if stage == "prestart" else self.tools.sites()

    def sites_after(self, first: Fault) -> list[str]:
        """The sites of a start after its first fault."""
        container = self.container()
        try:
            self.run(container, Fault(first=first), "prestart")
            assert self.tools.happened(first)
        finally:
            self.end(container)
        return self.tools.sites()

    def reaper_sites(self) -> list[str]:
        self.leave_behind()
        assert self.sweep(Fault()).returncode == 0
        return self.tools.sites()

    def close(self) -> None:
        self.neighbour.end()
        cgroup_trees.kill(self.top)
        cgroup_trees.remove(self.top)


def annotations(amounts: tuple[int, int]) -> dict[str, str]:
    return {"vgpu.io/cores": str(amounts[0]), "vgpu.io/memory": f"{amounts[1]}Gi"}


def schedules(data: bytes) -> object:
    """What a file of core schedules says, without its sequence numbers; the bytes where it is damaged."""
    try:
        return [item.key() for item in core_schedule.decode(data)[0]]
    except VgpuError:
        return data


def difference(what: str, before: dict[str, str], now: dict[str, str]) -> list[str]:
    changed = sorted(path for path in before.keys() | now.keys() if before.get(path) != now.get(path))
    changed = [path for path in changed if path not in ("/proc", "/dev")]
    return [f"{what} differ: {[(path, before.get(path), now.get(path)) for path in changed[:5]]}"] if changed else []


def faults_at(found: list[str]) -> dict[str, list[Fault]]:
    """Site -> its faults: each errno of the table and kill -9, at the first occurrence and at the last.

    A loop over all processes of the machine differs from run to run, so that the occurrence LAST is the last.
    """
    result: dict[str, list[Fault]] = {}
    for site in dict.fromkeys(found):
        call = site.partition(" ")[0]
        errors = ["", *ERRNOS[call].split()]
        times = sorted({1, min(found.count(site), LAST)})
        result[site] = [Fault(site, number, error) for number in times for error in errors]
    return result


def unknown(found: list[str]) -> list[str]:
    """Sites whose call has no row in the table."""
    return [site for site in dict.fromkeys(found) if site.partition(" ")[0] not in ERRNOS]
