"""The manifests: every field exists, the rights are those that the code uses, and examples name their settings.

The objects are those that the chart's renderer has checked in; test_chart.py compares them with the chart.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
import tomlkit
import yaml
from checkout import CHECKOUT
from manifest_fields import check
from pod_site import SHIPPED

from vgpu.config import compiler, paths
from vgpu.config.settings import DEFAULTS, Settings
from vgpu.plugin.exporter.command import parsed
from vgpu.plugin.release import command

MANIFESTS = CHECKOUT / "packaging/kubernetes"
IMAGE = CHECKOUT / "packaging/image"
#: <way>/objects.yaml, examples and the self-test's Job. The operator's kinds of `monitors` are none of Kubernetes.
FILES = sorted(
    {
        *MANIFESTS.glob("*/objects.yaml"),
        *MANIFESTS.glob("examples/*"),
        *MANIFESTS.glob("claims/*"),
        MANIFESTS / "selftest/job.yaml",
    }
    - {MANIFESTS / "monitors/objects.yaml"}
)


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def of_kind(kind: str, way: str = "node") -> list[dict[str, Any]]:
    """The objects of a way of running. test_scheduler.py looks at the scheduler extender's."""
    return [found for found in documents(MANIFESTS / f"{way}/objects.yaml") if found["kind"] == kind]


def pods(way: str = "node") -> dict[str, Any]:
    """The spec of the DaemonSet's pods."""
    (found,) = of_kind("DaemonSet", way)
    return found["spec"]["template"]["spec"]  # type: ignore[no-any-return]


def container(name: str) -> dict[str, Any]:
    (found,) = [one for kind in ("initContainers", "containers") for one in pods()[kind] if one["name"] == name]
    return found  # type: ignore[no-any-return]


# Strictly, as the API server reads them


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_field_exists(path: Path) -> None:
    for found in documents(path):
        version = found["apiVersion"].rpartition("/")[2].capitalize()
        check(found, version + found["kind"], path.name)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('core-limit: "50"', "core-limit: 50"),
        ('- "10"', "- 10"),
        ("restartPolicy: Never", "restartpolicy: Never"),
        ("restartPolicy: Never", "tolerations: {}"),
    ],
)
def test_the_check_finds_what_kubernetes_refuses(old: str, new: str) -> None:
    text = (MANIFESTS / "examples/half-a-card.yaml").read_text()
    assert old in text
    with pytest.raises(AssertionError):
        check(yaml.safe_load(text.replace(old, new)), "V1Pod", "pod")


