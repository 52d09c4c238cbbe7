"""The pod of packaging/kubernetes/unit under a real systemd: it enables the shipped unit and gives it an account.

The unit runs a program that only sleeps. The test looks at what a plugin in its place would find. kubectl 1.32 and 1.36
build the manifests' folders.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import cluster_site
import pytest
import systemd_bed
import yaml
from checkout import CHECKOUT
from systemd_bed import Bed

pytestmark = pytest.mark.root

MANIFESTS = CHECKOUT / "packaging/kubernetes"
ROLES = {"ServiceAccount": 1, "ClusterRole": 3, "ClusterRoleBinding": 3}
EXTENDER = {
    "ServiceAccount": 1, "ClusterRole": 1, "ClusterRoleBinding": 1, "Role": 1, "RoleBinding": 1, "Deployment": 1,
    "Service": 1,
}  # fmt: skip
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


def run_pod(bed: Bed) -> str:
    pod = yaml.safe_load((MANIFESTS / "unit/daemonset.yaml").read_text())
    (container,) = pod["spec"]["template"]["spec"]["containers"]
    script = POD.format(account=ACCOUNT) + container["args"][0]
    return bed.call("env", *ENVIRONMENT, "unshare", "-m", *container["command"], script, check=False)


def test_the_pod_enables_the_unit_and_gives_it_an_account(bed: Bed) -> None:
    assert "install the package" in run_pod(bed)
    bed.write(f"/usr/lib/systemd/system/{UNIT}", (CHECKOUT / f"packaging/systemd/{UNIT}").read_text())
    bed.write(f"/etc/systemd/system/{UNIT}.d/10-test.conf", SLEEPS)
    bed.call("systemctl", "daemon-reload")
    assert f"{UNIT} is enabled" in run_pod(bed)
    assert bed.call("systemctl", "is-enabled", UNIT).strip() == "enabled"
    pid = bed.call("systemctl", "show", "-P", "MainPID", UNIT).strip()
    assert pid != "0"
    found = bed.call("nsenter", "-t", pid, "-m", "cat", *(f"{ACCOUNT}/{name}" for name in ("ca.crt", "token")))
    assert found.splitlines() == ["the ca.crt", "the token"]
    assert set(ENVIRONMENT) <= set(bed.call("cat", f"/proc/{pid}/environ").split("\0"))
    assert f"{UNIT} is enabled" in run_pod(bed)
    assert bed.call("systemctl", "show", "-P", "MainPID", UNIT).strip() == pid, "nothing has changed"


#: folder -> the kinds of its objects, and the image of its pods
FOLDERS: dict[str, tuple[dict[str, int], str]] = {
    ".": ({**ROLES, "ConfigMap": 1, "DaemonSet": 1}, "vgpu-device-plugin"),
    "daemonset": ({**ROLES, "ConfigMap": 1, "DaemonSet": 1}, "vgpu-device-plugin"),
    "unprivileged": ({**ROLES, "ConfigMap": 1, "DaemonSet": 1}, "vgpu-device-plugin"),
    "unit": ({**ROLES, "DaemonSet": 1}, "busybox"),
    "exporter": ({"DaemonSet": 1}, "vgpu-exporter"),
    "scheduler": (EXTENDER, "vgpu-scheduler-extender"),
}


@pytest.mark.parametrize("suite", ["trixie", pytest.param("sid", marks=pytest.mark.long)])
def test_kubectl_builds_every_folder(suite: str) -> None:
    (component,) = yaml.safe_load_all((MANIFESTS / "images/kustomization.yaml").read_text())
    tags = {image["name"]: f"{image['newName']}:{image['newTag']}" for image in component["images"]}
    assert {path.parent.name for path in MANIFESTS.glob("*/kustomization.yaml")} == {*FOLDERS} - {"."} | {"images"}
    for folder, (kinds, image) in FOLDERS.items():
        documents = list(yaml.safe_load_all(cluster_site.built(MANIFESTS / folder, suite)))
        assert Counter(document["kind"] for document in documents) == kinds
        (pods,) = [document for document in documents if document["kind"] in ("DaemonSet", "Deployment")]
        spec = pods["spec"]["template"]["spec"]
        used = {one["image"] for one in (*spec.get("initContainers", ()), *spec["containers"])}
        assert used == {tags[image]}
        (container,) = spec["containers"]
        privileged = container["securityContext"].get("privileged", False)
        assert privileged is (folder in (".", "daemonset", "unit"))
