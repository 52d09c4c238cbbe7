"""The packaged vgpu-device-plugin.service under a real systemd, hardened as it ships, with the distribution's grpc."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import docs_commands
import file_modes
import last_version
import pytest
import systemd_bed
from checkout import BUILD, CHECKOUT
from daemons import wait_for
from systemd_bed import Bed

pytestmark = pytest.mark.root

CORES, MEMORY = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"

# kubelet's side with the package's own protocol: it accepts registrations, lists, and allocates once.
KUBELET = """
import os, sys, threading
from concurrent import futures
sys.path.insert(0, "/usr/lib/vgpu/python")
import grpc
from vgpu.plugin.kubelet.proto import deviceplugin_pb2 as protocol, services

DIRECTORY = "/var/lib/kubelet/device-plugins"

class Kubelet:
    def Register(self, request, context):
        threading.Thread(target=self.serve, args=(request,)).start()
        return protocol.Empty()

    def serve(self, request):
        channel = grpc.insecure_channel(f"unix:{DIRECTORY}/{request.endpoint}")
        client = services.Client(channel, protocol, "DevicePlugin")
        for response in client.ListAndWatch(protocol.Empty()):
            one = protocol.ContainerAllocateRequest(devicesIDs=[response.devices[0].ID])
            answer = client.Allocate(protocol.AllocateRequest(container_requests=[one]))
            [grant] = answer.container_responses[0].annotations.values()
            print("listed", request.resource_name, len(response.devices), grant, flush=True)

os.makedirs(DIRECTORY, mode=0o750, exist_ok=True)
for name in os.listdir(DIRECTORY):
    os.unlink(f"{DIRECTORY}/{name}")
server = grpc.server(futures.ThreadPoolExecutor(4))
server.add_generic_rpc_handlers((services.handler(protocol, "Registration", Kubelet()),))
server.add_insecure_port(f"unix:{DIRECTORY}/kubelet.sock")
server.start()
server.wait_for_termination()
"""


@pytest.fixture
def bed(tmp_path: Path, debs: list[Path]) -> Iterator[Bed]:
    scratch = Path(f"/tmp/vgpu-bed-{uuid.uuid4().hex[:8]}")
    with systemd_bed.booted(2, "", scratch, [tmp_path, CHECKOUT, BUILD, debs[0].parent]) as booted:
        yield booted


def simulated_cards(bed: Bed, verb: str) -> str:
    """What `make simulated-cards` or its removal runs, by the package's Python."""
    environment = [f"VGPU_BUILD={BUILD}", "PYTHONPATH=/usr/lib/vgpu/python", "PYTHONDONTWRITEBYTECODE=1"]
    program = CHECKOUT / "tests/demo/simulated_cards.py"
    return bed.call("env", *environment, "/usr/lib/vgpu/python3", str(program), verb)


def journal(bed: Bed, unit: str) -> str:
    return bed.call("journalctl", "--no-pager", "-o", "cat", "-u", unit, check=False)


def listed(bed: Bed, count: int) -> list[str]:
    """The lines that kubelet's stand-in has written, as soon as there are `count`."""

    def lines() -> list[str]:
        found = [line for line in journal(bed, "kubelet").splitlines() if line.startswith("listed ")]
        return found if len(found) >= count else []

    return wait_for(lines, 300, lambda: journal(bed, "kubelet") + journal(bed, "vgpu-device-plugin"))  # type: ignore[no-any-return]


def upgrade(bed: Bed, debs: list[Path]) -> None:
    """Upgrade the packages. Their scripts restart vgpud and the plugin, which both run."""
    units = ("vgpud.service", "vgpu-device-plugin.service")
    before = [bed.call("systemctl", "show", "-P", "MainPID", unit) for unit in units]
    bed.call("sh", "-c", f"dpkg -i {' '.join(map(str, debs))} 2>&1")
    assert [bed.call("systemctl", "is-active", unit) for unit in units] == ["active\n"] * 2
    assert not {"0\n", *before} & {bed.call("systemctl", "show", "-P", "MainPID", unit) for unit in units}
    assert bed.call("dpkg-query", "-W", "-f", "${Version} ", "vgpu", "vgpu-device-plugin").count("later") == 2


def typed(bed: Bed, begin: str) -> str:
    """What the block of docs/kubernetes.md that begins so prints, typed where systemd runs."""
    (block,) = [one for one in docs_commands.blocks("docs/kubernetes.md") if one.text.startswith(begin)]
    return bed.call("sh", "-ec", block.text)


