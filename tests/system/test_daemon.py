"""vgpud with real containers: the reaper, the inventory, the host's view of processes, the endpoint, its absence."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import bundles
import daemons
import nodes
import pytest
from daemons import wait_for

from vgpu.config import claims, limits, paths, records
from vgpu.hook.linux import cgroup
from vgpu.node.daemon import device_monitor, reaper

pytestmark = pytest.mark.root

Rootfs = Callable[..., Path]
MakeBundle = Callable[..., bundles.Bundle]
SLEEP = ("sleep", "600")


@pytest.fixture
def daemon(node: nodes.SimulatedNode) -> Iterator[daemons.Daemon]:
    """The node's daemon, which the test starts."""
    made = daemons.Daemon(node)
    yield made
    made.kill()


def held(node: nodes.SimulatedNode) -> set[str]:
    """The containers that have a directory of claims."""
    directory = Path(node.settings.run_dir) / "containers"
    return set(os.listdir(directory)) if directory.exists() else set()


def is_ready(node: nodes.SimulatedNode, container: str) -> bool:
    """Whether the hook has completed the claim."""
    try:
        return claims.read(node.settings.run_dir, container).ready
    except FileNotFoundError:
        return False


def started(runtime: bundles.Runtime, share: bundles.Bundle) -> tuple[str, int]:
    """Start a container that sleeps. Returns it and its init."""
    container, done = runtime.create(share.command(*SLEEP))
    assert done.returncode == 0, done.stderr
    runtime.call("start", container, check=True)
    return container, int(runtime.state(container)["pid"])


def without_poststop(share: bundles.Bundle) -> bundles.Bundle:
    """Remove the poststop hook, as if the runtime or the machine died before it ran."""
    del share.config["hooks"]["poststop"]
    return share


# Device cgroups


#: Replaces the hook's program with runc's own, made of config.json, as `runc update` of 1.0.0-rc93 does on v2.
RESET_V2 = """
import json, os, sys
from vgpu.hook.devices import cgroup_v2, rules
from vgpu.hook.linux import bpf, cgroup
fd = os.open(cgroup.device_cgroup(int(sys.argv[1])).directory, os.O_RDONLY)
container_rules = rules.from_config(json.load(open(sys.argv[2])), "config.json")
(old,), flags = bpf.prog_query(fd)
cgroup_v2.swap(fd, cgroup_v2.known_programs(container_rules)[0].load(), bpf.prog_get_fd_by_id(old), flags)
"""


def reset(version: int, init: int, share: bundles.Bundle, numbers: list[str]) -> None:
    """The container's device cgroup has the runtime's rules again, and no others."""
    if version == 2:
        script = [sys.executable, "-c", RESET_V2, str(init), str(share.path / "config.json")]
        subprocess.run([*bundles.V2, *script], check=True)
        return
    deny = Path(cgroup.device_cgroup(init).directory) / "devices.deny"
    for number in numbers:
        deny.write_text(f"c {number} rw")


def opens(runtime: bundles.Runtime, container: str) -> bool:
    """Whether the device cgroup permits the card's node. The node has no driver here, which is another error."""
    done = runtime.call("exec", container, "sh", "-c", ": <> /dev/nvidiactl")
    return "Operation not permitted" not in done.stderr


@pytest.mark.parametrize("version", [1, 2])
def test_devices_that_a_runtime_closed_are_opened_again(
    version: int, tmp_path: Path, rootfs: Rootfs, bundle: MakeBundle, node: nodes.SimulatedNode, daemon: daemons.Daemon
) -> None:
    """runc 1.0.0-rc93 closes them at every update by restoring its own rules. vgpud does not touch the neighbour."""
    runtime = bundles.Runtime(tmp_path / "runtime", "runc", cgroup=version)
    try:
        share = bundle(rootfs(), cores="20", memory="1Gi")
        container, init = started(runtime, share)
        started(runtime, bundle(rootfs(), cores="20", memory="1Gi"))
        numbers = list(claims.read(node.settings.run_dir, container).devices)
        daemon.start(*(bundles.V2 if version == 2 else ())).ready()
        daemon.rounds(3)
        assert daemon.health()["devices"] == {"reopened": 0}
        assert opens(runtime, container)
        reset(version, init, share, numbers)
        assert not opens(runtime, container)
        wait_for(lambda: daemon.health()["devices"] == {"reopened": 1}, what=daemon.text)
        assert opens(runtime, container)
    finally:
        runtime.cleanup()
    text = "devices allowed again that another program had denied"
    (told,) = [line for line in daemon.text().splitlines() if text in line]
    assert f"container={container}" in told
    told = node.vgpuctl("health").stdout.partition("containers whose devices were allowed again")[2]
    assert told.split()[0] == "1"


