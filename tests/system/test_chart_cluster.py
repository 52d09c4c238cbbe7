"""The chart at Kubernetes' own API server: it takes every object as it is written, and Helm leaves nothing behind.

The control plane is 1.20 without a node, so no pod runs. docs/chart.md is typed as a reader types it.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from typing import Any

import docs_commands
import helm
import operator_kinds
import pytest
import real_cluster
from checkout import CHECKOUT
from cluster_site import documents
from daemons import wait_for

pytestmark = [pytest.mark.root, pytest.mark.long]

KUBERNETES = CHECKOUT / "packaging/kubernetes"
NAMESPACE = "vgpu-system"
ALL = {
    "namespace": {"create": True}, "priorityQuota": True, "networkPolicy": {"enabled": True},
    "monitors": {"podMonitor": True, "serviceMonitor": True, "rules": True, "dashboard": True},
    "extender": {"enabled": True}, "unit": {"enabled": True},
}  # fmt: skip
#: What controllers make without a release, by the end of its name in `kubectl api-resources`.
OTHERS = ("events", "events.events.k8s.io", "leases.coordination.k8s.io")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[real_cluster.Cluster]:
    directory = tmp_path_factory.mktemp("cluster")
    made = real_cluster.Cluster(directory / "cluster", real_cluster.make_place(directory))
    programs = directory / "bin"
    programs.mkdir()
    for name in ("helm", "kubectl"):
        (programs / name).symlink_to(helm.program(name))
    try:
        made.start()
        yield made
    finally:
        made.end()
        made.place.end()


def typed(cluster: real_cluster.Cluster, commands: str) -> str:
    """The output of shell commands on a machine with helm and kubectl."""
    place = cluster.directory.parent
    environment = {
        **os.environ, "KUBECONFIG": str(cluster.kubeconfig("admin")), "HOME": str(place),
        "PATH": f"{place}/bin:{os.environ['PATH']}",
    }  # fmt: skip
    command = [*cluster.place.prefix, "sh", "-euc", f"cd {CHECKOUT}\n{commands}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def contains(found: Any, wanted: Any) -> bool:
    """Whether `found`, which also has defaults, contains all of `wanted`."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(contains(found.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return isinstance(found, list) and len(found) == len(wanted) and all(map(contains, found, wanted))
    return bool(found == wanted)


def everything(cluster: real_cluster.Cluster) -> set[str]:
    """The namespace, kind and name of all objects."""
    kinds = typed(cluster, "kubectl api-resources --verbs=list -o name").split()
    listed = ",".join(kind for kind in kinds if kind not in OTHERS)
    shown = "{range .items[*]}{.metadata.namespace}/{.kind}/{.metadata.name}{'\\n'}{end}"
    return {*typed(cluster, f'kubectl get {listed} -A -o jsonpath="{shown}"').split()}


def test_the_api_server_takes_every_object_and_drops_no_field(cluster: real_cluster.Cluster) -> None:
    """Of each way of running, and of what is off by default, the operator's kinds among them.

    1.20 has no admission policies.
    """
    definitions = operator_kinds.definitions()
    cluster.apply(*definitions)
    cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    cluster.kubectl("create", "namespace", NAMESPACE)
    folders = sorted(KUBERNETES.glob("*/objects.yaml"))
    for objects in (*map(documents, folders), helm.objects(values=ALL), helm.objects(values={"remove": True})):
        given = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        answer = cluster.kubectl("apply", "--dry-run=server", "-o", "json", "-f", "-", given=given)
        for wanted, found in zip(objects, json.loads(answer)["items"]):
            assert contains(found, wanted), f"{wanted['kind']} {wanted['metadata']['name']}: {found}"
    cluster.kubectl("delete", "namespace", NAMESPACE, "--timeout=90s")
    cluster.kubectl("delete", "crd", *(one["metadata"]["name"] for one in definitions), "--timeout=90s")


def test_the_page_installs_changes_and_removes_without_a_trace(cluster: real_cluster.Cluster) -> None:
    before = everything(cluster)
    install, remove = (block.text for page in ("chart", "removal") for block in docs_commands.blocks(f"docs/{page}.md"))
    typed(cluster, install)
    assert f"{NAMESPACE}/DaemonSet/vgpu-node" in everything(cluster)
    change = f"helm upgrade vgpu packaging/kubernetes/chart --namespace {NAMESPACE} --reset-then-reuse-values"
    typed(cluster, f"{change} --set extender.enabled=true,settings.resources.mode=gpu")
    assert "mode: gpu" in cluster.find("configmap", "vgpu-config", NAMESPACE)["data"]["config.yaml"]
    names = ("vgpu-scheduler-extender", "vgpu-scheduler-extender-client")
    certificates = [cluster.find("secret", name, NAMESPACE)["data"] for name in names]
    typed(cluster, f"{change} --set extender.replicas=1")
    assert [cluster.find("secret", name, NAMESPACE)["data"] for name in names] == certificates
    typed(cluster, remove)
    wait_for(lambda: everything(cluster) == before, 120, lambda: f"left: {everything(cluster) ^ before}")
