"""The pod of packaging/kubernetes/unit under a real systemd: it enables the shipped unit and gives it an account.

The unit runs a program that only sleeps. The test looks at what a plugin in its place would find.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import systemd_bed
import yaml
from checkout import CHECKOUT
from systemd_bed import Bed

pytestmark = pytest.mark.root

OBJECTS = CHECKOUT / "packaging/kubernetes/unit/objects.yaml"
UNIT = "vgpu-device-plugin.service"
ACCOUNT = "/run/secrets/kubernetes.io/serviceaccount"
SLEEPS = "[Service]\nType=exec\nWatchdogSec=0\nExecStart=\nExecStart=/bin/sleep infinity\n"
#: The pod has a mount namespace of its own, with its account in it.
POD = """
mkdir -p {account}; mount -t tmpfs tmpfs {account}
for name in ca.crt namespace token; do echo "the $name" > {account}/$name; done
sleep() {{ exit 0; }}
"""
ENVIRONMENT = ("NODE_NAME=n1", "KUBERNETES_SERVICE_HOST=10.0.0.1", "KUBERNETES_SERVICE_PORT=443")


@pytest.fixture
def bed() -> Iterator[Bed]:
    with systemd_bed.booted(2, "", Path(f"/tmp/vgpu-bed-{uuid.uuid4().hex[:8]}"), []) as booted:
        yield booted


def run_pod(bed: Bed, *environment: str) -> str:
    (pod,) = (one for one in yaml.safe_load_all(OBJECTS.read_text()) if one["kind"] == "DaemonSet")
    (container,) = pod["spec"]["template"]["spec"]["containers"]
    script = POD.format(account=ACCOUNT) + container["args"][0]
    return bed.call("env", *ENVIRONMENT, *environment, "unshare", "-m", *container["command"], script, check=False)


def main_pid(bed: Bed) -> str:
    return bed.call("systemctl", "show", "-P", "MainPID", UNIT).strip()


def test_the_pod_enables_the_unit_and_gives_it_an_account(bed: Bed) -> None:
    assert f"n1 has no {UNIT}: install the package" in run_pod(bed)
    assert bed.call("ls", "/var/lib/vgpu/serviceaccount", check=False) == ""
    bed.write(f"/usr/lib/systemd/system/{UNIT}", (CHECKOUT / f"packaging/systemd/{UNIT}").read_text())
    bed.write(f"/etc/systemd/system/{UNIT}.d/10-test.conf", SLEEPS)
    bed.call("systemctl", "daemon-reload")
    assert f"{UNIT} is enabled" in run_pod(bed)
    assert bed.call("systemctl", "is-enabled", UNIT).strip() == "enabled"
    pid = main_pid(bed)
    assert pid != "0"
    found = bed.call("nsenter", "-t", pid, "-m", "cat", *(f"{ACCOUNT}/{name}" for name in ("ca.crt", "token")))
    assert found.splitlines() == ["the ca.crt", "the token"]
    modes = bed.call("sh", "-c", "stat -c '%a %n' /var/lib/vgpu/serviceaccount/*").split()
    assert (modes[::2], len(modes)) == (["600"] * 3, 6)
    assert set(ENVIRONMENT) <= set(bed.call("cat", f"/proc/{pid}/environ").split("\0"))
    assert f"{UNIT} is enabled" in run_pod(bed)
    assert main_pid(bed) == pid, "nothing has changed"
    run_pod(bed, "KUBERNETES_SERVICE_PORT=6443")
    pid = main_pid(bed)
    assert "KUBERNETES_SERVICE_PORT=6443" in bed.call("cat", f"/proc/{pid}/environ").split("\0"), "restarted"