def test_names_and_namespaces() -> None:
    for found in documents(MANIFESTS / "node/objects.yaml"):
        assert found["metadata"].get("namespace") == (
            None if "Cluster" in found["kind"] or found["kind"] == "Namespace" else "vgpu-system"
        )
    (namespace,) = of_kind("Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"


# Rights


def used_verbs() -> set[tuple[str, str]]:
    """(resource, verb) of each call in the code. All calls have the form api.<verb>(<path>, ...)."""
    found = set()
    for path in (CHECKOUT / "plugin/vgpu/plugin/apiserver").glob("*.py"):
        for verb, first in re.findall(r"\bapi\.(get|patch|post|watch)\(\s*([^,)]*)", path.read_text()):
            (resource,) = {name for name, pattern in PATHS.items() if re.search(pattern, f"{path.stem}: {first}")}
            found.add((resource, "list" if (resource, verb) == ("pods", "get") else VERBS.get(verb, verb)))
    return found


VERBS = {"post": "create"}
#: The path of a call's first argument, by the module's name and the argument. The pods' path stands for all pods.
PATHS = {
    "events": r"/events", "pods": r"^pods: PATH|^agent: pod\.path", "nodes": r"^node_(annotations|labels): self\.path",
    "nodes/status": r"^node_condition: self\.path",
}  # fmt: skip


def test_rights_are_those_that_the_code_uses() -> None:
    granted = {
        (resource, verb)
        for role in of_kind("ClusterRole")
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert granted == used_verbs()


def test_every_role_is_bound_to_the_account_that_the_pod_has() -> None:
    account = pods()["serviceAccountName"]
    assert [found["metadata"]["name"] for found in of_kind("ServiceAccount")] == [account]
    roles = {role["metadata"]["name"] for role in of_kind("ClusterRole")}
    assert {binding["roleRef"]["name"] for binding in of_kind("ClusterRoleBinding")} == roles
    for binding in of_kind("ClusterRoleBinding"):
        assert binding["metadata"]["name"] == binding["roleRef"]["name"]
        assert binding["roleRef"]["kind"] == "ClusterRole"
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": "vgpu-system"}]


def test_no_wildcards() -> None:
    for role in of_kind("ClusterRole"):
        assert "*" not in str(role["rules"])


# The DaemonSet


def mounts(name: str = "device-plugin") -> dict[str, dict[str, Any]]:
    """mountPath -> the mount of a container with its host path, if it has one."""
    volumes = {volume["name"]: volume for volume in pods()["volumes"]}
    used = [mount for kind in ("initContainers", "containers") for one in pods()[kind] for mount in one["volumeMounts"]]
    assert {mount["name"] for mount in used} == set(volumes), "every volume is used, and there"
    return {
        mount["mountPath"]: {**mount, "host": volumes[mount["name"]].get("hostPath", {}).get("path")}
        for mount in container(name)["volumeMounts"]
    }


def test_the_release_is_installed_and_run_where_the_settings_look() -> None:
    install, run = (container(name)["command"] for name in ("install", "vgpud"))
    assert (install[:2], run) == (["vgpu-release", "install"], ["vgpu-release", "run", "vgpud"])
    options = dict(zip(install[2::2], install[3::2]))
    environment = {item["name"]: item["value"] for item in container("vgpud")["env"]}
    assert environment == {command.HOST: options["--host"], command.DIRECTORY: options["--directory"]}
    root = options["--host"]
    expected = {options["--directory"], str(Path(options["--socket"]).parent), "/etc/cdi", "/var/run/cdi"}
    assert {path: mount["host"] for path, mount in mounts("install").items() if mount["host"]} == {
        root + path: path for path in expected
    }
    assert {path: mount["host"] for path, mount in mounts("vgpud").items()} == {root: "/", "/run/vgpu": "/run/vgpu"}
    (found,) = of_kind("ConfigMap")
    settings = settings_of(found["data"]["config.yaml"])
    assert settings.text("paths.libvcuda") == f"{options['--directory']}/current/usr/lib/vgpu/vcuda"
    assert settings.flag("plugin.cdi")
    assert settings.text("plugin.http") == DEFAULTS["plugin.http"]
    assert settings.text("metrics.listen") == "", "the exporter listens"


def test_where_it_runs() -> None:
    terms = pods()["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [(one["key"], one["values"]) for term in terms for one in term["matchExpressions"]] == [
        ("feature.node.kubernetes.io/pci-10de.present", ["true"]), ("nvidia.com/gpu.present", ["true"]),
        ("nvidia-device-enable", ["enable"]),
    ]  # fmt: skip
    assert len(terms) == 3, "any of them"
    assert pods()["priorityClassName"] == "system-node-critical"
    assert pods()["hostPID"] is True, "or all containers are dead to it"
    assert not pods().get("hostNetwork")


@pytest.mark.parametrize(
    ("name", "writes", "reads"),
    [
        ("install", {"release", "cdi-0", "cdi-1"}, {"runtime", "account"}),
        ("settings", {"settings"}, {"config", "account"}),
        ("vgpud", {"host"}, {"run"}),
        ("device-plugin", {"device-plugins", "state", "run"}, {"pod-resources", "account"}),
        ("exporter", {"metrics"}, {"settings"}),
    ],
)
def test_the_rights_of_each_container(name: str, writes: set[str], reads: set[str]) -> None:
    """Only NVML needs a privileged container, and only what asks the API server has the account."""
    volumes = container(name)["volumeMounts"]
    assert {mount["name"] for mount in volumes if not mount.get("readOnly")} == writes
    assert {mount["name"] for mount in volumes if mount.get("readOnly")} == reads
    later = {mount["name"] for mount in volumes if mount.get("mountPropagation") == "HostToContainer"}
    assert later == {"vgpud": {"host"}}.get(name, set())
    assert pods()["automountServiceAccountToken"] is False
    context = container(name)["securityContext"]
    assert context["readOnlyRootFilesystem"] is True
    if name == "vgpud":
        assert context["privileged"] is True
    else:
        assert context["privileged"] is context["allowPrivilegeEscalation"] is False
        kept = {"add": ["SYS_PTRACE"]} if name == "device-plugin" else {}
        assert context["capabilities"] == {"drop": ["ALL"], **kept}
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}


def test_probes_ask_where_the_plugin_answers() -> None:
    for name, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        (url,) = re.findall(r"http://[^']*", str(container("device-plugin")[name]["exec"]["command"]))
        assert url == f"http://{DEFAULTS['plugin.http']}{path}"
    (record,) = re.findall(r"'(/[^']*)'", container("vgpud")["livenessProbe"]["exec"]["command"][2])
    assert record == f"{paths.metrics(str(DEFAULTS['paths.run']))}/round.json"


def test_images() -> None:
    """The chart has the version of the packages, and the objects name images that `make images` builds, or others'."""
    chart = yaml.safe_load((MANIFESTS / "chart/Chart.yaml").read_text())
    assert {chart["version"], chart["appVersion"]} == {checkout_version()}
    used = set()
    for path in MANIFESTS.glob("*/objects.yaml"):
        used |= set(re.findall(r"^ *image: (\S+)", path.read_text(), re.M))
    built = tomlkit.parse((IMAGE / "images.toml").read_text()).unwrap()
    names = {image["name"] for name, image in built.items() if name != "every"}
    assert used - {"busybox:1.36"} <= {f"{name}:{checkout_version()}" for name in names}


def checkout_version() -> str:
    """The version of wheel and images, as packaging/version has it for all builders."""
    script = '. packaging/version; echo "$wheel_version"'
    return subprocess.check_output(["sh", "-euc", script], cwd=CHECKOUT, text=True).strip()


# The exporter


def test_the_exporter_has_no_rights_and_the_group_that_reads_the_record() -> None:
    exporter, context = container("exporter"), container("exporter")["securityContext"]
    user, group = (context[key] for key in ("runAsUser", "runAsGroup"))
    assert (user, group, context["runAsNonRoot"]) == (65532, 65532, True)
    (found,) = of_kind("ConfigMap")
    assert settings_of(found["data"]["config.yaml"]).number("metrics.group") == group
    run, state = str(DEFAULTS["paths.run"]), str(DEFAULTS["paths.state"])
    assert {path: mount["host"] for path, mount in mounts("exporter").items()} == {
        paths.metrics(run): paths.metrics(run), state: state,
    }  # fmt: skip
    assert parsed(exporter["command"][1:]).listen == f"0.0.0.0:{exporter['ports'][0]['containerPort']}"


def settings_of(text: str, node: str = "k8s01") -> Settings:
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(text)
        file.flush()
        return compiler.compile_source(file.name, node).settings


# The unit


def enabler() -> dict[str, Any]:
    (found,) = pods("unit")["containers"]
    return found  # type: ignore[no-any-return]


def test_the_unit_runs_where_the_daemonset_would() -> None:
    for key in ("serviceAccountName", "priorityClassName", "affinity", "tolerations", "hostPID"):
        assert pods("unit")[key] == pods()[key]
    assert [mount["name"] for mount in enabler()["volumeMounts"]] == ["account"], "it copies the account to the host"
    assert enabler()["securityContext"]["privileged"] is True, "it enters the namespaces of the host's process 1"


# The examples


@pytest.mark.parametrize("name", SHIPPED)
def test_the_comment_of_an_example_names_the_settings_that_it_needs(name: str) -> None:
    """What its pod gets with them is in test_plugin_containerd.py."""
    lines = (MANIFESTS / f"examples/{name}.yaml").read_text().splitlines()
    comment = " ".join(line[2:] for line in lines if line.startswith("# "))
    found = dict(re.findall(r"\b(core_name|memory_name|memory_unit|mode|split_count): ([\w./-]+)", comment))
    settings = settings_of(yaml.safe_dump({"resources": {key: value.rstrip(".;,") for key, value in found.items()}}))
    assert {f"resources.{key}" for key in found} <= SHIPPED[name][0].keys()
    assert all(settings[f"resources.{key}"] == SHIPPED[name][0][f"resources.{key}"] for key in found)
    offered = {settings[f"resources.{kind}_name"] for kind in ("core", "memory", "gpu")}
    (pod,) = documents(MANIFESTS / f"examples/{name}.yaml")
    limits = [limit for container in pod["spec"]["containers"] for limit in container["resources"]["limits"]]
    assert {limit for limit in limits if "/" in limit} <= offered
