"""The packaged vgpud.service under a real systemd: it works despite its hardening."""

from __future__ import annotations

import json
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import nodes
import pytest
import systemd_bed
from systemd_bed import Bed

pytestmark = pytest.mark.root

WITHOUT_NETWORK_NAMESPACE = ("-m", "-p", "-i", "-u", "-C")  # the bed has no network, apt needs this machine's

SETTINGS = """
driver:
  root: {driver}
  dev_root: {driver}/dev
  proc_root: {driver}/proc
"""

DROP_IN = """
[Service]
# The simulated driver lies below /tmp here; everything else of the unit is as it ships.
PrivateTmp=no
Environment=VGPU_SIM_DIR={sim} VGPU_SIM_DEVICE_NODES=0
ReadWritePaths={driver}/dev {sim}
"""


@pytest.fixture
def bed(node: nodes.SimulatedNode, deb: Path) -> Iterator[Bed]:
    scratch = Path(f"/tmp/vgpu-bed-{uuid.uuid4().hex[:8]}")
    with systemd_bed.booted(2, "", scratch, [node.directory, deb.parent]) as booted:
        yield booted


def install(bed: Bed, deb: Path) -> None:
    prefix = ["nsenter", *WITHOUT_NETWORK_NAMESPACE, "-t", str(bed.leader), "env", "DEBIAN_FRONTEND=noninteractive"]
    command = [*prefix, "apt-get", "install", "-qq", "-y", "--no-install-recommends", str(deb)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr


def write(bed: Bed, path: str, content: str) -> None:
    bed.call("sh", "-c", f"mkdir -p $(dirname {path}) && cat > {path} <<'END'\n{content}\nEND")


def test_the_unit_runs_hardened_and_takes_the_inventory(bed: Bed, deb: Path, node: nodes.SimulatedNode) -> None:
    install(bed, deb)
    write(bed, "/etc/vgpu/config.yaml", SETTINGS.format(driver=node.driver))
    write(bed, "/etc/systemd/system/vgpud.service.d/sim.conf", DROP_IN.format(sim=node.sim, driver=node.driver))
    bed.call("vgpuctl", "config", "apply")
    bed.call("systemctl", "daemon-reload")
    bed.call("systemctl", "restart", "vgpud.service", check=False, timeout=120)
    state = bed.call("systemctl", "is-active", "vgpud.service", check=False).strip()
    assert state == "active", bed.call("systemctl", "status", "-l", "--no-pager", "vgpud.service", check=False)
    health = json.loads(bed.call("vgpuctl", "health", "--output", "json"))
    inventory = bed.call("vgpuctl", "inventory", "show", check=False)
    assert "A100" in inventory, bed.call("journalctl", "--no-pager", "-u", "vgpud", check=False)
    assert health["version"]
    pid = bed.call("systemctl", "show", "-P", "MainPID", "vgpud.service").strip()
    bed.call("kill", "-9", pid)
    end = time.monotonic() + 60
    while bed.call("systemctl", "show", "-P", "MainPID", "vgpud.service").strip() in ("0", pid):
        assert time.monotonic() < end, bed.call("journalctl", "-u", "vgpud", check=False)
        time.sleep(0.2)
    bed.call("systemctl", "stop", "vgpud.service")
