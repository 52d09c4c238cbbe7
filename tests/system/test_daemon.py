"""vgpud with real containers: the reaper, the inventory, the host's view of processes, the endpoint."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import bundles
import daemons
import nodes
import pytest
from container_site import BOTH, GIB, INFO, MIB, SLEEP, Site, pairs
from daemons import wait_for

from vgpu.config import limits, paths, records
from vgpu.hook.linux import cgroup
from vgpu.node.daemon import device_monitor, reaper

pytestmark = pytest.mark.root

SMALL = {"cores": "20", "memory": "1Gi"}


def is_ready(node: nodes.SimulatedNode, container: str) -> bool:
    """Whether the hook has completed the claim."""
    try:
        return node.claim(container).ready
    except FileNotFoundError:
        return False


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


def reset(site: Site, container: str, share: bundles.Bundle) -> None:
    """The container's device cgroup has the runtime's rules again, and no others."""
    init = site.pid(container)
    if site.prefix:
        script = [sys.executable, "-c", RESET_V2, str(init), str(share.path / "config.json")]
        subprocess.run([*site.prefix, *script], check=True)
        return
    deny(init, site.node.claim(container).devices)


def deny(init: int, numbers: Iterable[str]) -> Path:
    """Deny devices on cgroup v1. Returns the directory."""
    directory = Path(cgroup.device_cgroup(init).directory)
    for number in numbers:
        (directory / "devices.deny").write_text(f"c {number} rw")
    return directory


def opens(site: Site, container: str) -> bool:
    """Whether the device cgroup permits the card's node. The node has no driver here, which is another error."""
    done = site.runtime.call("exec", container, "sh", "-c", ": <> /dev/nvidiactl")
    return "Operation not permitted" not in done.stderr


def is_repaired(site: Site, container: str, close: Callable[[], object], is_hidden: bool = False) -> None:
    """vgpud does nothing until `close` has closed the devices; then it opens them again.

    `is_hidden`: the kernel's list does not show what is denied, so that vgpud looks again after its interval.
    """
    site.start_daemon()
    site.daemon.rounds(3)
    if is_hidden:
        time.sleep(device_monitor.INTERVAL)
        site.daemon.rounds(3)
    assert site.daemon.health()["devices"] == {"reopened": 0}
    assert opens(site, container)
    close()
    assert not opens(site, container)
    wait_for(lambda: site.daemon.health()["devices"] == {"reopened": 1}, what=site.daemon.text)
    assert opens(site, container)


@BOTH
def test_devices_that_a_runtime_closed_are_opened_again(site: Site) -> None:
    """runc 1.0.0-rc93 closes them at every update by restoring its own rules. vgpud does not touch the neighbour."""
    share = site.bundle(**SMALL)
    container = site.start(share)
    site.start(site.bundle(**SMALL))
    is_repaired(site, container, lambda: reset(site, container, share))
    text = "devices allowed again that another program had denied"
    (told,) = [line for line in site.daemon.text().splitlines() if text in line]
    assert f"container={container}" in told
    told = site.node.vgpuctl("health").stdout.partition("containers whose devices were allowed again")[2]
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


def close(site: Site, container: str) -> None:
    """Another program takes the devices from a privileged container."""
    if site.prefix:
        swap(site.pid(container), "deny")
        return
    directory = deny(site.pid(container), site.node.claim(container).devices)
    assert (directory / "devices.list").read_text() == "a *:* rwm\n"


@BOTH
def test_a_privileged_container_is_reported_only_when_its_devices_were_closed(site: Site) -> None:
    """Its list on v1 is `a *:* rwm` before and after a denial, because the kernel does not list denials.

    On v2 it has a program of an unknown runtime, which permits all devices.
    """
    share = site.bundle(**SMALL)
    share.config["linux"]["resources"]["devices"] = [{"allow": True, "access": "rwm"}]
    share.config["process"]["noNewPrivileges"] = False
    container = site.start(share)
    if site.prefix:
        swap(site.pid(container), "permit")
    is_repaired(site, container, lambda: close(site, container), is_hidden=not site.prefix)


