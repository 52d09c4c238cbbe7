"""kill -9 before each system call by which `vgpuctl gc`, `doctor --fix` and `runtime configure` change a file.

A kill before a call that changes nothing leaves what a kill before the next changing one leaves. After each the verb's
next call ends well and the host is as it has to be. No tenant can put links in the way of these verbs: `all_private`
looks at every path that they change.
"""

from __future__ import annotations

import collections
import os
import re
import shutil
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import nodes
import pytest
from fault_bed import Fault, Outcome
from fault_journal import Journal

from vgpu.config import inventory as inventories
from vgpu.config import paths, records
from vgpu.node.daemon.reaper import TEMPORARY_AGE
from vgpu.node.driver import device_nodes, discover

pytestmark = pytest.mark.root

CHANGING = (
    "mkdir", "mkdirat", "mknod", "mknodat", "rename", "renameat", "renameat2", "unlink", "unlinkat", "rmdir", "link",
    "linkat", "symlink", "symlinkat", "chmod", "fchmod", "fchmodat", "chown", "fchown", "lchown", "fchownat",
    "ftruncate", "truncate", "utimensat", "pwrite64", "write", "open", "openat",
)  # fmt: skip
OPENED_TO_CHANGE = re.compile(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC")
OUTPUT = re.compile(r"write\([12],")
HOLDS = "the next call ends well, each file is the old one or the new one"
SHARED = ("ledger.lock", "containers", "vcuda", "hook.log")  #: made by the first call that needs them
OLD_DAEMON = '{\n    "debug": true,\n    "runtimes": {"other": {"path": "/usr/bin/other"}}\n}\n'
OLD_CONTAINERD = "version = 2\n# the operator's\n[plugins]\n"


class Verb:
    """One verb on a node. `prepare` makes anew what it has to do; the others return what is wrong after the kill, and
    after the next call.
    """

    def __init__(self, node: nodes.SimulatedNode, *words: str) -> None:
        self.node = node
        self.words = words
        self.trace = node.directory / "trace"

    def prepare(self) -> None:
        raise NotImplementedError

    def after_kill(self) -> list[str]:
        return []

    def next_call(self) -> list[str]:
        raise NotImplementedError

    def run(self, *strace: str, words: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        command = [*strace, *self.node.vgpuctl_command(), *(words or self.words)]
        own = {**self.node.environment(), "TMPDIR": str(self.node.directory)}  # who is killed removes nothing
        return subprocess.run(command, env=own, capture_output=True, text=True, check=False, timeout=120)

    def faults(self) -> list[Fault]:
        """A kill before each call of one run that changes a file. The run before it writes Python's own byte code."""
        self.prepare()
        self.run()
        self.prepare()
        calls = ",".join("?" + call for call in CHANGING)
        done = self.run(
            "strace", "-qq", "-y", "-s", "4096", "-o", str(self.trace), "-e", f"trace={calls}", "-e", "signal=none"
        )
        assert done.returncode in (0, 1), done.stderr  # doctor has other findings
        seen: collections.Counter[str] = collections.Counter()
        found = []
        for line in self.trace.read_text().splitlines():
            call = line.partition("(")[0]
            seen[call] += 1
            if call.startswith("open") and not OPENED_TO_CHANGE.search(line):
                continue
            if not OUTPUT.match(line):
                self.all_private(line)
                found.append(Fault(call, seen[call]))
        assert len(found) > 5
        return found

    def all_private(self, line: str) -> None:
        """What the call changes lies in directories of root's that nobody else may write."""
        for path in map(Path, re.findall(r'[<"](/[^">]+)[">]', line)):
            for above in path.parents:
                if above != self.node.directory and self.node.directory not in above.parents:
                    break
                if above.exists():
                    status = above.stat()
                    assert status.st_uid == 0 and not status.st_mode & 0o022, f"{above}, of {line}"

    def round(self, fault: Fault) -> Outcome:
        self.prepare()
        inject = f"inject={fault.site}:signal=KILL:when={fault.occurrence}"
        done = self.run("strace", "-qq", "-o", "/dev/null", "-e", f"trace={fault.site}", "-e", inject)
        if fault.site == "write" and done.returncode in (0, 1):  # to a child's pipe it had fewer than the traced run
            return Outcome("ended before", "", self.next_call())
        problems = [] if done.returncode in (-9, 137) else [f"it was not killed: {done.returncode} {done.stderr}"]
        return Outcome("killed", "", [*problems, *self.after_kill(), *self.next_call()])


class Gc(Verb):
    """A directory without a claim, a temporary file and a copy of libvcuda are left over."""

    def __init__(self, node: nodes.SimulatedNode) -> None:
        super().__init__(node, "gc")
        self.clean = self.files()

    def files(self) -> set[str]:
        tops = (self.node.settings.run_dir, self.node.settings.state_dir)
        found = {f"{top}/{name}" for top, below, files in _walk(tops) for name in (*below, *files)}
        return {path for path in found if os.path.basename(path) not in SHARED}

    def prepare(self) -> None:
        broken = Path(paths.container(self.node.settings.run_dir, "broken"))
        temporary = Path(self.node.settings.run_dir, ".inventory.json.4711.tmp")
        copy = Path(paths.all_limiter_copies(self.node.settings.state_dir), "390.1-abcdef")
        for path in (broken / paths.LIMITS, temporary, copy / "libcuda.so.1", copy / "libnvidia-ml.so.1"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("{")
        then = time.time() - TEMPORARY_AGE - 60
        for path in (broken / paths.LIMITS, broken, temporary):
            os.utime(path, (then, then))

    def next_call(self) -> list[str]:
        done = self.run()
        problems = [done.stderr] if done.returncode else []
        other = self.files() ^ self.clean
        return [*problems, f"left or gone: {other}"] if other else problems


class DoctorFix(Verb):
    """A node of the driver is missing, and the inventory is of another driver. Nodes are to be another user's."""

    def __init__(self, node: nodes.SimulatedNode) -> None:
        super().__init__(node, "doctor", "--fix", "--hook", str(node.hook))
        self.path = Path(discover.dev_dir(node.settings), "nvidia-uvm")
        self.number = self.path.stat().st_rdev
        self.good = inventories.read(node.settings.run_dir)
        parameters = Path(node.settings.text("driver.proc_root"), "driver/nvidia/params")
        text = re.sub(r"DeviceFile(UID|GID): \d+", r"DeviceFile\1: 1000", parameters.read_text())
        parameters.write_text(re.sub(r"DeviceFileMode: \d+", "DeviceFileMode: 438", text))
        self.wanted = device_nodes.parameters(node.settings.text("driver.proc_root"))
        assert (self.wanted.uid, self.wanted.mode) == (1000, 0o666)

    def prepare(self) -> None:
        self.path.unlink(missing_ok=True)
        records.write(paths.inventory(self.node.settings.run_dir), {**self.good.record(), "driver_version": "390.1"})

    def after_kill(self) -> list[str]:
        inventories.read(self.node.settings.run_dir)  # the old one or the new one, and whole
        return []

    def next_call(self) -> list[str]:
        done = self.run()
        found = self.path.lstat()
        told = (stat.S_ISCHR(found.st_mode), found.st_rdev, stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid)
        wanted = (True, self.number, self.wanted.mode, self.wanted.uid, self.wanted.gid)
        problems = [] if told == wanted else [f"the node is {told}: {done.stderr}"]
        problems += [f"left: {path}" for path in self.path.parent.glob(".*")]
        now = inventories.read(self.node.settings.run_dir)
        return problems if now.driver_version == self.good.driver_version else [*problems, f"stale: {done.stderr}"]


class Configure(Verb):
    """The runtime's files are the old ones or the new ones to the byte, and the undo leads back from everywhere."""

    def __init__(self, node: nodes.SimulatedNode, runtime: str, place: str, files: dict[str, str]) -> None:
        self.top = node.directory / "etc"
        self.kept, self.old = node.directory / "kept", files
        config = self.top / place
        words = ("--config", str(config), "--programs", str(node.hook.parent))
        super().__init__(node, "runtime", "configure", "--runtime", runtime, *words)
        self.back = ("runtime", "unconfigure", "--runtime", runtime)
        self.state = Path(paths.runtimes(node.settings.state_dir))
        self.prepare()
        assert self.run().returncode == 0
        self.new = self.files()
        assert self.new != self.old

    def files(self) -> dict[str, str]:
        found = (path for path in sorted(self.top.rglob("*")) if path.is_file())
        return {str(path.relative_to(self.top)): path.read_text() for path in found}

    def prepare(self) -> None:
        for top in (self.top, self.state):
            shutil.rmtree(top, ignore_errors=True)
        for name, text in self.old.items():
            path = self.top / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.top.mkdir(exist_ok=True)

    def after_kill(self) -> list[str]:
        """Temporary files that the runtime does not read may lie beside."""
        whole = {name: text for name, text in self.files().items() if not os.path.basename(name).startswith(".")}
        mixed = {name for name, text in whole.items() if text not in (self.old.get(name), self.new.get(name))}
        gone = set(self.old) - set(whole)
        return [f"neither old nor new: {mixed | gone}"] if mixed | gone else []

    def next_call(self) -> list[str]:
        """The same verb again, then the undo; and from the same state the undo at once."""
        for top in filter(Path.exists, (self.top, self.state)):
            shutil.copytree(top, self.kept / top.name)
        problems = self.leads_to(self.words, self.new) + self.undone()
        for top in (self.top, self.state):
            shutil.rmtree(top, ignore_errors=True)
            if (self.kept / top.name).exists():
                shutil.move(self.kept / top.name, top)
        return problems + self.undone()

    def undone(self) -> list[str]:
        problems = self.leads_to(self.back, self.old)
        left = [
            path.name for path in self.state.glob("*") if not path.name.endswith(".tmp")
        ]  # which the reaper removes
        return [*problems, f"left after the undo: {left}"] if left else problems

    def leads_to(self, words: tuple[str, ...], wanted: dict[str, str]) -> list[str]:
        done = self.run(words=words)
        if done.returncode:
            return [f"{words}: {done.stderr}"]
        return [] if self.files() == wanted else [f"{words}: {self.files()}, not {wanted}"]


def _walk(tops: tuple[str, ...]) -> Iterator[tuple[str, list[str], list[str]]]:
    for top in tops:
        yield from os.walk(top)


VERBS: dict[str, Callable[[nodes.SimulatedNode], Verb]] = {
    "gc": Gc,
    "doctor --fix": DoctorFix,
    "runtime configure, docker": lambda node: Configure(node, "docker", "daemon.json", {"daemon.json": OLD_DAEMON}),
    "runtime configure, podman": lambda node: Configure(node, "podman", "hooks.d", {}),
    "runtime configure, containerd": lambda node: Configure(
        node, "containerd", "config.toml", {"config.toml": OLD_CONTAINERD}
    ),
}


@pytest.mark.parametrize("kind", VERBS)
def test_a_verb_that_is_killed_at_each_change(tmp_path: Path, journal: Callable[..., Journal], kind: str) -> None:
    node = nodes.SimulatedNode(tmp_path / "node")
    node.take_inventory()
    verb = VERBS[kind](node)
    faults = verb.faults()
    counts = journal(f"faults-verb-{re.sub('[^a-z]+', '-', kind)}", 5)
    counts.run(faults, verb.round)
    counts.judge(f"kill -9 at a system call of vgpuctl {kind}", len(faults), len(faults), HOLDS)
    assert any(outcome.what == "killed" for outcome in counts.done.values())