def started(bed: Bed) -> str:
    return bed.call("systemctl", "show", "-P", "MainPID", "containerd.service").strip()


def check_that_a_real_systemctl_restarts(bed: Bed) -> None:
    """`vgpuctl runtime configure --restart`: the daemon is another process, and its file is as before at the end."""
    path = "/etc/containerd/config.toml"
    bed.write(path, "# mine\nversion = 2\n")
    before = bed.call("cat", path)
    bed.call("systemctl", "start", "containerd.service")
    pids = [started(bed)]
    for verb in ("configure", "unconfigure"):
        text = bed.call("vgpuctl", "runtime", verb, "--runtime", "containerd", "--restart")
        assert text.endswith("done: systemctl restart containerd\n")
        pids.append(started(bed))
    assert len(set(pids)) == 3, pids
    assert "0" not in pids
    assert bed.call("cat", path) == before
    bed.write("/etc/systemd/system/containerd.service.d/broken.conf", "[Service]\nExecStart=\nExecStart=/bin/false")
    bed.call("systemctl", "daemon-reload")
    text = bed.call("sh", "-c", "vgpuctl runtime configure --runtime containerd --restart 2>&1; echo $?")
    assert "vgpuctl: systemctl restart containerd: expected exit status 0, found Job for containerd.service" in text
    assert "the files are written; repair containerd and run it again" in text
    assert text.endswith("\n1\n")


def test_the_unit_runs_hardened_before_kubelet_and_grants(bed: Bed, debs: list[Path], tmp_path: Path) -> None:
    bed.call("dpkg", "-i", *map(str, debs), timeout=600)
    settings = bed.call("cat", "/etc/vgpu/config.yaml")
    assert simulated_cards(bed, "make").startswith("2 simulated cards are in /run/vgpu-sim. ")
    check_that_a_real_systemctl_restarts(bed)
    typed(bed, "systemctl enable --now vgpu-device-plugin.service\n")
    state = bed.call("systemctl", "is-active", "vgpu-device-plugin.service", check=False).strip()
    assert state == "active", journal(bed, "vgpu-device-plugin")  # ready without kubelet, as kubelet may wait for it
    bed.write("/run/kubelet.py", KUBELET)
    bed.call("systemd-run", "--unit=kubelet", "/usr/bin/python3", "/run/kubelet.py")
    lines = listed(bed, 2)
    names = {line.split()[1] for line in lines}
    assert names == {CORES, MEMORY}
    grants = bed.call("ls", "/var/lib/vgpu/grants").split()
    assert sorted(line.split()[3] + ".json" for line in lines) == sorted(grants)
    upgrade(bed, last_version.later(debs, tmp_path / "later"))
    assert {line.split()[1] for line in listed(bed, 4)[2:]} == names
    bed.call("systemctl", "restart", "kubelet.service")
    assert {line.split()[1] for line in listed(bed, 6)[4:]} == names
    listing = bed.call("sh", "-c", file_modes.LISTING)
    assert "/var/lib/vgpu/grants/" in listing
    assert re.search(r"/var/lib/vgpu/vcuda/550\.54\.15-[0-9a-f]{40}/libnvidia-ml\.so\.1$", listing, re.MULTILINE)
    assert file_modes.wrong(listing) == []
    output = typed(bed, "curl ")
    assert output.startswith("ok\n"), output
    assert "Active: active (running)" in output
    exporter = journal(bed, "vgpu-exporter")  # the plugin's unit starts it; this distribution may lack its libraries
    assert "listens address=127.0.0.1:5678" in exporter or exporter.count("python3-prometheus-client") >= 1, exporter
    log = journal(bed, "vgpu-device-plugin")
    assert "Traceback" not in log, log
    assert "health is not known" not in log, log
    bed.call("systemctl", "stop", "vgpu-device-plugin.service", "kubelet.service")
    assert bed.call("systemctl", "show", "-P", "Result", "vgpu-device-plugin.service").strip() == "success"
    simulated_cards(bed, "remove")
    assert bed.call("cat", "/etc/vgpu/config.yaml") == settings
    assert bed.call("find", "/run/vgpu-sim", "/var/lib/vgpu-simulated-driver", check=False) == ""
    assert "simulated" not in bed.call("systemctl", "cat", "vgpud.service", "vgpu-device-plugin.service")