#: Puts another program's own device program in the place of the container's. argv: init, "permit" or "deny".
SWAP_V2 = """
import os, sys
from vgpu.hook.devices import bpf_program, cgroup_v2, rules
from vgpu.hook.linux import bpf, cgroup
fd = os.open(cgroup.device_cgroup(int(sys.argv[1])).directory, os.O_RDONLY)
(old,), flags = bpf.prog_query(fd)
other = rules.Filter([rules.Rule("c", 1, 3, "rwm")], sys.argv[2] == "permit")
new = bpf.prog_load(bpf_program.program(other, bpf_program.MOV32_K), "other")
cgroup_v2.swap(fd, new, bpf.prog_get_fd_by_id(old), flags)
"""


def swap(init: int, decision: str) -> None:
    subprocess.run([*bundles.V2, sys.executable, "-c", SWAP_V2, str(init), decision], check=True)


def close(version: int, init: int, numbers: list[str]) -> None:
    """Another program takes the devices from a privileged container."""
    if version == 2:
        swap(init, "deny")
        return
    directory = Path(cgroup.device_cgroup(init).directory)
    for number in numbers:
        (directory / "devices.deny").write_text(f"c {number} rw")
    assert (directory / "devices.list").read_text() == "a *:* rwm\n"


def privileged(share: bundles.Bundle) -> bundles.Bundle:
    """Give the container the device rules and capabilities of a privileged one."""
    share.config["linux"]["resources"]["devices"] = [{"allow": True, "access": "rwm"}]
    share.config["process"]["noNewPrivileges"] = False
    return share


@pytest.mark.parametrize("version", [1, 2])
def test_a_privileged_container_is_reported_only_when_its_devices_were_closed(
    version: int, tmp_path: Path, rootfs: Rootfs, bundle: MakeBundle, node: nodes.SimulatedNode, daemon: daemons.Daemon
) -> None:
    """Its list on v1 is `a *:* rwm` before and after a denial, because the kernel does not list denials.

    On v2 it has a program of an unknown runtime, which permits all devices.
    """
    runtime = bundles.Runtime(tmp_path / "runtime", "runc", cgroup=version)
    try:
        share = privileged(bundle(rootfs(), cores="20", memory="1Gi"))
        container, init = started(runtime, share)
        if version == 2:
            swap(init, "permit")
        daemon.start(*(bundles.V2 if version == 2 else ())).ready()
        daemon.rounds(3)
        if version == 1:
            time.sleep(device_monitor.INTERVAL)  # a second look follows the first
            daemon.rounds(3)
        assert daemon.health()["devices"] == {"reopened": 0}
        assert opens(runtime, container)
        close(version, init, list(claims.read(node.settings.run_dir, container).devices))
        assert not opens(runtime, container)
        wait_for(lambda: daemon.health()["devices"] == {"reopened": 1}, what=daemon.text)
        assert opens(runtime, container)
    finally:
        runtime.cleanup()


# The reaper


def test_reaper_releases_the_dead_and_only_them(
    runc1: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle, node: nodes.SimulatedNode, daemon: daemons.Daemon
) -> None:
    tree = rootfs()
    living, _ = started(runc1, bundle(tree, cores="20", memory="1Gi"))
    dying, init = started(runc1, without_poststop(bundle(tree, cores="20", memory="1Gi")))
    deleted, _ = started(runc1, without_poststop(bundle(tree, cores="20", memory="1Gi")))
    daemon.start().ready()
    daemon.rounds()
    assert held(node) == {living, dying, deleted}
    os.kill(init, signal.SIGKILL)
    runc1.delete(deleted)
    wait_for(lambda: held(node) == {living})
    daemon.rounds()
    assert held(node) == {living}
    assert f"released: its init {init} has died, and no poststop hook released it container={dying}" in daemon.text()
    log = [json.loads(line) for line in (Path(node.settings.run_dir) / "hook.log").read_text().splitlines()]
    assert {line["container"] for line in log if line["stage"] == "reaper"} == {dying, deleted}
    assert daemon.health()["claims"] == {"total": 1, "living": 1, "damaged": 0}
    runc1.delete(living)
    assert held(node) == set()


