"""The chart by a real Helm: it lints, refuses typos, and the checkout has what is made of it now."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import helm
import pytest
import suites
import yaml
from checkout import CHECKOUT
from manifest_fields import check

from vgpu.config.settings import DEFAULTS
from vgpu.plugin.release import cri

MANIFESTS = CHECKOUT / "packaging/kubernetes"
WAYS = sorted(path.parent.name for path in MANIFESTS.glob("*/kustomization.yaml"))
SCHEMA = json.loads((helm.CHART / "values.schema.json").read_text())
#: What is off by default, and settings that change the most objects.
ALL: dict[str, Any] = {
    "image": {"registry": "registry.example.com:5000/gpu", "digests": {"vgpu-node": f"sha256:{64 * 'a'}"},
              "pullSecrets": [{"name": "registry"}]},
    "settings": {"paths": {"state": "/data/vgpu"}, "driver": {"root": "/opt/nvidia"},
                 "resources": {"core_name": "example.com/cores", "memory_unit": 16777216}},
    "node": {"directory": "/data/opt"}, "runtime": {"socket": "/run/k0s/containerd.sock"},
    "cdi": {"directory": "/data/cdi"}, "kubelet": {"directory": "/var/lib/k0s/kubelet"}, "namespace": {"create": True},
    "priorityQuota": True, "networkPolicy": {"enabled": True, "metricsFrom": [{"namespaceSelector": {}}]},
    "monitors": {"podMonitor": True, "serviceMonitor": True, "rules": True, "dashboard": True},
    "dra": {"enabled": True, "parts": True}, "admission": {"enabled": True},
    "extender": {"enabled": True}, "unit": {"enabled": True},
}  # fmt: skip


@pytest.fixture(scope="module")
def everything() -> list[dict[str, Any]]:
    return helm.objects(values=ALL)


@pytest.mark.parametrize("values", [{}, ALL, {"remove": True}], ids=["default", "all", "remove"])
def test_helm_lints_it(values: Any) -> None:
    command = [helm.program(), "lint", "--strict", helm.CHART, "-f", "-"]
    done = subprocess.run(command, input=yaml.safe_dump(values), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_made_of_the_chart_is_up_to_date(tmp_path: Path) -> None:
    """`make manifests` repairs it."""
    environment = {**os.environ, "HELM": str(helm.program())}
    subprocess.run([sys.executable, MANIFESTS / "render.py", tmp_path], check=True, env=environment)
    made = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.parent.name for path in made if path.name == "objects.yaml"} == {*WAYS}
    for path in made:
        assert (CHECKOUT / path.relative_to(tmp_path)).read_text() == path.read_text(), path


@pytest.mark.parametrize("way", [*WAYS, "."])
def test_kubectl_builds_what_helm_renders(way: str) -> None:
    """Debian's kubectl 1.32 and Helm's own release, 1.36."""
    values = yaml.safe_load((MANIFESTS / ("node" if way == "." else way) / "values.yaml").read_text())
    wanted = helm.objects(values=values)
    for kubectl in (suites.unpack("trixie", "kubectl") / "usr/bin/kubectl", helm.program("kubectl")):
        done = subprocess.run([kubectl, "kustomize", MANIFESTS / way], capture_output=True, text=True, check=True)
        assert by_name(yaml.safe_load_all(done.stdout)) == by_name(wanted)


def by_name(documents: Any) -> dict[tuple[str, str, str], Any]:
    return {(one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]): one for one in documents}


def with_typos(schema: dict[str, Any], path: str, found: list[str], root: dict[str, Any]) -> Any:
    """A value of `schema` in which each object that lists its keys has one more. `found` has the path of each."""
    root = schema if "$id" in schema else root
    reference = schema.get("$ref", "")
    if reference:
        target = SCHEMA["definitions"]["settings"] if reference == "settings.json" else root
        for key in reference.partition("#/")[2].split("/") if "#" in reference else ():
            target = target[key]
        return with_typos(target, path, found, root)
    if "array" in schema.get("type", ()):
        items = with_typos(schema["items"], f"{path}/0", found, root)
        return [items] if items is not None else None
    more = schema.get("additionalProperties")
    parts = {key: with_typos(part, f"{path}/{key}", found, root) for key, part in schema.get("properties", {}).items()}
    if isinstance(more, dict):
        parts["any"] = with_typos(more, f"{path}/any", found, root)
    if more is False:
        found.append(path)
        parts["typo"] = 1
    return {key: part for key, part in parts.items() if part is not None} or None


def test_a_typo_is_an_error_in_every_section() -> None:
    sections: list[str] = []
    done = helm.template(values=with_typos(SCHEMA, "", sections, SCHEMA))
    assert done.returncode != 0
    refused = re.findall(r"at '(.*)': additional properties 'typo' not allowed", done.stderr)
    assert sorted(refused) == sorted(sections)
    assert {"", "/image", "/settings", "/settings/nodes/any/scaling", "/extender/scheduler/resources"} <= {*sections}
    top = {path.split("/")[1] for path in sections if path}
    assert {*SCHEMA["properties"]} - top == {
        "global", "remove", "nodeSelector", "priorityClassName", "priorityQuota",
    }, "these have no keys of ours"  # fmt: skip


def test_every_field_of_everything_exists(everything: list[dict[str, Any]]) -> None:
    for found in everything:
        if found["apiVersion"] != "monitoring.coreos.com/v1":
            check(found, found["apiVersion"].rpartition("/")[2].capitalize() + found["kind"], found["metadata"]["name"])
    kinds = {found["kind"] for found in everything}
    assert {"PodMonitor", "ServiceMonitor", "PrometheusRule", "NetworkPolicy", "ResourceQuota"} <= kinds


def test_values_reach_the_node(everything: list[dict[str, Any]]) -> None:
    node = by_name(everything)["DaemonSet", "vgpu-system", "vgpu-node"]["spec"]["template"]["spec"]
    images = {one["image"] for kind in ("initContainers", "containers") for one in node[kind]}
    assert images == {f"registry.example.com:5000/gpu/vgpu-node@sha256:{64 * 'a'}"}
    assert node["imagePullSecrets"] == [{"name": "registry"}]
    folders = {volume["hostPath"]["path"] for volume in node["volumes"] if "hostPath" in volume}
    assert {"/data/opt", "/run/k0s", "/data/vgpu", "/var/lib/k0s/kubelet/pod-resources"} <= folders
    assert not {"/opt/vgpu", "/run/containerd", "/etc/cdi", "/var/run/cdi"} & folders
    assert {"/data/cdi", "/var/lib/vgpu"} <= folders, "the compiled settings stay where the hook looks"
    command = node["initContainers"][0]["command"]
    assert command[command.index("--cdi-directory") + 1] == "/data/cdi"
    settings = yaml.safe_load(by_name(everything)["ConfigMap", "vgpu-system", "vgpu-config"]["data"]["config.yaml"])
    assert settings["paths"] == {"state": "/data/vgpu", "libvcuda": "/data/opt/current/usr/lib/vgpu/vcuda"}
    assert settings["resources"] == ALL["settings"]["resources"]


def distributions() -> dict[str, dict[str, str]]:
    """The values of each distribution in the page's table."""
    page = (CHECKOUT / "docs/chart.md").read_text()
    section = page.partition("## Folders of distributions\n")[2].partition("\n## ")[0]
    rows = [re.findall(r"[^|]+", line) for line in section.splitlines() if line.startswith("| ")][1:]
    return {name.strip(): dict(re.findall(r"`([\w.]+)=([^`]+)`", values)) for name, values in rows}


