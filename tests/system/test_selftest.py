"""`vgpuctl selftest` by containers on the simulated driver, in virtual time: healthy, with each of ten faults, ended.

A self-test that cannot fail is none: selftest_faults.py has the faults, each with the row that has to fail.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import containerd_bed
import docker_bed
import nodes
import podman_bed
import psutil
import pytest
import selftest_bed
from container_site import frozen_beside
from daemons import Daemon, wait_for
from selftest_bed import Node, failed
from selftest_faults import FAULTS, Fault

from vgpu.hook.linux import procfs
from vgpu.node.runtimes.containerd import CONFIG

pytestmark = pytest.mark.root
RUNS = 5  #: of each fault, with --long
HEALTHY = 50
#: What finds no fault on a healthy node, whatever the way.
OTHER_VERDICTS = ("info", "not applicable")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path / "node", "a100x2")
    yield made
    assert made.left() == []


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_a_healthy_node_passes_in_a_root_with_the_program_alone(node: Node, runtime: str) -> None:
    report = node.report("--runtime", runtime)
    assert (report["way"], report["result"], failed(report)) == (runtime, "pass", [])
    assert len(report["rows"]) == 23
    assert {row["verdict"] for row in report["rows"]} <= {"pass", *OTHER_VERDICTS}
    assert report["seconds"] <= 60  # of virtual time
    assert str(node.directory) not in json.dumps(report)


class Containerd:
    """A containerd, Docker or podman of the node, registered by `vgpuctl runtime configure`. `left` is what it has."""

    name = "containerd"

    def __init__(self, node: Node, directory: Path) -> None:
        self.bed = containerd_bed.Unregistered(directory, containerd_bed.programs(containerd_bed.MACHINES), node)
        self.bed.program = str(node.programs / "runc")
        self.bed.prepare = lambda path: self.register(node, path)
        (node.programs / "ctr").symlink_to(self.bed.programs / "ctr")
        self.bed.start(None)

    def register(self, node: Node, path: Path) -> None:
        configure(node, "containerd", "--config", str(path))

    def left(self) -> str:
        return self.bed.ctr("--namespace", "vgpu-selftest", "containers", "ls", "--quiet")

    def stop(self) -> None:
        self.bed.stop()


class ByCdi(Containerd):
    """Its configuration has nothing of vgpu, and is at its usual place for vgpuctl."""

    def register(self, node: Node, path: Path) -> None:
        words = ("--directory", str(path.parent / "cdi"), "--programs", str(node.hook.parent), "--beside-others")
        node.vgpuctl("cdi", "generate", *words)
        node.prefix = ("unshare", "-m", "sh", "-ec", f'mount --bind {path} {CONFIG}; exec "$@"', "sh")


class Docker:
    name = "docker"

    def __init__(self, node: Node, _directory: Path) -> None:
        self.bed = docker_bed.Docker(node)
        self.bed.runtimes = {}
        configure(node, "docker", "--config", str(self.bed.write()))
        node.add_client("docker", [str(self.bed.client)])
        self.bed.launch()

    def left(self) -> str:
        return self.bed.call("ps", "--all", "--quiet").stdout + self.bed.call("images", "--quiet").stdout

    def stop(self) -> None:
        self.bed.stop()


class Podman:
    name = "podman"

    def __init__(self, node: Node, _directory: Path) -> None:
        self.bed = podman_bed.Podman(node)
        shutil.rmtree(self.bed.hooks)
        os.environ["CONTAINERS_CONF"] = self.bed.environment["CONTAINERS_CONF"]
        node.add_client("podman", ["/usr/bin/podman", *self.bed.command[1:]], f"--cgroup-parent={self.bed.cgroup}")
        configure(node, "podman")

    def left(self) -> str:
        return self.bed.call("ps", "--all", "--quiet").stdout

    def stop(self) -> None:
        self.bed.cleanup()


def configure(node: Node, runtime: str, *words: str) -> None:
    node.vgpuctl("runtime", "configure", "--runtime", runtime, *words, "--programs", str(node.hook.parent))


@pytest.fixture(params=[Containerd, ByCdi, Docker, Podman])
def registered(
    request: pytest.FixtureRequest, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Containerd | Docker | Podman]:
    monkeypatch.setenv("CONTAINERS_CONF", "")  # which podman's bed changes
    made: Containerd | Docker | Podman = request.param(node, tmp_path / "bed")
    yield made
    made.stop()


ROWS = ("totals", "device", "memory.killed", "set")


@pytest.mark.parametrize("rows", [ROWS, pytest.param((), marks=pytest.mark.long)], ids=["some", "quick"])
def test_by_a_registered_runtime_after_a_run_that_was_killed(
    node: Node, registered: Containerd | Docker | Podman, rows: tuple[str, ...]
) -> None:
    name = registered.name
    killed = node.start("--runtime", name, "--row", "memory.device")
    assert killed.stderr
    wait_for(lambda: "memory.device" in killed.stderr.readline(), selftest_bed.PATIENCE)
    (claim,) = wait_for(node.claims, selftest_bed.PATIENCE, pause=0.001).values()
    killed.send_signal(signal.SIGSTOP)
    init = claim["pid"]
    wait_for(lambda: procfs.command(init) == "vgpu-selftest", pause=0.001)  # it may soon be over
    with frozen_beside(init):
        for process in (*psutil.Process(killed.pid).children(), killed):
            process.kill()
        killed.communicate(timeout=selftest_bed.PATIENCE)
        run = node.start("--runtime", name, *(word for row in rows for word in ("--row", row)), "--output", "json")
        wait_for(lambda: procfs.is_exiting(init))
        time.sleep(1)
    report = json.loads(run.communicate(timeout=selftest_bed.PATIENCE)[0])
    assert (report["way"], report["result"], failed(report)) == (name, "pass", [])
    assert {row["verdict"] for row in report["rows"]} <= {"pass", *OTHER_VERDICTS}
    assert registered.left() == ""


@pytest.mark.long
@pytest.mark.parametrize("profile", ["t4x1", "harsh", "h100x1", "a100x2", "a100x2 MIG 3g.20gb"])
def test_every_row_on_every_card(tmp_path: Path, profile: str) -> None:
    profile, _, instance = profile.partition(" MIG ")
    node = Node(tmp_path / "node", profile)
    if instance:
        node.divide(1, "1g.5gb", instance)
        node.take_inventory()
    card = node.instances()[instance].uuid if instance else str(node.read_cards()[0]["uuid"])
    report = node.report("--full", "--card", card)
    assert (report["card"]["uuid"], report["result"], failed(report)) == (card[:12], "pass", [])
    assert report["seconds"] <= 900  # of virtual time


def found_by(fault: Fault, directory: Path) -> list[str]:
    """The rows that fail where a node has the fault."""
    node = Node(
        directory / "node", "a100x2", fault.libraries(directory), fault.programs(directory), memory=fault.memory
    )
    return failed(node.report("--row", fault.row))


#: libvcuda tells a tenth of its use.
FALSE_WORD = Fault(
    "false-word", "audit.use", "compute/account.c",
    "	__atomic_fetch_add(&time->used, used, __ATOMIC_RELAXED);",
    "	__atomic_fetch_add(&time->used, used / 10, __ATOMIC_RELAXED);",
)  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(("fault", "verdict"), [(Fault("none", ""), "pass"), (FALSE_WORD, "fail")])
def test_beside_vgpud_a_false_word_is_found(tmp_path: Path, fault: Fault, verdict: str) -> None:
    """By the wall's clock, which is vgpud's."""
    node = Node(tmp_path / "node", libvcuda=fault.libraries(tmp_path))
    nodes.simctl().make_state(str(node.sim), "t4x1", device_nodes=False)
    daemon = Daemon(node).start().ready()
    try:
        (row,) = node.report("--row", "audit")["rows"]
    finally:
        daemon.stop()
    assert row["verdict"] == verdict, row


def test_one_of_the_ten_faults_is_found(tmp_path: Path) -> None:
    fault = random.choice(FAULTS)
    assert fault.row in found_by(fault, tmp_path), fault.name


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_each_fault_is_found_each_time(tmp_path: Path, fault: Fault) -> None:
    for number in range(RUNS):
        (tmp_path / str(number)).mkdir()
        assert fault.row in found_by(fault, tmp_path / str(number))


@pytest.mark.long
def test_a_healthy_node_never_fails_beside_busy_processors(tmp_path: Path) -> None:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        for number in range(HEALTHY):
            report = Node(tmp_path / "node", "t4x1").report("--bare" if number % 2 else "--quick")
            assert (number, failed(report), report["result"]) == (number, [], "pass")
            shutil.rmtree(tmp_path / "node")
    finally:
        for process in busy:
            process.kill()
            process.wait()


def test_a_whole_card_or_the_instance_that_is_named(tmp_path: Path) -> None:
    node = Node(tmp_path / "node", "a100x2")
    _, (_, _, instance) = node.divide(1, "1g.5gb", "3g.20gb")
    node.take_inventory()
    whole = str(node.read_cards()[0]["uuid"])
    rows = ("--row", "totals", "--row", "device", "--row", "share.30")
    for words, uuid in ((), whole), (("--card", instance), instance), (("--bare", "--card", instance), instance):
        report = node.report(*words, *rows)
        assert (report["card"]["uuid"], report["result"], failed(report)) == (uuid[:12], "pass", [])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_ended_leaves_no_container_and_no_claim(node: Node, number: int) -> None:
    process = node.start()
    assert process.stderr
    wait_for(lambda: "memory.device" in process.stderr.readline(), selftest_bed.PATIENCE)
    process.send_signal(number)
    process.communicate(timeout=selftest_bed.PATIENCE)
    if number == signal.SIGKILL:
        node.report("--row", "totals")
    else:
        assert process.returncode == 3


def test_nothing_is_judged_beside_a_container_or_without_a_runtime(node: Node) -> None:
    held = node.hold_cards("train")
    done = node.selftest()
    assert (done.returncode, done.stdout) == (3, "")
    (line,) = done.stderr.splitlines()
    assert "is held by container train" in line
    held()
    node.add_client("podman", ["false"])
    nothing = ("/usr/bin/env", "PATH=/nowhere")
    for words, prefix, found in (
        (("--runtime", "crio"), (), "found crio; CRI-O starts its containers by one of them"),
        (("--runtime", "podman"), (), "podman: expected vgpu's registration, found none; vgpuctl runtime configure"),
        (("--runtime", "podman"), nothing, "podman: expected podman, found none; install it, or --bare"),
        ((), nothing, "a runtime: expected runc or crun, found none; install it, or --bare"),
        (("--card", "GPU-00"), (), "--card: expected the beginning of a UUID of this node"),
        ((), node.as_nobody(), "expected root, found uid 65534; run as root, or --bare"),
    ):
        done = node.selftest(*words, prefix=prefix)
        assert (done.returncode, done.stdout) == (3, "")
        (line,) = done.stderr.splitlines()
        assert found in line
