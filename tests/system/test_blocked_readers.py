"""A container with CAP_SYS_ADMIN blocks the host's accesses to its files: vgpud answers, vgpuctl ends, others start."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attack_bed
import bundles
import pytest
from container_site import Site
from daemons import wait_for

from vgpu.hook.linux import cgroup, procfs

pytestmark = pytest.mark.root

AT_MOST = 20.0  #: seconds until vgpud answers `health` on a busy machine; one that waits for a tenant never does
ENDS = 300.0  #: seconds for a call of vgpuctl, likewise
USAGE = "/usr/local/vgpu/usage"
SAMPLE = (("fanotify", "filesystem", USAGE), ("fuse", "lookup", USAGE))
#: Every other way in which the host's readers of a usage region can be made to wait.
REST = (
    ("fanotify", "inode", USAGE), ("fanotify", "mount", USAGE), ("fuse", "open", USAGE), ("fuse", "read", USAGE),
    ("fuse", "lookup", "/usr/local"),
)  # fmt: skip


class Readers:
    """A site with vgpud, a container that attacks and one that does not, each with a share of the same card."""

    def __init__(self, site: Site, tenant: Path) -> None:
        self.site, self.node, self.daemon, self.tenant = site, site.node, site.daemon, tenant
        self.attacks: list[subprocess.Popen[str]] = []
        self.tree = site.tree()
        shutil.copy2(tenant, self.tree / "usr/bin/tenant")
        self.hostile, self.neighbour = self.started(), self.started()
        self.init = site.pid(self.hostile)
        site.start_daemon()
        self.daemon.rounds(2)
        self.slowest = 0.0
        self._asking = threading.Event()

    def started(self) -> str:
        return self.site.start(self.site.bundle(self.tree, cores="20", memory="4Gi"))

    def warnings(self, container: str) -> list[str]:
        return [text for text in self.daemon.health()["warnings"] if container in text]

    def vgpuctl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A call of vgpuctl whose output somebody reads to its end."""
        command = [*self.node.vgpuctl_command(), *arguments]
        return subprocess.run(
            command, env=self.node.environment(), capture_output=True, text=True, check=False, timeout=ENDS,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def status(self) -> dict[str, Any]:
        done = self.vgpuctl("status", "--output", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)  # type: ignore[no-any-return]

    def ask_without_end(self) -> threading.Thread:
        """Ask for `health` again and again, until `asked_enough`, and keep the time of the slowest answer."""
        self._asking.set()

        def ask() -> None:
            while self._asking.is_set():
                began = time.monotonic()
                assert self.daemon.health(), "no answer at all"
                self.slowest = max(self.slowest, time.monotonic() - began)
                time.sleep(0.02)

        thread = threading.Thread(target=ask)
        thread.start()
        return thread

    def asked_enough(self, thread: threading.Thread) -> None:
        self._asking.clear()
        thread.join()

    def blocked_processes(self) -> list[int]:
        """vgpud's children that live."""
        children = Path(f"/proc/{self.daemon.pid}/task/{self.daemon.pid}/children")
        return [int(pid) for pid in children.read_text().split() if procfs.start_time(int(pid))]

    def attack(self, *words: str, inside: bool = True) -> None:
        """Begin an attack in the container's mount namespace, with the rights of a privileged container."""
        command = ["nsenter", "-m", "-t", str(self.init), "tenant"] if inside else [str(self.tenant)]
        process = subprocess.Popen([*command, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        self.attacks.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", f"{words} did not begin: {process.wait(120)}"

    def peace(self) -> None:
        """End the attacks. A process that waits for one goes on then."""
        for process in self.attacks:
            process.kill()
        while self.attacks:
            self.attacks.pop().communicate(timeout=120)

    def end(self) -> None:
        self._asking.clear()
        self.peace()


@pytest.fixture(scope="module")
def tenant(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundles.static_program(attack_bed.TENANT, tmp_path_factory.mktemp("tenant"))


@pytest.fixture
def readers(site: Site, tenant: Path) -> Iterator[Readers]:
    made = Readers(site, tenant)
    yield made
    made.end()


@pytest.mark.parametrize(
    "attack",
    [*SAMPLE, *(pytest.param(attack, marks=pytest.mark.long) for attack in REST)],
    ids=lambda attack: "-".join(attack).replace("/", "_"),
)
def test_a_container_that_blocks_its_readers_delays_nobody(readers: Readers, attack: tuple[str, str, str]) -> None:
    before = len(readers.blocked_processes())
    readers.attack(*attack)
    thread = readers.ask_without_end()
    try:
        warning = wait_for(lambda: readers.warnings(readers.hostile), what=readers.daemon.text)
        assert "blocks the host's reads of its usage region" in warning[0]
        third = readers.started()
        done = readers.vgpuctl("set", readers.neighbour, "--memory", "5Gi")
        assert done.returncode == 0, done.stderr
        shown = readers.status()
        assert [readers.hostile in text for text in shown["warnings"]] == [True]
        assert {row["container"] for row in shown["containers"]} == {readers.hostile, readers.neighbour, third}
        done = readers.vgpuctl("doctor")
        assert "containers" in done.stdout
    finally:
        readers.asked_enough(thread)
    assert readers.slowest < AT_MOST
    assert len(readers.blocked_processes()) <= before + 2, "one that is blocked, and perhaps its successor"
    readers.peace()
    wait_for(lambda: not readers.warnings(readers.hostile), 60, readers.daemon.text)
    assert readers.daemon.text().count("blocks the host's reads") == 2, "once when it began, once when it was over"
    assert readers.status()["warnings"] == []


@pytest.mark.long
def test_a_container_that_blocks_its_cgroup_delays_nobody(readers: Readers) -> None:
    """A container sees its own cgroup, so it can mark the files there. The kernel refuses marks on procfs."""
    directory = cgroup.device_cgroup(readers.init).directory
    readers.attack("fanotify", "inode", directory, inside=False)
    thread = readers.ask_without_end()
    try:
        readers.daemon.rounds(8)
        readers.started()
        done = readers.vgpuctl("health", "--processes", "--output", "json")
        assert str(readers.init) in done.stdout
        assert readers.status()["warnings"] == []
    finally:
        readers.asked_enough(thread)
    assert readers.slowest < AT_MOST


def test_a_container_that_stands_still_is_read_as_any_other(readers: Readers) -> None:
    """Stopped by a signal, and traced by nobody: the host's files of it stay readable."""
    os.kill(readers.init, signal.SIGSTOP)
    try:
        readers.daemon.rounds(2)
        assert readers.status()["warnings"] == []
        readers.started()
    finally:
        os.kill(readers.init, signal.SIGCONT)
    assert readers.warnings(readers.hostile) == []


def test_vgpud_ends_while_a_reader_is_blocked(readers: Readers) -> None:
    readers.attack("fuse", "lookup", USAGE)
    wait_for(lambda: readers.warnings(readers.hostile), what=readers.daemon.text)
    began = time.monotonic()
    assert readers.daemon.stop() == 0
    assert time.monotonic() - began < 60
    readers.daemon.start().ready()
    wait_for(lambda: readers.warnings(readers.hostile), what=readers.daemon.text)