def test_a_killed_runtime_ends_no_claim(
    runc1: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle, node: nodes.SimulatedNode, daemon: daemons.Daemon
) -> None:
    """`runc run` is killed, and its container lives on. When that ends too, no process is left to call poststop."""
    daemon.start().ready()
    share = bundle(rootfs(), cores="20", memory="1Gi").command(*SLEEP)
    container = runc1.new_id()
    command = [*runc1.command, "run", "--bundle", str(share.write()), container]
    runtime = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: is_ready(node, container))
    init = claims.read(node.settings.run_dir, container).pid
    wait_for(lambda: b"sleep" in Path(f"/proc/{init}/cmdline").read_bytes())
    runtime.kill()
    runtime.wait()
    time.sleep(reaper.GRACE)
    daemon.rounds()
    assert held(node) == {container}
    os.kill(init, signal.SIGKILL)
    wait_for(lambda: held(node) == set())


def test_starting_containers_are_left_alone(
    runc1: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle, node: nodes.SimulatedNode, daemon: daemons.Daemon
) -> None:
    daemon.start().ready()
    tree = rootfs()
    shares = [bundle(tree, cores="5", memory="1Gi") for _ in range(20)]
    with ThreadPoolExecutor(20) as pool:
        done = list(pool.map(lambda share: started(runc1, share)[0], shares))
    time.sleep(reaper.GRACE)
    daemon.rounds()
    assert held(node) == set(done)
    assert daemon.health()["claims"] == {"total": 20, "living": 20, "damaged": 0}
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(runc1.delete, done))
    assert held(node) == set()
    assert daemon.health()["reaper"]["released"] == 0


def test_leftovers_of_an_earlier_boot(
    runc1: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle, node: nodes.SimulatedNode, daemon: daemons.Daemon
) -> None:
    """paths.run is on a disk: the pid and even its start time are the same again, but the boot is another one."""
    living, _ = started(runc1, bundle(rootfs(), cores="60", memory="1Gi", use_gpuuuid=node.read_cards()[0]["uuid"]))
    run_dir = node.settings.run_dir
    shutil.copytree(f"{run_dir}/containers/{living}", f"{run_dir}/containers/old")
    record = records.read(paths.claim(run_dir, "old"))
    record.update(container="old", boot_id="4c2b6d0e-0000-4000-8000-000000000001")
    records.write(paths.claim(run_dir, "old"), record)
    cards = json.loads(node.vgpuctl("status", "--output", "json").stdout)["cards"]
    assert [card["cores_held"] for card in cards] == [60, 0], "the old one counts nowhere"
    daemon.start()
    wait_for(lambda: held(node) == {living})


def test_damaged_claims_are_removed_only_when_their_container_is_provably_gone(
    runc1: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle, node: nodes.SimulatedNode, daemon: daemons.Daemon
) -> None:
    """All are damaged and old. A container's limits mount, or its cgroup, shows that it is alive."""
    tree = rootfs()
    living, _ = started(runc1, bundle(tree, cores="20", memory="1Gi"))
    gone, _ = started(runc1, without_poststop(bundle(tree, cores="20", memory="1Gi")))
    whole, _ = started(runc1, without_poststop(bundle(tree, cores="100")))
    runc1.delete(gone)
    runc1.delete(whole)
    long_ago = time.time() - 2 * reaper.DAMAGED_AGE
    for container in (living, gone, whole):
        directory = Path(paths.container(node.settings.run_dir, container))
        (directory / "claim.json").write_text("{")
        for path in (directory / "claim.json", directory / "limits", directory):
            os.utime(path, (long_ago, long_ago))
    daemon.start().ready()
    wait_for(lambda: held(node) == {living, whole})
    daemon.rounds()
    assert held(node) == {living, whole}
    warnings = " ".join(daemon.health()["warnings"])
    assert "has its limits mounted" in warnings
    assert f"if it is gone, remove {paths.container(node.settings.run_dir, whole)}" in warnings


# Without vgpud, and after its restart


