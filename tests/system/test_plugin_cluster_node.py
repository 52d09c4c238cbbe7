"""The Kubernetes page from its first command to its last: Helm, the DaemonSet's controller, kubelet and containerd 1.7.

The image vgpu-node is made of this machine's files. The node has nothing of vgpu, its containerd has CDI on, and its
process and its configuration stay as they are. Kubernetes 1.20 passes the CDI device on by the annotation.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import cluster_site
import containerd_bed
import docs_commands
import helm
import oci_images
import pytest
import release_site
import yaml
from checkout import CHECKOUT
from real_kubelet import NODE

pytestmark = [pytest.mark.root, pytest.mark.long]

NAMESPACE = "vgpu-system"


@pytest.fixture(scope="module")
def site(base_trees: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[cluster_site.Site]:
    images = tmp_path_factory.mktemp("images")
    pods = oci_images.write(base_trees["debian"], images / "base.tar", containerd_bed.IMAGE, ["sleep", "86400"])
    tree = release_site.node_image(base_trees["debian"], images / "node")
    archive = oci_images.write(tree, images / "node.tar", "vgpu-test.local/node:1", ["sleep", "86400"])
    with tempfile.TemporaryDirectory(prefix="vgpu-") as name:
        made = cluster_site.Site(Path(name), pods, (), cdi=True)
        try:
            made.start_alone()
            made.ctr("images", "import", str(archive))
            made.tag("vgpu-test.local/node:1", "vgpu-node:0.1.0")
            made.cluster.kubectl("label", "node", NODE, "nvidia.com/gpu.present=true")
            yield made
        finally:
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


def test_the_page(site: cluster_site.Site, tmp_path: Path) -> None:
    bed = site.bed
    assert bed.process
    (bed.directory / "cdi/vgpu.json").unlink()
    before = (bed.process.pid, (bed.directory / "config.toml").read_bytes())
    (tmp_path / "bin").mkdir()
    environment = {
        **os.environ, "PATH": f"{programs(site, tmp_path / 'bin')}:{os.environ['PATH']}", "HOME": str(tmp_path),
        "KUBECONFIG": str(site.cluster.kubeconfig("admin")),
    }  # fmt: skip
    printed = ""
    for block in docs_commands.blocks("docs/start-kubernetes.md"):
        if block.kind == "sh":
            script = f"cd {CHECKOUT}\n{block.text.replace('IMAGE', containerd_bed.IMAGE)}"
            done = subprocess.run(
                [*site.place.prefix, "sh", "-euc", script], env=environment, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stdout + done.stderr + told(site)
            printed += done.stdout
    assert re.search(r"0MiB / +8192MiB", printed), printed
    assert re.search(r"\w{12} \(default/share/main\), card \d: cores 30 -> 50, core limit 30 -> 50", printed)
    assert (bed.process.pid, (bed.directory / "config.toml").read_bytes()) == before
    assert list((bed.directory / "cdi").iterdir()) == []
    assert not (site.place.lib / "vgpu-releases").exists()
    node = site.cluster.find("node", NODE)["metadata"]
    assert not [name for kind in ("labels", "annotations") for name in node[kind] if name.startswith("vgpu.io/")]


def told(site: cluster_site.Site) -> str:
    chosen = ["-n", NAMESPACE, "-l", "app.kubernetes.io/name=vgpu-node"]
    names = ("install", "settings", "vgpud", "device-plugin", "remove")
    logs = [f"{name}: {site.cluster.kubectl('logs', *chosen, '-c', name, check=False)}" for name in names]
    return "\n".join([site.cluster.kubectl("describe", "pods", "-A"), *logs])
