"""The Kubernetes page from its first command to its last: Helm, the DaemonSet's controller, kubelet and containerd 1.7.

The image vgpu-node is made of this machine's files. The node has nothing of vgpu, its containerd has CDI on, and its
process and its configuration stay as they are. Kubernetes 1.20 passes the CDI device on by the annotation. Before the
page removes vgpu, the node gets the self-test's Job, another version, a pod whose cards a scheduler has chosen, and a
runtime without CDI. The cards' time is virtual, for the self-test.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import api_rights
import cluster_site
import containerd_bed
import docs_commands
import helm
import nodes
import oci_images
import pytest
import release_site
import yaml
from checkout import CHECKOUT
from daemons import wait_for
from pod_site import CORE, MEMORY
from real_kubelet import NODE

from vgpu.config.errors import VgpuError
from vgpu.node.daemon import client

pytestmark = [pytest.mark.root, pytest.mark.long]

NAMESPACE, ACCOUNT = "vgpu-system", "vgpu-node"
CHANGE = f"helm upgrade vgpu packaging/kubernetes/chart --namespace {NAMESPACE} --reset-then-reuse-values --set "
#: kubelet's lines: a plugin has gone, or has come, and when.
PLUGIN = re.compile(r"^[IEW]\d{4} (\d\d):(\d\d):([\d.]+) .*(ended unexpectedly|Got registration request)", re.MULTILINE)


@pytest.fixture(scope="module")
def site(base_trees: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[cluster_site.Site]:
    images = tmp_path_factory.mktemp("images")
    pods = oci_images.write(base_trees["debian"], images / "base.tar", containerd_bed.IMAGE, ["sleep", "86400"])
    tree = release_site.node_image(base_trees["debian"], images / "node")
    archives = []
    for version in ("0.1.0", "0.1.1"):
        release_site.numbered(images / "node-release", version)
        subprocess.run(["cp", "-a", f"{images}/node-release/usr", tree], check=True)
        archives.append(oci_images.write(tree, images / f"{version}.tar", f"vgpu-test.local/node:{version}", ["sleep"]))
    with tempfile.TemporaryDirectory(prefix="vgpu-") as name:
        made = cluster_site.Site(Path(name), pods, (), cdi=True)
        nodes.simctl().make_state(str(made.node.sim), "a100x2", clock="virtual", parties=1)
        for path in made.node.sim.iterdir():
            path.chmod(0o666)  # as /dev/nvidia* are, for the user of the self-test's pod
        without = containerd_bed.Containerd(
            Path(name) / "without", containerd_bed.programs("1.6"), made.node, patterns=(), prefix=made.place.prefix
        )
        try:
            made.start_alone()
            without.start(pods)
            for archive in archives:
                made.ctr("images", "import", str(archive))
                made.tag(f"vgpu-test.local/node:{archive.stem}", f"vgpu-node:{archive.stem}")
            made.cluster.kubectl("label", "node", NODE, "nvidia.com/gpu.present=true")
            yield made
        finally:
            without.stop()
            made.end()


def programs(site: cluster_site.Site, directory: Path) -> Path:
    """helm and kubectl, which know this node's folders and its simulated driver."""
    node, bed = site.node, site.bed
    values = {
        "node": {"directory": "/var/lib/vgpu-releases"}, "runtime": {"socket": str(bed.socket)},
        "cdi": {"directory": str(bed.directory / "cdi")}, "exporter": {"enabled": False},
        "settings": {"driver": {
            "root": str(node.driver), "dev_root": str(node.driver / "dev"), "proc_root": str(node.driver / "proc"),
        }},
    }  # fmt: skip
    (directory / "values.yaml").write_text(yaml.safe_dump(values))
    mount = {"name": "simulated", "mountPath": str(node.directory)}
    env = [{"name": "VGPU_SIM_DIR", "value": str(node.sim)}, {"name": "VGPU_SIM_DEVICE_NODES", "value": "0"}]
    containers = [{"name": "vgpud", "env": env}, {"name": "device-plugin", "env": env, "volumeMounts": [mount]}]
    volume = {"name": "simulated", "hostPath": {"path": str(node.directory)}}
    patch = json.dumps({"spec": {"template": {"spec": {"containers": containers, "volumes": [volume]}}}})
    (directory / "helm").write_text(
        f"""#!/bin/sh
set -e
case $1 in
install | upgrade) {helm.program("helm")} "$@" -f {directory}/values.yaml ;;
*) exec {helm.program("helm")} "$@" ;;
esac
case $1 in install) kubectl -n {NAMESPACE} patch daemonset vgpu-node -p '{patch}' ;; esac
"""
    )
    (directory / "helm").chmod(0o755)
    (directory / "kubectl").symlink_to(helm.program("kubectl"))
    return directory