def test_containers_start_while_it_is_dead(
    runc1: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle, node: nodes.SimulatedNode, daemon: daemons.Daemon
) -> None:
    tree = rootfs()
    daemon.start().ready()
    first, _ = started(runc1, bundle(tree, cores="20", memory="1Gi"))
    assert daemon.kill() == -signal.SIGKILL
    assert (Path(node.settings.run_dir) / "vgpud.sock").exists()
    second, init = started(runc1, without_poststop(bundle(tree, cores="20", memory="1Gi")))
    status = node.vgpuctl("status").stdout
    assert "vgpud: does not answer" in status
    assert second in status
    assert node.vgpuctl("health", check=False).returncode == 1
    os.kill(init, signal.SIGKILL)
    daemon.start().ready()
    wait_for(lambda: held(node) == {first})
    assert "vgpud: running for" in node.vgpuctl("status").stdout
    runc1.delete(first)
    assert held(node) == set()


def test_only_one_runs_and_sigterm_ends_it(node: nodes.SimulatedNode, daemon: daemons.Daemon) -> None:
    daemon.start().ready()
    second = daemons.Daemon(node).start()
    assert second.process is not None
    assert second.process.wait(120) == 1
    assert "expected to be the only vgpud of this node" in second.text()
    assert daemon.health()["pid"] == daemon.pid
    files = daemon.open_files()
    daemon.rounds(3)
    wait_for(lambda: daemon.open_files() <= files)  # a worker has a pipe for a moment
    assert daemon.stop() == 0
    left = set(os.listdir(node.settings.run_dir))
    assert "vgpud.sock" not in left
    assert "foreign.json" not in left


def test_sighup_reads_the_settings_again(node: nodes.SimulatedNode, daemon: daemons.Daemon) -> None:
    daemon.start().ready()
    config = node.config.read_text()
    moved = config.replace(str(node.directory / "run"), "/elsewhere")
    for text, warning in (("{", "expected JSON"), (moved, "paths.run")):
        node.config.write_text(text)
        os.kill(daemon.pid, signal.SIGHUP)
        wait_for(lambda text=warning: any(text in one for one in daemon.health()["warnings"]), what=daemon.text())
    node.config.write_text(config)
    os.kill(daemon.pid, signal.SIGHUP)
    wait_for(lambda: "settings read again" in daemon.text())
    wait_for(lambda: not daemon.health()["warnings"])