# The reaper


def test_reaper_releases_the_dead_and_only_them(site: Site) -> None:
    tree = site.tree()
    living = site.start(site.bundle(tree, **SMALL))
    dying = site.start(without_poststop(site.bundle(tree, **SMALL)))
    init = site.pid(dying)
    deleted = site.start(without_poststop(site.bundle(tree, **SMALL)))
    site.start_daemon()
    site.daemon.rounds()
    assert site.node.held() == {living, dying, deleted}
    os.kill(init, signal.SIGKILL)
    site.delete(deleted)
    wait_for(lambda: site.node.held() == {living})
    site.daemon.rounds()
    assert site.node.held() == {living}
    line = f"released: its init {init} has died, and no poststop hook released it container={dying}"
    assert line in site.daemon.text()
    assert {line["container"] for line in site.node.log() if line["stage"] == "reaper"} == {dying, deleted}
    assert site.daemon.health()["claims"] == {"total": 1, "living": 1, "damaged": 0}
    site.delete(living)
    assert site.node.held() == set()


def test_a_killed_runtime_ends_no_claim(site: Site) -> None:
    """`runc run` is killed, and its container lives on. When that ends too, no process is left to call poststop."""
    site.start_daemon()
    share = site.bundle(**SMALL).command(*SLEEP)
    container = site.runtime.new_id()
    command = [*site.runtime.command, "run", "--bundle", str(share.write()), container]
    runtime = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: is_ready(site.node, container))
    init = site.node.claim(container).pid
    wait_for(lambda: b"sleep" in Path(f"/proc/{init}/cmdline").read_bytes())
    runtime.kill()
    runtime.wait()
    time.sleep(reaper.GRACE)
    site.daemon.rounds()
    assert site.node.held() == {container}
    os.kill(init, signal.SIGKILL)
    wait_for(lambda: site.node.held() == set())


# Ends and signals


def test_only_one_runs_and_sigterm_ends_it(site: Site) -> None:
    site.start_daemon()
    second = daemons.Daemon(site.node).start()
    assert second.process is not None
    assert second.process.wait(120) == 1
    assert "expected to be the only vgpud of this node" in second.text()
    assert site.daemon.health()["pid"] == site.daemon.pid
    files = site.daemon.open_files()
    site.daemon.rounds(3)
    wait_for(lambda: site.daemon.open_files() <= files)  # a worker has a pipe for a moment
    assert "vgpud: running for" in site.node.vgpuctl("status").stdout
    assert site.daemon.stop() == 0
    assert "vgpud: does not answer" in site.node.vgpuctl("status").stdout
    assert site.node.vgpuctl("health", check=False).returncode == 1
    left = set(os.listdir(site.node.settings.run_dir))
    assert "vgpud.sock" not in left
    assert "foreign.json" not in left


def test_sighup_reads_the_settings_again(site: Site) -> None:
    site.start_daemon()
    config = site.node.config.read_text()
    moved = config.replace(str(site.node.directory / "run"), "/elsewhere")
    for text, warning in (("{", "expected JSON"), (moved, "paths.run")):
        site.node.config.write_text(text)
        os.kill(site.daemon.pid, signal.SIGHUP)
        wait_for(
            lambda text=warning: any(text in one for one in site.daemon.health()["warnings"]), what=site.daemon.text()
        )
    site.node.config.write_text(config)
    os.kill(site.daemon.pid, signal.SIGHUP)
    wait_for(lambda: "settings read again" in site.daemon.text())
    wait_for(lambda: not site.daemon.health()["warnings"])