class Page:
    """The page's commands, as typed on a machine with helm and kubectl, and what happens between them."""

    def __init__(self, site: cluster_site.Site, directory: Path) -> None:
        self.site = site
        self.environment = {
            **os.environ, "PATH": f"{programs(site, directory)}:{os.environ['PATH']}", "HOME": str(directory),
            "KUBECONFIG": str(site.cluster.kubeconfig("admin")),
        }  # fmt: skip
        self.printed = ""
        self.gaps: list[tuple[float, float]] = []
        self.events: list[Any] = []

    def type(self, text: str) -> None:
        script = f"cd {CHECKOUT}\n{text.replace('IMAGE', containerd_bed.IMAGE)}"
        command = [*self.site.place.prefix, "sh", "-euc", script]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr + told(self.site)
        self.printed += done.stdout

    def test_node(self) -> None:
        """The self-test's Job, as its page has it."""
        for block in docs_commands.blocks("docs/selftest.md"):
            if block.text.startswith("kubectl"):
                self.type(block.text.replace("NODE", NODE))

    def pod(self) -> str:
        """The uid of the DaemonSet's pod that is ready, or ""."""
        listed = self.site.cluster.kubectl("get", "pods", "-n", NAMESPACE, "-o", "json")
        ready = {"type": "Ready", "status": "True"}
        found = [
            one["metadata"]["uid"] for one in json.loads(listed)["items"]
            if any(ready.items() <= condition.items() for condition in one["status"].get("conditions", ()))
        ]  # fmt: skip
        return found[0] if found else ""

    def upgrade(self, version: str) -> tuple[float, float]:
        """Go to another version. Returns for how many seconds kubelet had no plugin, and nobody a vgpud."""
        before, lines = self.pod(), len(self.site.kubelet.text())
        with Watch(lambda: vgpud(self.site)) as watch:
            self.type(f"{CHANGE}image.tag={version}")
            wait_for(lambda: self.pod() not in ("", before), 180, lambda: told(self.site))
        found = PLUGIN.findall(self.site.kubelet.text()[lines:])
        times = {what: 3600 * int(hour) + 60 * int(minute) + float(second) for hour, minute, second, what in found}
        return times["Got registration request"] - times["ended unexpectedly"], watch.longest_gap()

    def place(self) -> None:
        """A pod whose card a scheduler has chosen, and which it wants an answer about."""
        placed = {"vgpu.io/placement": f"main={self.site.cards[0]}", "vgpu.io/placement-node": NODE}
        self.site.create("placed", {CORE: 10, MEMORY: 2}, metadata={"annotations": placed})
        annotations = self.site.cluster.annotations
        wait_for(lambda: annotations("pod", "placed").get("vgpu.io/assigned") == "true", 90, lambda: told(self.site))
        self.site.delete("placed")

    def without_cdi(self) -> list[Any]:
        """Another runtime, without CDI. Returns the events on the node; the pod has not become ready."""
        before = self.pod()
        self.type(f"{CHANGE}runtime.socket={self.site.directory}/without/containerd.sock")
        events = ("get", "events", "-n", "default", "--field-selector=involvedObject.kind=Node,reason=VgpuNotInstalled")
        listed = wait_for(
            lambda: json.loads(self.site.cluster.kubectl(*events, "-o", "json"))["items"], 180, lambda: told(self.site)
        )
        assert self.pod() in ("", before)
        return list(listed)


