"""What `vgpuctl status` shows of a container's memory when its programs end; and a share that is too small for one."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import nodes
import pytest
import yaml
from checkout import DATA
from container_site import BOTH, MIB, Site
from daemons import wait_for

from vgpu.hook.linux import procfs

pytestmark = pytest.mark.root

SOON = 120.0  #: seconds for some calls of vgpuctl on a busy machine


class Holder:
    """A container with a share, in which programs hold memory of the card."""

    def __init__(self, site: Site, tree: Path) -> None:
        self.site, self.node, self.tree = site, site.node, tree
        self.container = site.start(site.bundle(tree, cores="20", memory="20Gi"))
        self.programs: list[subprocess.Popen[str]] = []
        self.holders: dict[int, set[int]] = {}  # pids on the host by MiB

    def hold(self, mib: int, kind: str = "plain", pid: int = 0) -> int:
        """Start a program that holds memory. Returns its pid inside, which is `pid` if given."""
        choice = f"echo {pid - 1} > /proc/sys/kernel/ns_last_pid; " if pid else ""
        script = f"{choice}memory_holder {mib} {kind} & wait"
        capabilities = ["--cap", "CAP_SYS_ADMIN", "--cap", "CAP_SYS_TIME"]
        command = [*self.site.runtime.command, "exec", *capabilities, self.container, "sh", "-c", script]
        before = self._holders()
        program = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        self.programs.append(program)
        assert program.stdout is not None
        inside = int(program.stdout.readline())
        self.holders[mib] = self._holders() - before
        return inside

    def end(self, mib: int, number: int) -> None:
        """Send a signal to the program that holds so much."""
        for pid in self.holders[mib]:
            with contextlib.suppress(ProcessLookupError):  # a child whose parent has just ended
                os.kill(pid, number)

    def _holders(self) -> set[int]:
        listed = json.loads(self.site.runtime.call("ps", "--format", "json", self.container, check=True).stdout)
        return {pid for pid in listed if procfs.command(pid) == "memory_holder"}

    def shows(self, mib: int) -> None:
        """Assert that status shows this at once, or after a process has ended that was told to."""
        wait_for(lambda: self.used() == mib * MIB, SOON, lambda: f"{(self.used() or 0) / MIB} MiB, not {mib}")

    def used(self) -> int | None:
        (row,) = self.node.status()["containers"]
        return row["memory_used"]  # type: ignore[no-any-return]

    def cleanup(self) -> None:
        self.site.end()
        for program in self.programs:
            program.communicate(timeout=120)


@pytest.fixture(scope="session")
def memory_holder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("programs") / "memory_holder"
    source = DATA / "cuda/memory_holder.c"
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-pthread"]
    subprocess.run(["cc", *flags, "-o", program, source, "-ldl"], check=True)
    return program


@pytest.fixture
def holder(site: Site, memory_holder: Path) -> Iterator[Holder]:
    tree = site.tree()
    shutil.copy2(memory_holder, tree / "usr/bin")
    made = Holder(site, tree)
    yield made
    made.cleanup()


@BOTH
def test_it_sinks_when_a_program_ends_or_is_killed(holder: Holder) -> None:
    """No other process of the container looks into the usage region afterwards, which still has the charges."""
    assert not holder.used()
    holder.hold(100)
    holder.hold(201)
    pid = holder.hold(402)
    holder.shows(703)
    holder.end(100, signal.SIGTERM)
    holder.shows(603)
    holder.end(402, signal.SIGKILL)
    holder.shows(201)
    assert holder.hold(50, pid=pid) == pid
    holder.shows(251)
    holder.end(50, signal.SIGKILL)
    holder.end(201, signal.SIGKILL)
    holder.shows(0)


def test_whatever_kind_of_process_holds_it(holder: Holder) -> None:
    """One without its first thread, in a PID or a time namespace of its own, and one that executes another program."""
    total = 0
    for mib, kind in ((11, "leader"), (22, "pid"), (44, "time"), (88, "exec")):
        holder.hold(mib, kind)
        total += mib
        holder.shows(total)
    for mib, number in ((88, signal.SIGTERM), (44, signal.SIGKILL), (22, signal.SIGKILL), (11, signal.SIGKILL)):
        holder.end(mib, number)
        total -= mib
        holder.shows(total)


# The size of a context


@pytest.mark.parametrize("seen", ["at work", "refused"])
def test_a_share_below_a_context_is_noted_once_its_size_was_seen(holder: Holder, seen: str) -> None:
    """vgpud sees what the driver takes for a program, and the hook's log names the next share that is below that.

    A program that is refused its context reports the size, too.
    """
    site, node = holder.site, holder.node
    profile = yaml.safe_load((nodes.PROFILES / "a100x2.yaml").read_text())
    context = profile["models"]["a100"]["context_mib"]
    assert [card["context"] for card in node.status()["cards"]] == [None, None]

    def start_small(*command: str) -> list[str]:
        """The hook's notes about the size of a share that is too small."""
        container = site.start(site.bundle(holder.tree, cores="5", memory=f"{context - 1}Mi"), *command)
        lines = [line for line in node.log() if line["container"] == container]
        return [note for line in lines for note in line["notes"] if "smaller" in note]

    if seen == "at work":
        holder.hold(30)
    else:
        assert start_small("sh", "-c", "memory_holder 1 plain; sleep 600") == []
    site.start_daemon()
    wait_for(lambda: node.status()["cards"][0]["context"], 60, site.daemon.text)
    site.daemon.kill()
    assert [card["context"] for card in node.status()["cards"]] == [context * MIB] * 2, "both are of the same model"
    (note,) = start_small()
    below = f"a share of {context - 1} MiB is smaller than a CUDA context there, {context} MiB (seen on this node"
    assert below in note
    node.take_inventory()
    assert f"{context} MiB" in node.vgpuctl("inventory", "show").stdout, "a new inventory has it, too"
