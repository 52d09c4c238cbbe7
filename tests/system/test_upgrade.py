"""An upgrade of the package on a running node: containers that start meanwhile, and the units afterwards."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import bundles
import installed_node
import last_version
import nodes
import pytest
import roots
import systemd_bed
from checkout import CHECKOUT
from daemons import wait_for
from systemd_bed import Bed

pytestmark = pytest.mark.root

SCRIPT = CHECKOUT / "tests/beds/upgraded_node.sh"
SHARE = {"vgpu.io/cores": "30", "vgpu.io/memory": "2Gi"}
#: Which package replaces the other. A sample, and the full rounds with --long.
ROUNDS = ("this",)
MANY_ROUNDS = (*ROUNDS, *("last", "this") * 4)


@pytest.fixture(scope="module")
def last(debs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The packages of a version before this one."""
    return last_version.make(debs, tmp_path_factory.mktemp("last"))


def test_containers_start_and_stop_while_the_package_is_replaced(
    deb: Path, last: list[Path], tmp_path: Path, rootfs: Callable[..., Path], node: nodes.SimulatedNode,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    rounds = MANY_ROUNDS if request.config.getoption("--long") else ROUNDS
    made = tmp_path / "bundles"
    for name, keys, program in (
        ("plain", {}, ("true",)),
        ("share", SHARE, ("cudaprobe", "info")),
        ("held", SHARE, ("sleep", "600")),
    ):
        bundle = bundles.Bundle(made / name, rootfs(), keys).simulated(node).command(*program)
        for stage in ("prestart", "poststop"):
            hook = {"path": "/usr/bin/vgpu-hook", "args": ["vgpu-hook", stage], "env": ["PATH=/usr/bin"]}
            bundle.config.setdefault("hooks", {})[stage] = [hook]
        bundle.write()
    upper = tmp_path / "overlay"
    upper.mkdir()
    command = ["unshare", "-m", "sh", SCRIPT, last[0], deb, upper, node.driver, node.sim, made, " ".join(rounds)]
    command += [roots.node()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    parts = dict(part.split("\n", 1) for part in done.stdout.split("## ")[1:])
    assert parts["half"] == "ok\nfailed without the byte code\n"
    for name in ("plain", "share"):
        starts = parts[name].splitlines()
        print(f"{name}: {len(starts)} starts")
        assert len(starts) >= 3 + 6 * len(rounds)  # upgraded_node.sh waits for three starts at a time
        assert [line for line in starts if line != "ok"] == []
    assert parts["requests"] == "  requests: annotations\nwarning\nkey\n"
    held = {item["container"] for item in json.loads(parts["held"])["containers"]}
    assert held == {"upgrade-vgpu-test-held"}
    assert {item["container"] for item in json.loads(parts["status"])["containers"]} == held
    assert json.loads(parts["released"])["containers"] == []
    assert parts["left"] == ""
    assert parts["trigger"] == "compiled\n"
    started, python, other, version = parts["exchanged"].splitlines()
    assert (started, other) == ("started", "started")
    assert python.startswith("/usr/bin/python3.")
    assert version.startswith("vgpuctl ")
    assert "gone" in parts, parts["purge"]


EDITS = "# Mine.\nplacement: {policy: spread} # why\n"
KEPT = "# Kept by an upgrade: plain annotations ask for cards, those of an image, too. See requests.md.\n"
KEPT += "standalone:\n  requests: annotations\n"


@pytest.mark.parametrize("edits", [EDITS, pytest.param("", marks=pytest.mark.long)], ids=["edits", "no edits"])
def test_unattended_upgrades_ask_nothing_and_keep_settings_and_key(
    deb: Path, last: list[Path], edits: str, tmp_path: Path, rootfs: Callable[..., Path], node: nodes.SimulatedNode
) -> None:
    """Three in a row, or five, each with other settings of its own; the version before had them as a conffile."""
    count = 2 if edits else 4
    later = [last_version.later([deb], tmp_path / f"later-{number}", str(number))[0] for number in range(count)]
    made = installed_node.make_bundles(tmp_path / "bundles", rootfs, node)
    upper, file = tmp_path / "overlay", tmp_path / "edits"
    upper.mkdir()
    file.write_text(edits)
    words = [upper, node.driver, node.sim, made, roots.node(), file if edits else "", last[0], deb, *later]
    command = ["unshare", "-m", "sh", CHECKOUT / "tests/beds/unattended_upgrades.sh", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    before, *after, left = (part.split("\n", 1)[1] for part in done.stdout.split("## ")[1:])
    assert before.endswith(f"# A comment of the version before.\n{edits}")
    assert after == [before + KEPT] * (1 + count)
    assert left.split() == ["config.yaml", "standalone.key"]


#: The device plugin needs grpc, which the maintainer scripts do not, so another program replaces it.
PLUGIN_DROP_IN = """
[Service]
Type=exec
ExecStart=
ExecStart=/usr/bin/sleep infinity
WatchdogSec=0
"""

DAEMON, PLUGIN, WATCHER = "vgpud.service", "vgpu-device-plugin.service", "vgpu-config.path"


class Node:
    """A booted systemd whose packages are installed with dpkg."""

    def __init__(self, bed: Bed, node: nodes.SimulatedNode) -> None:
        self.bed = bed
        self.node = node
        bed.call("mv", "/usr/lib/python3/dist-packages/grpc", "/root")  # only the plugin's process needs it

    def write(self, path: str, content: str, mode: str = "644") -> None:
        command = f"mkdir -p $(dirname {path}) && cat > {path} <<'END' && chmod {mode} {path}\n{content}\nEND"
        self.bed.call("sh", "-c", command)

    def configure(self) -> None:
        self.bed.simulate_driver(self.node.driver, self.node.sim, "vgpud")
        self.write(f"/etc/systemd/system/{PLUGIN}.d/sim.conf", PLUGIN_DROP_IN)
        self.bed.call("vgpuctl", "config", "apply")
        self.bed.call("systemctl", "daemon-reload")
        self.bed.call("systemctl", "restart", DAEMON)

    def install(self, debs: list[Path]) -> str:
        """Unpack and configure with dpkg. Returns its output."""
        return self.bed.call("sh", "-c", f"dpkg -i {' '.join(map(str, debs))} 2>&1")

    def state(self, unit: str) -> str:
        return self.bed.call("systemctl", "is-active", unit, check=False).strip()

    def enabled(self, unit: str) -> str:
        return self.bed.call("systemctl", "is-enabled", unit, check=False).strip()

    def pid(self, unit: str) -> str:
        return self.bed.call("systemctl", "show", "-P", "MainPID", unit).strip()

    def pids(self) -> list[str]:
        return [self.pid(DAEMON), self.pid(PLUGIN)]

    def states(self) -> list[str]:
        return [self.state(unit) for unit in (DAEMON, PLUGIN, WATCHER)]

    def await_state(self, unit: str, state: str) -> None:
        wait_for(lambda: self.state(unit) == state, 300, lambda: self.bed.journal()[-3000:])


@pytest.fixture
def installed(node: nodes.SimulatedNode, debs: list[Path], last: list[Path]) -> Iterator[Node]:
    """The last version, running: vgpud, the watcher of the settings, and the device plugin, which is not enabled."""
    scratch = Path(f"/tmp/vgpu-bed-{uuid.uuid4().hex[:8]}")
    with systemd_bed.booted(2, "", scratch, [node.directory, debs[0].parent, last[0].parent]) as bed:
        made = Node(bed, node)
        made.install(last)
        made.await_state(DAEMON, "active")
        assert [made.enabled(unit) for unit in (DAEMON, PLUGIN, WATCHER)] == ["enabled", "disabled", "enabled"]
        made.configure()
        bed.call("systemctl", "start", PLUGIN)
        yield made


def test_an_upgrade_restarts_what_runs_and_a_removal_stops_it(installed: Node, debs: list[Path]) -> None:
    installed.bed.call("systemctl", "enable", PLUGIN)
    before = installed.pids()
    output = installed.install(debs)
    assert "vgpuctl doctor" not in output  # the next step is for a first installation
    assert installed.states() == ["active"] * 3
    assert not {*before, "0"} & {*installed.pids()}
    assert [installed.enabled(unit) for unit in (DAEMON, PLUGIN, WATCHER)] == ["enabled"] * 3
    missing = installed.bed.call("sh", "-c", "vgpu-device-plugin 2>&1; true")
    assert "apt-get install python3-grpcio python3-protobuf" in missing

    installed.write("/usr/sbin/policy-rc.d", "#!/bin/sh\nexit 101", "755")
    before = installed.pids()
    assert "policy-rc.d returned 101" in installed.install(debs)
    assert installed.pids() == before
    assert installed.states() == ["active"] * 3
    installed.bed.call("rm", "/usr/sbin/policy-rc.d")

    installed.bed.call("systemctl", "disable", DAEMON)
    installed.bed.call("systemctl", "stop", PLUGIN, WATCHER)
    installed.bed.call("systemctl", "mask", PLUGIN)
    installed.install(debs)
    assert installed.states() == ["active", "inactive", "inactive"]
    assert [installed.enabled(unit) for unit in (DAEMON, PLUGIN, WATCHER)] == ["disabled", "masked", "enabled"]
    assert installed.pid(DAEMON) not in (before[0], "0")

    # a removal stops and disables
    installed.bed.call("systemctl", "unmask", PLUGIN)
    installed.bed.call("systemctl", "enable", "--now", DAEMON, PLUGIN, WATCHER)
    pids = installed.pids()
    installed.bed.call("dpkg", "--remove", "vgpu-device-plugin", "vgpu")
    assert installed.states() == ["inactive"] * 3
    gone = installed.bed.call("sh", "-c", f"ls -d /proc/{pids[0]} /proc/{pids[1]} /usr/lib/vgpu 2>&1; true")
    assert gone.count("No such file") == 3
    assert installed.bed.call("find", "/etc/systemd/system", "-name", "vgpu*", "-type", "l") == ""
    installed.install(debs)
    assert installed.states() == ["active", "inactive", "active"]
    assert [installed.enabled(unit) for unit in (DAEMON, PLUGIN, WATCHER)] == ["enabled", "disabled", "enabled"]


@pytest.mark.long
def test_the_watcher_waits_for_the_hook_of_the_same_version(installed: Node, debs: list[Path]) -> None:
    """Between dpkg's unpacking and the postinst, settings that only the new hook knows must not come into force."""
    installed.install(debs)
    before = installed.bed.call("cat", "/var/lib/vgpu/config.json")
    installed.bed.call("sh", "-c", "echo 'later = 1' >>/usr/lib/vgpu/python/vgpu/hook/hooklog.py")
    installed.bed.call("sh", "-c", "printf 'placement: {policy: spread}\n' >>/etc/vgpu/config.yaml")
    wait_for(lambda: "compile it again" in installed.bed.journal(), 300, lambda: installed.bed.journal()[-3000:])
    assert installed.bed.call("cat", "/var/lib/vgpu/config.json") == before
    installed.install(debs)
    assert '"spread"' in installed.bed.call("cat", "/var/lib/vgpu/config.json")


@pytest.mark.long
def test_a_masked_unit_stays_masked(installed: Node, debs: list[Path]) -> None:
    installed.bed.call("dpkg", "--purge", "vgpu-device-plugin", "vgpu")
    installed.bed.call("systemctl", "mask", DAEMON)
    installed.install(debs)
    assert installed.states() == ["inactive", "inactive", "active"]
    assert installed.enabled(DAEMON) == "masked"
