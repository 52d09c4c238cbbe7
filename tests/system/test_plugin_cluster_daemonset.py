"""The DaemonSet's settings and device plugin: their pod on a real node, by the DaemonSet's own controller and account.

The image is made of this machine's files, and has no release: the node's hook and inventory are the bed's. The pod is
the shipped one without the installer, vgpud and the exporter. The tests change settings by the ConfigMap and a rollout,
as an administrator does without Helm.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import oci_images
import plugin_image
import pytest
from cluster_site import ACCOUNT, MANIFESTS, NAMESPACE, Site, documents
from daemons import wait_for
from pod_site import CORE, MEMORY
from real_kubelet import NODE

pytestmark = [pytest.mark.root, pytest.mark.long]

NAME = "vgpu-node:0.1.0"
CONTAINERS = ("settings", "device-plugin")
OWN = "plugin: {http: '127.0.0.1:5679'}"  #: without the CDI device and the release's library, which the bed has not
FORK = """
resources:
  core_name: nvidia.com/vcuda-core
  memory_name: nvidia.com/vcuda-memory
  memory_unit: 1Mi
plugin:
  grant_grace: 10
"""


@pytest.fixture(scope="module")
def site(cluster: Site, base_trees: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Site:
    directory = tmp_path_factory.mktemp("plugin")
    tree, archive = plugin_image.make(base_trees["debian"], directory / "tree"), directory / "plugin.tar"
    cluster.ctr("images", "import", str(oci_images.write(tree, archive, "vgpu-test.local/plugin:1", ["sh"])))
    cluster.tag("vgpu-test.local/plugin:1", NAME)
    (shipped,) = (one for one in documents(MANIFESTS / "objects.yaml") if one["kind"] == "DaemonSet")
    spec = shipped["spec"]["template"]["spec"]
    kept = {kind: [one for one in spec[kind] if one["name"] in CONTAINERS] for kind in ("initContainers", "containers")}
    used = {mount["name"] for one in (*kept["initContainers"], *kept["containers"]) for mount in one["volumeMounts"]}
    spec.update(kept, volumes=[volume for volume in spec["volumes"] if volume["name"] in used])
    cluster.cluster.kubectl("replace", "-f", "-", given=json.dumps(shipped))
    patch_settings(cluster, OWN)
    cluster.cluster.kubectl("label", "node", NODE, "nvidia.com/gpu.present=true")
    return cluster


def patch_settings(site: Site, text: str) -> None:
    patch = json.dumps({"data": {"config.yaml": text}})
    site.cluster.kubectl("patch", "configmap", "vgpu-config", "-n", NAMESPACE, "-p", patch)


def plugins(site: Site) -> dict[str, bool]:
    """The DaemonSet's pods: uid -> whether it is ready."""
    listed = site.cluster.kubectl(
        "get", "pods", "-n", NAMESPACE, "-l", f"app.kubernetes.io/name={ACCOUNT}", "-o", "json"
    )
    return {pod["metadata"]["uid"]: is_ready(pod) for pod in json.loads(listed)["items"]}


def is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def ready(site: Site, offered: dict[str, int], before: str = "") -> str:
    """The one plugin's uid, once it is ready and is not `before`."""

    def found() -> str:
        (uid, well), *others = [*plugins(site).items(), ("", False)]
        return uid if well and len(others) == 1 and uid != before and site.offered() == offered else ""

    return str(wait_for(found, 120, lambda: told(site)))


def told(site: Site) -> str:
    chosen = ["-n", NAMESPACE, "-l", f"app.kubernetes.io/name={ACCOUNT}"]
    logs = [site.cluster.kubectl("logs", *chosen, "-c", name, check=False) for name in CONTAINERS]
    return "\n".join([site.cluster.kubectl("describe", "pods", *chosen), *logs])


def test_the_daemonset_serves_the_node(site: Site) -> None:
    """A pod gets its share and outlives the plugin. A rollout brings the next settings."""
    first = ready(site, {CORE: 200, MEMORY: 314})
    site.create("steady", {CORE: 30, MEMORY: 4})
    (share,) = site.held("steady")
    assert share[1:] == (1024, 30)
    wait_for(lambda: "vgpu.io/node-cards" in site.cluster.annotations("node", NODE), 60, lambda: told(site))
    site.cluster.kubectl("delete", "pods", "-n", NAMESPACE, "-l", f"app.kubernetes.io/name={ACCOUNT}")
    second = ready(site, {CORE: 200, MEMORY: 314}, before=first)
    site.create("later", {CORE: 40, MEMORY: 5})
    assert site.held("later")[0][1:] == (1280, 40)
    assert site.held("steady") == [share]
    assert site.cluster.find("pod", "steady")["status"]["containerStatuses"][0]["restartCount"] == 0
    site.cluster.kubectl("delete", "pods", "--all", "--grace-period=1")
    patch_settings(site, FORK)
    site.cluster.kubectl("rollout", "restart", "daemonset", ACCOUNT, "-n", NAMESPACE)
    ready(site, {"nvidia.com/vcuda-core": 200, "nvidia.com/vcuda-memory": 80768}, before=second)
    assert "forbidden" not in told(site)