@pytest.mark.parametrize("name", distributions())
def test_the_folders_of_a_distribution(name: str) -> None:
    values = distributions()[name]
    assert bool(values) is (name != "kubeadm, containerd")  # which has the defaults
    objects = by_name(helm.objects(*(f"--set={key}={value}" for key, value in values.items())))
    node = objects["DaemonSet", "vgpu-system", "vgpu-node"]["spec"]["template"]["spec"]
    socket = values.get("runtime.socket", cri.SOCKETS[0])
    root = values.get("kubelet.directory", "/var/lib/kubelet")
    assert socket in cri.SOCKETS
    install = node["initContainers"][0]["command"]
    assert install[install.index("--socket") + 1] == socket
    folders = {volume["name"]: volume["hostPath"]["path"] for volume in node["volumes"] if "hostPath" in volume}
    assert (folders["runtime"], folders["pod-resources"]) == (os.path.dirname(socket), f"{root}/pod-resources")
    assert folders["device-plugins"] == "/var/lib/kubelet/device-plugins"
    settings = yaml.safe_load(objects["ConfigMap", "vgpu-system", "vgpu-config"]["data"]["config.yaml"])
    looked_at = settings["plugin"].get("pod_resources_socket", DEFAULTS["plugin.pod_resources_socket"])
    assert looked_at == f"{root}/pod-resources/kubelet.sock"


@pytest.mark.parametrize("right", ["readPods", "answerPods", "showCards", "showHealth"])
def test_each_role_can_be_left_out(right: str) -> None:
    def rights(**left_out: bool) -> list[Any]:
        return [found["rules"] for found in helm.objects(values={"rbac": left_out}) if found["kind"] == "ClusterRole"]

    assert len(rights()) == 4
    assert len(rights(**{right: False})) == 3


def test_removal_replaces_what_runs_and_keeps_no_folder_of_its_own() -> None:
    objects = by_name(helm.objects(values={"remove": True}))
    assert not [name for kind, _, name in objects if kind == "ConfigMap"]
    spec = objects["DaemonSet", "vgpu-system", "vgpu-node"]["spec"]["template"]["spec"]
    ((remove,), (removed,)) = spec["initContainers"], spec["containers"]
    assert remove["command"] == ["vgpu-release", "remove", "--host", "/host", "--directory", "/opt/vgpu", "--wait"]
    assert {mount["name"] for mount in remove["volumeMounts"]} == {"host", "account"}
    assert "volumeMounts" not in removed, "a folder that a container holds cannot go"


def test_the_scheduler_asks_the_extender_about_the_clusters_resources(everything: list[dict[str, Any]]) -> None:
    objects = by_name(everything)
    configuration = objects["ConfigMap", "vgpu-system", "vgpu-gpu-scheduler"]["data"]["config.yaml"]
    (extender,) = yaml.safe_load(configuration)["extenders"]
    service = objects["Service", "vgpu-system", "vgpu-scheduler-extender"]
    host = f"{service['metadata']['name']}.vgpu-system.svc"
    assert extender["urlPrefix"] == f"https://{host}:{service['spec']['ports'][0]['port']}/scheduler"
    spec = objects["Deployment", "vgpu-system", "vgpu-scheduler-extender"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    (resource,) = (option for option in container["command"] if option.startswith("--resource="))
    assert resource == "--resource=example.com/cores:tencent.com/vcuda-memory:16777216"
    managed = {one["name"] for one in extender["managedResources"] if not one["ignoredByScheduler"]}
    assert {"example.com/cores", "tencent.com/vcuda-memory", "nvidia.com/gpu"} <= managed
