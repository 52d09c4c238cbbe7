"""The manifests: every field exists, the rights are those that the code uses, and examples name their settings."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
import tomlkit
import yaml
from checkout import CHECKOUT
from kubernetes.client import models
from pod_site import SHIPPED

from vgpu.config import compiler, paths
from vgpu.config.settings import DEFAULTS, Settings
from vgpu.plugin.cards import health_monitor
from vgpu.plugin.exporter.command import parsed

MANIFESTS = CHECKOUT / "packaging/kubernetes"
IMAGE = CHECKOUT / "packaging/image"
#: kube-scheduler's own configuration is no object of the API server: test_scheduler.py reads it.
NO_OBJECTS = (
    "kustomization.yaml", "default-scheduler-v1.yaml", "default-scheduler-v1beta1.yaml", "gpu-scheduler-v1.yaml",
    "gpu-scheduler-v1beta1.yaml",
)  # fmt: skip
FILES = sorted(path for path in MANIFESTS.rglob("*.yaml") if path.name not in NO_OBJECTS)
QUANTITIES = {"V1ResourceRequirements.limits", "V1ResourceRequirements.requests"}  # numbers or texts
PLAIN = {"str": str, "int": int, "bool": bool}


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def of_kind(kind: str) -> list[dict[str, Any]]:
    """Of the device plugin: test_scheduler.py looks at the scheduler extender's."""
    plugins = [path for path in FILES if path.parent.name != "scheduler"]
    return [found for path in plugins for found in documents(path) if found["kind"] == kind]


def daemonset(name: str = "vgpu-device-plugin") -> dict[str, Any]:
    (found,) = [found for found in of_kind("DaemonSet") if found["metadata"]["name"] == name]
    return found


# Strictly, as the API server reads them


def check(value: Any, kind: str, where: str) -> None:
    """AssertionError for a field that Kubernetes does not have, or a value of another type."""
    kind = kind.replace("List[", "list[").replace("dict(", "Dict[").replace(")", "]")  # as its versions write it
    if kind.startswith("list["):
        assert isinstance(value, list), where
        for at, item in enumerate(value):
            check(item, kind[5:-1], f"{where}[{at}]")
    elif kind.startswith("Dict["):
        assert isinstance(value, dict), where
        for key, item in value.items():
            check(item, kind[5:-1].split(", ")[1], f"{where}.{key}")
    elif kind in PLAIN:
        assert type(value) is PLAIN[kind], f"{where}: {value!r} is no {kind}"
    elif kind != "object":
        check_object(value, kind, where)


def check_object(value: Any, kind: str, where: str) -> None:
    model = getattr(models, kind)
    fields = {name: model.openapi_types[own] for own, name in model.attribute_map.items()}
    assert isinstance(value, dict), where
    for name, item in value.items():
        assert name in fields, f"{where}.{name}: no field of {kind}"
        of = "Dict[str, object]" if f"{kind}.{name}" in QUANTITIES else fields[name]
        check(item, of, f"{where}.{name}")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
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
    assert {len(of_kind(kind)) for kind in ("ServiceAccount", "ConfigMap")} == {1}
    for found in (*of_kind("ServiceAccount"), *of_kind("ConfigMap"), *of_kind("DaemonSet")):
        assert found["metadata"]["namespace"] == "kube-system"
    for kind in ("ClusterRole", "ClusterRoleBinding"):
        assert all("namespace" not in found["metadata"] for found in of_kind(kind))


@pytest.mark.parametrize("path", sorted(MANIFESTS.rglob("kustomization.yaml")), ids=lambda path: path.parent.name)
def test_kustomizations_name_what_is_there(path: Path) -> None:
    """kubectl refuses a folder that contains the one that names it: "cycle detected"."""
    document = yaml.safe_load(path.read_text())
    resources = document.get("resources", [])
    assert resources or document["kind"] == "Component"
    for name in (*resources, *document.get("components", [])):
        found = (path.parent / name).resolve()
        assert found.is_file() or (found / "kustomization.yaml").is_file()
        assert found not in path.parents
    own = {file.name for file in path.parent.glob("*.yaml")} - {path.name}
    assert own <= set(resources)


def test_the_unprivileged_daemonset() -> None:
    overlay = yaml.safe_load((MANIFESTS / "unprivileged/kustomization.yaml").read_text())
    assert overlay["resources"] == ["../daemonset"]
    (patch,) = overlay["patches"]
    assert patch["target"] == {"kind": "DaemonSet", "name": daemonset()["metadata"]["name"]}
    (step,) = yaml.safe_load(patch["patch"])
    assert (step["op"], step["path"]) == ("replace", "/spec/template/spec/containers/0/securityContext")
    check(step["value"], "V1SecurityContext", "securityContext")
    assert step["value"] == daemonset()["spec"]["template"]["spec"]["initContainers"][0]["securityContext"]


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
    account = daemonset()["spec"]["template"]["spec"]["serviceAccountName"]
    assert [found["metadata"]["name"] for found in of_kind("ServiceAccount")] == [account]
    roles = {role["metadata"]["name"] for role in of_kind("ClusterRole")}
    assert {binding["roleRef"]["name"] for binding in of_kind("ClusterRoleBinding")} == roles
    for binding in of_kind("ClusterRoleBinding"):
        assert binding["metadata"]["name"] == binding["roleRef"]["name"]
        assert binding["roleRef"]["kind"] == "ClusterRole"
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": "kube-system"}]