@pytest.fixture(scope="module")
def page(site: cluster_site.Site, tmp_path_factory: pytest.TempPathFactory) -> Page:
    """The page, typed. `printed`, `gaps` and `events` are what was seen."""
    bed = site.bed
    assert bed.process
    (bed.directory / "cdi/vgpu.json").unlink()
    before = (bed.process.pid, (bed.directory / "config.toml").read_bytes())
    made = Page(site, tmp_path_factory.mktemp("bin"))
    for block in docs_commands.blocks("docs/start-kubernetes.md"):
        if "remove=true" in block.text:
            made.test_node()
            made.gaps = [made.upgrade(version) for version in ("0.1.1", "0.1.0")]
            made.place()
            made.events = made.without_cdi()
        if block.kind == "sh":
            made.type(block.text)
    assert (bed.process.pid, (bed.directory / "config.toml").read_bytes()) == before
    return made


def test_the_page_shows_a_share_and_leaves_nothing(site: cluster_site.Site, page: Page) -> None:
    assert re.search(r"0MiB / +8192MiB", page.printed), page.printed
    assert re.search(r"\w{12} \(default/share/main\), card \d: cores 30 -> 50, core limit 30 -> 50", page.printed)
    assert list((site.bed.directory / "cdi").iterdir()) == []
    assert not (site.place.lib / "vgpu-releases").exists()
    node = site.cluster.find("node", NODE)["metadata"]
    assert not [name for kind in ("labels", "annotations") for name in node[kind] if name.startswith("vgpu.io/")]


def test_the_job_of_the_self_test_passes(page: Page) -> None:
    assert "\nvgpu self-test: pass\n" in page.printed, page.printed


def test_an_upgrade_and_the_way_back_have_an_end(page: Page) -> None:
    """The figures are in docs/kubernetes.md; no time is a verdict here."""
    print("seconds without a plugin, and without vgpud:", page.gaps)
    assert all(gap > 0 for gaps in page.gaps for gap in gaps)


def test_a_node_whose_runtime_has_no_cdi_has_an_event_that_says_so(page: Page) -> None:
    (event, *_) = page.events
    assert event["involvedObject"]["name"] == NODE
    assert "expected a runtime with CDI on, found CDI off" in event["message"]


def test_each_right_at_the_api_server_is_used_and_no_other_asked_for(site: cluster_site.Site, page: Page) -> None:
    """The API server's own log: a right that is missing is refused there, and one too many is in no entry."""
    del page
    requests = site.cluster.requests(ACCOUNT, NAMESPACE)
    rights = api_rights.granted(cluster_site.documents(cluster_site.MANIFESTS / "objects.yaml"), ACCOUNT, NAMESPACE)
    assert api_rights.refused(requests) == set()
    assert api_rights.unused(rights, requests) == set()


def vgpud(site: cluster_site.Site) -> bool:
    """Whether vgpud answers."""
    try:
        return bool(client.ask(site.node.settings.run_dir, "health", timeout=1.0))
    except VgpuError:
        return False


class Watch:
    """Asks `present` again and again, in a thread of its own, for as long as it is entered."""

    def __init__(self, present: Callable[[], bool]) -> None:
        self._present, self._over = present, threading.Event()
        self._seen: list[float] = []
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._over.wait(0.05):
            if self._present():
                self._seen.append(time.monotonic())

    def longest_gap(self) -> float:
        return max(later - earlier for earlier, later in zip(self._seen, self._seen[1:]))

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def told(site: cluster_site.Site) -> str:
    chosen = ["-n", NAMESPACE, "-l", "app.kubernetes.io/name=vgpu-node"]
    names = ("install", "settings", "vgpud", "device-plugin", "remove")
    logs = [f"{name}: {site.cluster.kubectl('logs', *chosen, '-c', name, check=False)}" for name in names]
    return "\n".join([site.cluster.kubectl("describe", "pods", "-A"), *logs])