def test_systemd_is_notified(site: Site, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(120)
        site.daemon.start(NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="1000000")
        received: list[str] = []
        wanted = ("READY=1", "inventory fresh")
        while not all(one in " ".join(received) for one in wanted) or received.count("WATCHDOG=1") < 3:
            received.append(systemd.recv(4096).decode())
        site.daemon.stop()
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


def test_inventory_follows_the_driver(site: Site) -> None:
    (site.node.run_dir / "inventory.json").unlink()
    site.start_daemon()
    old, new = "550.54.15", "560.35.03"
    libraries = site.node.driver / "usr/lib" / f"{os.uname().machine}-linux-gnu"
    for path in list(libraries.glob(f"*.so.{old}")):
        path.rename(path.with_name(path.name.replace(old, new)))
    for path in list(libraries.iterdir()):
        if path.is_symlink() and str(path.readlink()).endswith(old):
            target = str(path.readlink()).replace(old, new)
            path.unlink()
            path.symlink_to(target)
    version = site.node.driver / "proc/driver/nvidia/version"
    version.write_text(version.read_text().replace(old, new))
    wait_for(lambda: site.daemon.health()["inventory"]["driver_version"] == new, what=site.daemon.text())
    site.seen(site.share())
    version.rename(version.with_name("gone"))
    (site.node.run_dir / "inventory.json").write_text("{")
    shutil.rmtree(libraries)
    wait_for(
        lambda: any("no inventory" in warning for warning in site.daemon.health()["warnings"]), what=site.daemon.text()
    )
    assert site.daemon.health()["inventory"]["state"] == "failed"


#: Runs "$@" in a mount namespace of its own whose /run is empty but for a place for a driver container.
OWN_RUN = 'mount -t tmpfs run /run && mkdir -p /run/nvidia/driver && exec "$@"'


def test_the_driver_of_a_container_is_found_when_it_comes_and_missed_when_it_goes(tmp_path: Path) -> None:
    own = {"driver.root": "auto", "driver.dev_root": ""}
    node = nodes.SimulatedNode(tmp_path / "node", "t4x1", **own)
    daemon = daemons.Daemon(node)
    daemon.start("unshare", "-m", "--propagation", "private", "sh", "-c", OWN_RUN, "sh")

    def mount(*command: str) -> None:
        subprocess.run(["nsenter", "-t", str(daemon.pid), "-m", *command, "/run/nvidia/driver"], check=True)

    def error() -> str:
        return str(daemon.health().get("inventory", {}).get("error", ""))

    try:
        wait_for(lambda: "below /" in error(), what=daemon.text)
        mount("mount", "--bind", str(node.driver))
        daemon.ready()
        record = records.read(paths.inventory(node.settings.run_dir))
        assert {str(item["path"]).startswith("/run/nvidia/driver/") for item in record["libraries"]} == {True}
        assert {str(item["path"]).startswith("/run/nvidia/driver/dev/") for item in record["devices"]} == {True}
        mount("umount", "-l")  # as NVIDIA's driver container does: vgpud waits for events by its library
        wait_for(lambda: "below /" in error(), what=daemon.text)
        mount("mount", "--bind", str(node.driver))
        wait_for(lambda: error() == "", what=daemon.text)
    finally:
        daemon.stop()


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


@BOTH
@pytest.mark.parametrize("kind", ["own cgroup", "shared cgroup", "cgroup namespace", "the runtime's cgroup"])
def test_processes_of_each_container(site: Site, cgroup: str, kind: str) -> None:
    tree = site.tree()
    site.start_daemon()
    found = {}
    for number in range(2):
        share = site.bundle(tree, **SMALL)
        share.config["linux"]["cgroupsPath"] = cgroup if kind == "shared cgroup" else f"{cgroup}/{number}"
        if kind == "cgroup namespace":
            share.config["linux"]["namespaces"].append({"type": "cgroup"})
        container = site.start(share, "sh", "-c", "sleep 600 & sleep 600")
        if kind == "the runtime's cgroup":  # a claim without one of its own
            path = paths.claim(site.node.settings.run_dir, container)
            records.write(path, {**records.read(path), "cgroup": ""})
        command = "exec sleep 600 > /dev/null 2>&1"  # otherwise it keeps the test's pipes open
        site.runtime.call("exec", "--detach", container, "sh", "-c", command, check=True)
        init = site.pid(container)
        wait_for(lambda init=init: len(expected_processes(init)) == 3)
        found[container] = expected_processes(init)
    time.sleep(1.1)  # an answer is kept for a second
    answer = site.daemon.ask("processes")["containers"]
    assert {item["container"]: {process["pid"] for process in item["processes"]} for item in answer} == found
    assert all(process["start_time"] > 0 for item in answer for process in item["processes"])
    assert next(iter(found)) in site.node.vgpuctl("health", "--processes").stdout
    site.delete(*found)


# Other programs on the cards


@pytest.fixture
def stranger(site: Site, cudaprobe: Path, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program on the host that computes on card 0 without an allocation."""
    libraries = site.node.driver / "usr/lib" / f"{os.uname().machine}-linux-gnu"
    environment = {**site.node.environment(), "LD_LIBRARY_PATH": str(libraries)}
    command = [cudaprobe, "hold", "100", tmp_path / "end"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"result 0\n"
        yield process
        process.kill()


def test_a_card_in_foreign_use_is_no_whole_card(site: Site, stranger: subprocess.Popen[bytes]) -> None:
    tree = site.tree()
    card = site.node.read_cards()[0]["uuid"]
    site.start_daemon()
    wait_for(lambda: site.daemon.health()["foreign"], what=site.daemon.text())
    assert site.daemon.health()["foreign"] == {card: [{"pid": stranger.pid, "command": "cudaprobe", "kind": "compute"}]}
    whole = site.bundle(tree, cores="100", use_gpuuuid=card)
    assert f"process {stranger.pid} (cudaprobe) of no container" in site.refused(whole)
    site.refused(site.bundle(tree, cores="200"))
    site.output(site.bundle(tree, cores="100"))  # the other card is free
    site.output(site.bundle(tree, **SMALL, use_gpuuuid=card))
    assert f"process {stranger.pid} (cudaprobe) of no container is there too" in str(site.node.log())
    assert "cudaprobe" in site.node.vgpuctl("status").stdout
    found = cards_in_use(site)
    assert found["status"] == "warning"
    assert f"process {stranger.pid} (cudaprobe)" in found["found"]
    stranger.kill()
    stranger.wait()
    site.output(whole)  # a process that is gone keeps nobody out


def cards_in_use(site: Site) -> dict[str, str]:
    """What the doctor says of that."""
    done = site.node.vgpuctl("doctor", "--hook", str(site.node.hook), "--output", "json", check=False)
    (found,) = [item for item in json.loads(done.stdout) if item["check"] == "cards in use"]
    return found  # type: ignore[no-any-return]


def test_our_own_processes_are_no_strangers(site: Site) -> None:
    container = site.start(site.bundle(**SMALL), "cudaprobe", "hold", "100", "/end")
    wait_for(lambda: any(card["processes"] for card in site.node.read_cards()))
    site.start_daemon()
    wait_for((site.node.run_dir / "foreign.json").exists)
    assert site.daemon.health()["foreign"] == {}
    found = cards_in_use(site)
    assert found["status"] == "ok", found
    assert container not in str(found)


def test_the_drivers_memory_for_a_container_is_written_to_its_limits(site: Site) -> None:
    """This driver reports the host's pids in containers, so only the host can find out how much a context takes."""
    share = site.bundle(cores="20", memory="2Gi")
    share.config["process"]["env"].append("VGPU_SIM_PIDS=host")
    container = site.start(share, "cudaprobe", "hold", "100", "/end")
    wait_for(lambda: any(card["processes"] for card in site.node.read_cards()))
    card = next(card for card in site.node.read_cards() if card["processes"])
    path = site.node.containers / container / "limits"
    site.daemon.start()
    wait_for(lambda: limits.overheads(path.read_bytes())[card["uuid"]][0], what=site.daemon.text())
    context = card["processes"][0]["context"]
    assert context > 0
    assert limits.overheads(path.read_bytes())[card["uuid"]][0] == context
    info = site.runtime.call("exec", "--env", "VGPU_SIM_PIDS=host", container, *INFO, check=True).stdout
    assert int(pairs(info)["card0.info_free"]) == 2 * GIB - 100 * MIB - context
    site.node.vgpuctl("set", container, "--memory", "1Gi")
    assert limits.overheads(path.read_bytes())[card["uuid"]][0] == context, "other changes leave it alone"
    site.delete(container)
