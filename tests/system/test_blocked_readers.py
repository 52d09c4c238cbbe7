"""A container with CAP_SYS_ADMIN blocks the host's accesses to its files: vgpud answers, vgpuctl ends, others start."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bundles
import daemons
import hostile_files
import nodes
import pytest
from daemons import wait_for
from hostile_files import ON_THE_REGION, REGION, USAGE, Attacks

from vgpu.hook.linux import cgroup, procfs

pytestmark = pytest.mark.root

Rootfs = Callable[..., Path]
MakeBundle = Callable[..., bundles.Bundle]

AT_MOST = 20.0  #: seconds until vgpud answers `health` on a busy machine; one that waits for a tenant never does
ENDS = 300.0  #: seconds for a call of vgpuctl, likewise
SAMPLE = (("fanotify", "filesystem", USAGE), ("fuse", "lookup", USAGE))
REST = [attack for attack in ON_THE_REGION if attack not in SAMPLE]


class Site:
    """A node with vgpud, a container that attacks and one that does not, each with a share of the same card."""

    def __init__(
        self, node: nodes.SimulatedNode, runtime: bundles.Runtime, attacks: Attacks, share: Callable[[], bundles.Bundle]
    ) -> None:
        self.node = node
        self.runtime = runtime
        self.attacks = attacks
        self.share = share
        self.hostile, self.init = self.started()
        self.neighbour, _ = self.started()
        self.daemon = daemons.Daemon(node).start().ready()
        self.daemon.rounds(2)
        self.slowest = 0.0
        self._asking = threading.Event()

    def started(self) -> tuple[str, int]:
        container, done = self.runtime.create(self.share().command("sleep", "600"))
        assert done.returncode == 0, done.stderr
        self.runtime.call("start", container, check=True)
        return container, int(self.runtime.state(container)["pid"])

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

    def cleanup(self) -> None:
        self._asking.clear()
        self.attacks.end()
        self.daemon.kill()
        self.runtime.cleanup()


def made(make: Callable[[], object]) -> bool:
    """Whether the file system had room for a file."""
    try:
        make()
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
        return False
    return True


@pytest.fixture(scope="session")
def hostile_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hostile_files.compiled(tmp_path_factory.mktemp("programs"))


@pytest.fixture
def site(
    hostile_program: Path, rootfs: Rootfs, bundle: MakeBundle, node: nodes.SimulatedNode, runc1: bundles.Runtime
) -> Iterator[Site]:
    if hostile_files.missing():
        pytest.skip(f"needs {hostile_files.missing()}")
    tree = rootfs()
    made = Site(node, runc1, Attacks(hostile_program), lambda: bundle(tree, cores="20", memory="4Gi"))
    yield made
    made.cleanup()


@pytest.mark.parametrize(
    "attack",
    [*SAMPLE, *(pytest.param(attack, marks=pytest.mark.long) for attack in REST)],
    ids=lambda attack: "-".join(attack).replace("/", "_"),
)
def test_a_container_that_blocks_its_readers_delays_nobody(site: Site, attack: tuple[str, str, str]) -> None:
    before = len(site.blocked_processes())
    site.attacks.start(site.init, *attack)
    thread = site.ask_without_end()
    try:
        warning = wait_for(lambda: site.warnings(site.hostile), what=site.daemon.text)
        assert "blocks the host's reads of its usage region" in warning[0]
        third, _ = site.started()
        done = site.vgpuctl("set", site.neighbour, "--memory", "5Gi")
        assert done.returncode == 0, done.stderr
        shown = site.status()
        assert [site.hostile in text for text in shown["warnings"]] == [True]
        assert {row["container"] for row in shown["containers"]} == {site.hostile, site.neighbour, third}
        done = site.vgpuctl("doctor")
        assert "containers" in done.stdout
    finally:
        site.asked_enough(thread)
    assert site.slowest < AT_MOST
    assert len(site.blocked_processes()) <= before + 2, "one that is blocked, and perhaps its successor"
    site.attacks.end()
    wait_for(lambda: not site.warnings(site.hostile), 60, site.daemon.text)
    assert site.daemon.text().count("blocks the host's reads") == 2, "once when it began, once when it was over"
    assert site.status()["warnings"] == []


@pytest.mark.long
def test_a_container_that_blocks_its_cgroup_delays_nobody(site: Site) -> None:
    """A container sees its own cgroup, so it can mark the files there. The kernel refuses marks on procfs."""
    directory = cgroup.device_cgroup(site.init).directory
    site.attacks.start(os.getpid(), "fanotify", "inode", directory)
    thread = site.ask_without_end()
    try:
        site.daemon.rounds(8)
        site.started()
        done = site.vgpuctl("health", "--processes", "--output", "json")
        assert str(site.init) in done.stdout
        assert site.status()["warnings"] == []
    finally:
        site.asked_enough(thread)
    assert site.slowest < AT_MOST


@pytest.mark.long
def test_a_region_of_another_kind_is_none(site: Site) -> None:
    """A FIFO, a link out, a directory, a truncated and a huge file: no reader waits, and nothing is reported."""
    region = Path(f"/proc/{site.init}/root{REGION}")
    outside = site.node.directory / "secret"
    outside.write_bytes(b"x")
    kinds: dict[str, Callable[[], object]] = {
        "fifo": lambda: os.mkfifo(region),
        "link": lambda: region.symlink_to(outside),
        "directory": region.mkdir,
        "empty": region.touch,
        "huge": lambda: (region.touch(), os.truncate(region, 1 << 40)),
    }
    thread = site.ask_without_end()
    try:
        for make in kinds.values():
            region.rmdir() if region.is_dir() and not region.is_symlink() else region.unlink()
            wait_for(lambda make=make: made(make), what="the reader still has the last region, and the tmpfs is full")
            site.daemon.rounds(2)
            assert site.status()["warnings"] == []
    finally:
        site.asked_enough(thread)
    assert site.slowest < AT_MOST
    assert site.warnings(site.hostile) == []


def test_a_container_that_stands_still_is_read_as_any_other(site: Site) -> None:
    """Stopped by a signal, and traced by nobody: the host's files of it stay readable."""
    os.kill(site.init, signal.SIGSTOP)
    try:
        site.daemon.rounds(2)
        assert site.status()["warnings"] == []
        site.started()
    finally:
        os.kill(site.init, signal.SIGCONT)
    assert site.warnings(site.hostile) == []


def test_vgpud_ends_while_a_reader_is_blocked(site: Site) -> None:
    site.attacks.start(site.init, "fuse", "lookup", USAGE)
    wait_for(lambda: site.warnings(site.hostile), what=site.daemon.text)
    began = time.monotonic()
    assert site.daemon.stop() == 0
    assert time.monotonic() - began < 60
    site.daemon.start().ready()
    wait_for(lambda: site.warnings(site.hostile), what=site.daemon.text)