def test_systemd_is_notified(node: nodes.SimulatedNode, daemon: daemons.Daemon, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(120)
        daemon.start(NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="1000000")
        received: list[str] = []
        while "READY=1" not in " ".join(received) or received.count("WATCHDOG=1") < 3:
            received.append(systemd.recv(4096).decode())
        assert "inventory fresh" in " ".join(received)
        daemon.stop()
        while systemd.recv(4096).decode() != "STOPPING=1":
            pass


def test_the_unit_is_right(repository: Path, tmp_path: Path) -> None:
    unit = tmp_path / "vgpud.service"
    text = (repository / "packaging/systemd/vgpud.service").read_text()
    unit.write_text(text.replace("/usr/bin/vgpud", "/bin/true"))
    if shutil.which("systemd-analyze"):
        done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
        assert done.stderr == ""
        assert done.returncode == 0
    assert "RuntimeDirectoryPreserve=yes" in text, "else a restart of the daemon takes every claim away"


# Inventory


def test_inventory_follows_the_driver(
    runc1: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle, node: nodes.SimulatedNode, daemon: daemons.Daemon
) -> None:
    (Path(node.settings.run_dir) / "inventory.json").unlink()
    daemon.start().ready()
    old, new = "550.54.15", "560.35.03"
    libraries = node.driver / "usr/lib" / f"{os.uname().machine}-linux-gnu"
    for path in list(libraries.glob(f"*.so.{old}")):
        path.rename(path.with_name(path.name.replace(old, new)))
    for path in list(libraries.iterdir()):
        if path.is_symlink() and str(path.readlink()).endswith(old):
            target = str(path.readlink()).replace(old, new)
            path.unlink()
            path.symlink_to(target)
    version = node.driver / "proc/driver/nvidia/version"
    version.write_text(version.read_text().replace(old, new))
    wait_for(lambda: daemon.health()["inventory"]["driver_version"] == new, what=daemon.text())
    share = bundle(rootfs(), cores="30", memory="2Gi").command("sh", "-c", "cudaprobe info")
    done = runc1.run(share)
    assert done.returncode == 0, done.stderr
    version.rename(version.with_name("gone"))
    (Path(node.settings.run_dir) / "inventory.json").write_text("{")
    shutil.rmtree(libraries)
    wait_for(lambda: any("no inventory" in warning for warning in daemon.health()["warnings"]), what=daemon.text())
    assert daemon.health()["inventory"]["state"] == "failed"


# Processes


def expected_processes(init: int) -> set[int]:
    """All processes of an init's PID namespace, by /proc."""
    namespace = os.readlink(f"/proc/{init}/ns/pid")
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{name}/ns/pid") == namespace:
                found.add(int(name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("kind", ["own cgroup", "shared cgroup", "cgroup namespace", "the runtime's cgroup"])
def test_processes_of_each_container(
    runc: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle, node: nodes.SimulatedNode, daemon: daemons.Daemon,
    cgroup: str, kind: str,
) -> None:  # fmt: skip
    tree = rootfs()
    daemon.start().ready()
    found = {}
    for number in range(2):
        share = bundle(tree, cores="20", memory="1Gi")
        share.config["linux"]["cgroupsPath"] = cgroup if kind == "shared cgroup" else f"{cgroup}/{number}"
        if kind == "cgroup namespace":
            share.config["linux"]["namespaces"].append({"type": "cgroup"})
        container, done = runc.create(share.command("sh", "-c", "sleep 600 & sleep 600"))
        assert done.returncode == 0, done.stderr
        runc.call("start", container, check=True)
        if kind == "the runtime's cgroup":  # a claim without one of its own
            path = paths.claim(node.settings.run_dir, container)
            records.write(path, {**records.read(path), "cgroup": ""})
        command = "exec sleep 600 > /dev/null 2>&1"  # otherwise it keeps the test's pipes open
        runc.call("exec", "--detach", container, "sh", "-c", command, check=True)
        init = int(runc.state(container)["pid"])
        wait_for(lambda init=init: len(expected_processes(init)) == 3)
        found[container] = expected_processes(init)
    time.sleep(1.1)  # an answer is kept for a second
    answer = daemon.ask("processes")["containers"]
    assert {item["container"]: {process["pid"] for process in item["processes"]} for item in answer} == found
    assert all(process["start_time"] > 0 for item in answer for process in item["processes"])
    assert next(iter(found)) in node.vgpuctl("health", "--processes").stdout
    for container in found:
        runc.delete(container)


# Other programs on the cards


@pytest.fixture
def stranger(node: nodes.SimulatedNode, cudaprobe: Path, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program on the host that computes on card 0 without an allocation."""
    libraries = node.driver / "usr/lib" / f"{os.uname().machine}-linux-gnu"
    environment = {**node.environment(), "LD_LIBRARY_PATH": str(libraries)}
    command = [cudaprobe, "hold", "100", tmp_path / "end"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"result 0\n"
        yield process
        process.kill()


def test_a_card_in_foreign_use_is_no_whole_card(
    runc1: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle, node: nodes.SimulatedNode, daemon: daemons.Daemon,
    stranger: subprocess.Popen[bytes],
) -> None:  # fmt: skip
    tree = rootfs()
    card = node.read_cards()[0]["uuid"]
    daemon.start().ready()
    wait_for(lambda: daemon.health()["foreign"], what=daemon.text())
    assert daemon.health()["foreign"] == {card: [{"pid": stranger.pid, "command": "cudaprobe", "kind": "compute"}]}
    whole = bundle(tree, cores="100", use_gpuuuid=card).command("true")
    refused = runc1.run(whole)
    assert refused.returncode != 0
    assert f"process {stranger.pid} (cudaprobe) of no container" in refused.stderr
    assert runc1.run(bundle(tree, cores="200").command("true")).returncode != 0
    assert runc1.run(bundle(tree, cores="100").command("true")).returncode == 0, "the other card is free"
    share = runc1.run(bundle(tree, cores="20", memory="1Gi", use_gpuuuid=card).command("true"))
    assert share.returncode == 0, share.stderr
    assert (
        f"process {stranger.pid} (cudaprobe) of no container is there too"
        in (Path(node.settings.run_dir) / "hook.log").read_text()
    )
    assert "cudaprobe" in node.vgpuctl("status").stdout
    doctor = node.vgpuctl("doctor", "--hook", str(node.hook), "--output", "json", check=False)
    found = [item for item in json.loads(doctor.stdout) if item["check"] == "cards in use"]
    assert [item["status"] for item in found] == ["warning"]
    assert f"process {stranger.pid} (cudaprobe)" in found[0]["found"]
    stranger.kill()
    stranger.wait()
    assert runc1.run(whole).returncode == 0, "a process that is gone keeps nobody out"


def test_our_own_processes_are_no_strangers(
    runc1: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle, node: nodes.SimulatedNode, daemon: daemons.Daemon
) -> None:
    share = bundle(rootfs(), cores="20", memory="1Gi").command("cudaprobe", "hold", "100", "/end")
    container, done = runc1.create(share)
    assert done.returncode == 0, done.stderr
    runc1.call("start", container, check=True)
    wait_for(lambda: any(card["processes"] for card in node.read_cards()))
    daemon.start().ready()
    wait_for((Path(node.settings.run_dir) / "foreign.json").exists)
    assert daemon.health()["foreign"] == {}
    found = node.vgpuctl("doctor", "--hook", str(node.hook), "--output", "json", check=False)
    states = {item["check"]: item["status"] for item in json.loads(found.stdout)}
    assert states["cards in use"] == "ok", found.stdout
    assert container not in found.stdout


def test_the_drivers_memory_for_a_container_is_written_to_its_limits(
    runc1: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle, node: nodes.SimulatedNode, daemon: daemons.Daemon
) -> None:
    """This driver reports the host's pids in containers, so only the host can find out how much a context takes."""
    share = bundle(rootfs(), cores="20", memory="2Gi").command("cudaprobe", "hold", "100", "/end")
    share.config["process"]["env"].append("VGPU_SIM_PIDS=host")
    container, done = runc1.create(share)
    assert done.returncode == 0, done.stderr
    runc1.call("start", container, check=True)
    wait_for(lambda: any(card["processes"] for card in node.read_cards()))
    card = next(card for card in node.read_cards() if card["processes"])
    path = Path(node.settings.run_dir) / "containers" / container / "limits"
    daemon.start()
    wait_for(lambda: limits.overheads(path.read_bytes())[card["uuid"]][0], what=daemon.text())
    context = card["processes"][0]["context"]
    assert context > 0
    assert limits.overheads(path.read_bytes())[card["uuid"]][0] == context
    info = runc1.call("exec", "--env", "VGPU_SIM_PIDS=host", container, "cudaprobe", "info", check=True).stdout
    free = int(next(line.split()[1] for line in info.splitlines() if line.startswith("card0.info_free")))
    assert free == (2 << 30) - (100 << 20) - context
    node.vgpuctl("set", container, "--memory", "1Gi")
    assert limits.overheads(path.read_bytes())[card["uuid"]][0] == context, "other changes leave it alone"
    runc1.delete(container)


# The endpoint


def connect(node: nodes.SimulatedNode) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(120)
    connection.connect(f"{node.settings.run_dir}/vgpud.sock")
    return connection


def answers(connection: socket.socket) -> list[dict[str, Any]]:
    """Everything that the daemon sends until it closes the connection."""
    connection.shutdown(socket.SHUT_WR)
    with connection, connection.makefile("rb") as stream:
        return [json.loads(line) for line in stream]


def test_endpoint_survives_abuse(node: nodes.SimulatedNode, daemon: daemons.Daemon) -> None:
    daemon.start().ready()
    path = Path(node.settings.run_dir) / "vgpud.sock"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    deep, other = b"[" * 3000 + b"\n", b'{"ask": "everything"}\n'
    for garbage in (b"\n", b"{\n", b"[]\n", b'{"ask": 5}\n', other, b"\xff\xfe\n", deep):
        connection = connect(node)
        connection.sendall(garbage)
        assert [list(answer) for answer in answers(connection)] == [["error"]], garbage
    connection = connect(node)
    with pytest.raises((BrokenPipeError, ConnectionResetError, TimeoutError)):
        connection.settimeout(2)
        for _ in range(1000):
            connection.sendall(b"x" * 65536)  # a line without an end
    connection.close()
    connection = connect(node)
    connection.sendall(b'{"ask": "health"}\n' * 3 + b'{"ask"')
    assert [answer["pid"] for answer in answers(connection)] == [daemon.pid] * 3


def test_slow_and_many_clients_block_nobody(node: nodes.SimulatedNode, daemon: daemons.Daemon) -> None:
    daemon.start().ready()
    files = daemon.open_files()
    slow = [connect(node) for _ in range(150)]
    for connection in slow[-20:]:  # ask much, and never read
        connection.setblocking(False)
        try:
            for _ in range(200):
                connection.send(b'{"ask": "health"}\n' * 50)
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            pass
    assert daemon.health()["pid"] == daemon.pid
    daemon.rounds()
    assert daemon.open_files() < files + 70
    wait_for(lambda: daemon.open_files() <= files + 1, 50, "silent clients are let go")
    for connection in slow:
        connection.close()
