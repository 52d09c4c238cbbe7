"""`make simulated-node`: every command that it prints, typed in its order, and the removal, which leaves nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import cgroup_trees
import podman_bed
import pytest
from checkout import CHECKOUT
from daemons import wait_for
from kubelet_devices import DeviceManager

pytestmark = pytest.mark.root

PROGRAM = CHECKOUT / "tests/demo/simulated_node.py"
STORAGE = '[storage]\ndriver = "vfs"\nrunroot = "{0}/run"\ngraphroot = "{0}/storage"\n'
#: vgpud and the device plugin go on until somebody ends them.
STAYING = ("/vgpud", "/vgpu-device-plugin")


class Place(NamedTuple):
    """A directory for the node and podman's storage, and the beginning of a command that runs in the test's cgroups."""

    path: Path
    enter: list[str]

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def run(self, *command: object, **options: Any) -> subprocess.CompletedProcess[str]:
        given = [*self.enter, "env", "-C", self.path, *command]
        return subprocess.run(given, env=environment(self.path), text=True, check=False, **options)


@pytest.fixture
def place() -> Iterator[Place]:
    """podman accepts no runroot of more than 50 characters."""
    with tempfile.TemporaryDirectory(prefix="vgpu-test-") as directory, cgroup_trees.own() as enter:
        yield Place(Path(directory), enter)


def environment(place: Path) -> dict[str, str]:
    """podman with limits that this machine's kernel accepts, and a kubelet's directory."""
    (place / "containers.conf").write_text(podman_bed.CONFIG.format(runtime="runc", hooks="/nonexistent"))
    (place / "storage.conf").write_text(STORAGE.format(place))
    files = {"CONTAINERS_CONF": "containers.conf", "CONTAINERS_STORAGE_CONF": "storage.conf"}
    found = {name: str(place / file) for name, file in files.items()}
    return {**os.environ, **found, "KUBELET": str(place / "kubelet")}


def simulated_node(verb: str, place: Place) -> subprocess.CompletedProcess[str]:
    return place.run(sys.executable, PROGRAM, verb, place / "node", capture_output=True)


def typed(command: str, place: Place) -> str:
    """Type one command. Its output goes to a file, which what it leaves behind may keep open."""
    with (place / "output").open("w+") as output:
        done = place.run("sh", "-c", command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=300)
        output.seek(0)
        text = output.read()
    assert done.returncode == 0, f"{command}: {text}"
    return text


def cores(kubelet: DeviceManager) -> int:
    return kubelet.allocatable().get("tencent.com/vcuda-core", 0)


def test_every_command_that_it_prints(place: Place) -> None:
    kubelet = DeviceManager(place / "kubelet/device-plugins", set).start()
    made = simulated_node("make", place)
    assert made.returncode == 0, made.stderr
    commands = re.findall(r"^ {4}(.*)", made.stdout, re.MULTILINE)
    daemon = place / "node/run/vgpud.sock"
    outputs = []
    try:
        for command in commands:
            if command.endswith(STAYING):
                typed(f"{command} 2>{place.path}/{command.rpartition('/')[2]} &", place)
                wait_for((lambda: cores(kubelet) == 200) if "plugin" in command else daemon.exists)
            elif "simulated-node-remove" not in command:
                outputs.append(typed(command, place))
            if command.endswith("&"):
                wait_for((place / "node/containerd/containerd.sock").exists)
        # What happens before the plugin watches is lost, as on a card: the Xid is typed again until it is seen.
        (xid,) = (command for command in commands if "--kind xid" in command)
        log = place / "vgpu-device-plugin"
        wait_for(
            lambda: cores(kubelet) == 100 or (typed(xid, place) and False),
            what=lambda: f"the Xid makes no card unhealthy: {log.read_text()}",
            pause=1,
        )
    finally:
        kubelet.stop()
        gone = simulated_node("remove", place)
    assert gone.returncode == 0, gone.stderr
    host, inventory, seen, limit, _, status, _, _, containerd, _ = outputs
    assert host.count("0MiB /  40960MiB") == 2
    assert inventory.count("NVIDIA A100-PCIE-40GB") == 2
    assert "0MiB /   2048MiB" in seen
    assert "refused 2" in limit
    assert re.search(r"30 +2 GiB +39.4 GiB", status)
    assert "0MiB /   2048MiB" in containerd
    assert commands[-1] == f"make -C {CHECKOUT} simulated-node-remove NODE={place.path}/node"
    assert not (place / "node").exists()
    assert f"{place.path}/node" not in place.run("cat", "/proc/self/mountinfo", capture_output=True).stdout


@pytest.mark.parametrize(("name", "arguments"), [("simulated-node", " /somewhere"), ("simulated-cards", "")])
def test_the_make_targets_run_it(name: str, arguments: str) -> None:
    """Tests run the programs, because make would install packages."""
    for verb in ("make", "remove"):
        target = name + ("-remove" if verb == "remove" else "")
        command = ["make", "-n", "--no-print-directory", "-C", CHECKOUT, target, "NODE=/somewhere"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.endswith(f"tests/demo/{name.replace('-', '_')}.py {verb}{arguments}\n")


def test_a_node_whose_cards_are_in_use_stays(place: Place) -> None:
    assert simulated_node("make", place).returncode == 0
    claim = place / "node/run/containers/red/claim.json"
    claim.parent.mkdir(parents=True)
    claim.write_text("{}")
    refused = simulated_node("remove", place)
    assert refused.returncode == 1
    assert refused.stderr == (
        "simulated-node: containers still have a share: red. Remove them first (podman rm, ctr)\n"
    )
    claim.unlink()
    again = simulated_node("make", place)  # as after a reboot
    assert again.returncode == 0, again.stderr
    assert simulated_node("remove", place).stdout == f"{place.path}/node: removed\n"


def test_a_directory_that_is_no_node_stays(place: Place) -> None:
    (place / "node").mkdir()
    for verb in ("make", "remove"):
        refused = simulated_node(verb, place)
        assert refused.returncode == 1
        assert "no simulated node" in refused.stderr
    assert (place / "node").is_dir()