def test_no_wildcards() -> None:
    for role in of_kind("ClusterRole"):
        assert "*" not in str(role["rules"])


# The DaemonSet


def mounts() -> dict[str, dict[str, Any]]:
    """mountPath -> the mount with its host path."""
    spec = daemonset()["spec"]["template"]["spec"]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    used = [mount for kind in ("initContainers", "containers") for one in spec[kind] for mount in one["volumeMounts"]]
    assert {mount["name"] for mount in used} == set(volumes), "every volume is used, and there"
    (plugin,) = spec["containers"]
    return {
        mount["mountPath"]: {**mount, "host": volumes[mount["name"]]["hostPath"]["path"]}
        for mount in plugin["volumeMounts"]
    }


def test_the_directories_of_the_default_settings() -> None:
    found = mounts()
    socket = Path(str(DEFAULTS["plugin.pod_resources_socket"]))
    for path in (DEFAULTS["paths.state"], DEFAULTS["paths.run"], DEFAULTS["plugin.socket_dir"]):
        assert found[str(path)]["host"] == path
        assert not found[str(path)].get("readOnly")
    assert found[str(socket.parent)]["host"] == str(socket.parent)
    assert found[str(socket.parent)]["readOnly"]


def test_the_hosts_own_files_are_read_only_and_where_the_plugin_looks() -> None:
    spec = daemonset()["spec"]["template"]["spec"]
    environment = {item["name"]: item.get("value") for item in spec["containers"][0]["env"]}
    root = environment[health_monitor.HOST_ROOT]
    below = {path: mount for path, mount in mounts().items() if path.startswith(f"{root}/")}
    assert {mount["host"] for mount in below.values()} == {"/usr", "/dev", "/run/nvidia"}
    for path, mount in below.items():
        assert path == root + mount["host"]
        assert mount["readOnly"]


def test_where_it_runs() -> None:
    spec = daemonset()["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {"nvidia-device-enable": "enable"}
    assert spec["priorityClassName"] == "system-node-critical"
    assert spec["hostPID"] is True, "or all containers are dead to it"
    assert not spec.get("hostNetwork")
    labels = daemonset()["spec"]["template"]["metadata"]["labels"]
    assert daemonset()["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_probes_ask_where_the_plugin_answers() -> None:
    (plugin,) = daemonset()["spec"]["template"]["spec"]["containers"]
    for name, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        (url,) = re.findall(r"http://[^']*", str(plugin[name]["exec"]["command"]))
        assert url == f"http://{DEFAULTS['plugin.http']}{path}"


def test_images() -> None:
    """One file has the version of all images, which is that of the packages. No manifest has another one."""
    (component,) = documents(MANIFESTS / "images/kustomization.yaml")
    tags = {image["name"]: image["newTag"] for image in component["images"]}
    version = checkout_version()
    assert tags.pop("busybox")
    built = tomlkit.parse((IMAGE / "images.toml").read_text()).unwrap()
    assert tags == {built[name]["name"]: version for name in ("plugin", "exporter", "extender")}
    used = set()
    for path in FILES:
        if path.parent != MANIFESTS / "examples":
            used |= set(re.findall(r"^ *image: (\S+)", path.read_text(), re.M))
    assert used == {*tags, "busybox"}
    for path in MANIFESTS.rglob("*.yaml"):
        if path.parent.name != "images":
            assert version not in path.read_text(), path


def checkout_version() -> str:
    """The version of wheel and images, as packaging/version has it for all builders."""
    script = '. packaging/version; echo "$wheel_version"'
    return subprocess.check_output(["sh", "-euc", script], cwd=CHECKOUT, text=True).strip()


# The exporter's own DaemonSet


def test_the_exporter_has_no_rights_and_the_group_that_reads_the_record() -> None:
    spec = daemonset("vgpu-exporter")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert spec["automountServiceAccountToken"] is False
    assert not {"serviceAccountName", "hostPID", "hostNetwork", "hostIPC"} & set(spec)
    user, group = (spec["securityContext"][key] for key in ("runAsUser", "runAsGroup"))
    assert (user, group, spec["securityContext"]["runAsNonRoot"]) == (65532, 65532, True)
    comment = (MANIFESTS / "exporter/daemonset.yaml").read_text()
    (named,) = re.findall(r"^#   (metrics: .*)$", comment, re.M)
    assert settings_of(named).number("metrics.group") == group
    context = container["securityContext"]
    assert (context["allowPrivilegeEscalation"], context["capabilities"]) == (False, {"drop": ["ALL"]})
    volumes = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"]}
    found = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    run, state = str(DEFAULTS["paths.run"]), str(DEFAULTS["paths.state"])
    assert found == {paths.metrics(run): paths.metrics(run), state: state}
    assert parsed(container["command"][1:]).listen == f"0.0.0.0:{container['ports'][0]['containerPort']}"


def test_the_configuration_is_right() -> None:
    (found,) = of_kind("ConfigMap")
    (volume,) = [
        volume["configMap"] for volume in daemonset()["spec"]["template"]["spec"]["volumes"] if "configMap" in volume
    ]
    assert volume == {"name": found["metadata"]["name"], "optional": True}
    text = found["data"]["config.yaml"]
    assert settings_of(text).text("plugin.http") == DEFAULTS["plugin.http"]
    for block in re.findall(r"(?:^ *#(?:resources|nodes):\n(?: *#  .*\n)+)", text, re.M):
        settings_of(re.sub(r"^( *)#", r"\1", block, flags=re.M))


def settings_of(text: str, node: str = "k8s01") -> Settings:
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(text)
        file.flush()
        return compiler.compile_source(file.name, node).settings


# The unit


def enabler() -> dict[str, Any]:
    (container,) = daemonset("vgpu-device-plugin-unit")["spec"]["template"]["spec"]["containers"]
    return container  # type: ignore[no-any-return]


def test_the_unit_replaces_the_daemonset() -> None:
    """It has the same account, nodes and tolerations, and the pod's own plugin and settings are left out."""
    overlay = yaml.safe_load((MANIFESTS / "unit/kustomization.yaml").read_text())
    left_out = [yaml.safe_load(patch["patch"]) for patch in overlay["patches"]]
    assert {document.pop("$patch") for document in left_out} == {"delete"}
    (settings,) = of_kind("ConfigMap")
    for document, whole in zip(left_out, (daemonset(), settings)):
        names = {key: whole["metadata"][key] for key in ("name", "namespace")}
        assert document == {"apiVersion": whole["apiVersion"], "kind": whole["kind"], "metadata": names}
    here, there = (
        daemonset(name)["spec"]["template"]["spec"] for name in ("vgpu-device-plugin-unit", "vgpu-device-plugin")
    )
    for key in ("serviceAccountName", "priorityClassName", "nodeSelector", "tolerations", "hostPID"):
        assert here[key] == there[key]


def run_enabler(root: Path, systemctl: str) -> subprocess.CompletedProcess[str]:
    """Run the container's script once. The host is `root`, with `systemctl` as its program of that name."""
    for name, text in (("systemctl", systemctl), ("sleep", "exit 1"), ("nsenter", 'shift 8; exec "$@"')):
        program = root / "bin" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    (script,) = enabler()["args"]
    for path in ("/var/run/secrets", "/etc/systemd", "/var/lib/vgpu/serviceaccount/"):
        assert path in script
        script = re.sub(rf"(?<=[ =]){path}", f"{root}{path}", script)
    environment = {
        "PATH": f"{root}/bin:{os.environ['PATH']}", "ROOT": str(root), "NODE_NAME": "n1",
        "KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443",
    }  # fmt: skip
    command = [*enabler()["command"], script]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)


def test_the_unit_is_enabled_with_the_pods_account(tmp_path: Path) -> None:
    account = tmp_path / "var/run/secrets/kubernetes.io/serviceaccount"
    account.mkdir(parents=True)
    for name in ("ca.crt", "namespace", "token"):
        (account / name).write_text(f"the {name}")
    calls = 'echo "$@" >> $ROOT/calls'
    for _ in range(2):
        done = run_enabler(tmp_path, calls)
        assert "vgpu-device-plugin.service is enabled" in done.stdout, done.stderr
    copies = tmp_path / "var/lib/vgpu/serviceaccount"
    assert {path.name: path.read_text() for path in copies.iterdir()} == {
        name: f"the {name}" for name in ("ca.crt", "namespace", "token")
    }
    assert {path.stat().st_mode & 0o777 for path in copies.iterdir()} == {0o600}
    (drop_in,) = (tmp_path / "etc/systemd/system/vgpu-device-plugin.service.d").iterdir()
    lines = drop_in.read_text().splitlines()
    assert "Environment=NODE_NAME=n1" in lines
    assert "BindReadOnlyPaths=-/var/lib/vgpu/serviceaccount:/run/secrets/kubernetes.io/serviceaccount" in lines
    restart = ["daemon-reload", "try-restart vgpu-device-plugin.service"]
    each = ["cat vgpu-device-plugin.service", "enable --now vgpu-device-plugin.service"]
    expected = [each[0], *restart, each[1], *each]  # the second time nothing has changed
    assert (tmp_path / "calls").read_text().splitlines() == expected


def test_a_node_without_the_unit_is_named(tmp_path: Path) -> None:
    done = run_enabler(tmp_path, "exit 1")
    assert done.returncode == 1
    assert "n1 has no vgpu-device-plugin.service: install the package" in done.stdout
    assert not (tmp_path / "var").exists()
    assert not (tmp_path / "etc").exists()


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
