"""The chart's admission policies: whom they refuse, by a library for CEL. The beds' Kubernetes is too old for them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import helm
import pytest
import roots

pytestmark = pytest.mark.long

PACKAGE = "cel-python>=0.4"
#: What the API server does with a policy: conditions, variables in their order, validations.
EVALUATE = """
import json, sys, celpy
policy, inputs = json.load(sys.stdin)
known = {name: celpy.json_to_cel(value) for name, value in inputs.items()}
known["variables"] = celpy.celtypes.MapType()
environment = celpy.Environment()
def holds(one):
    return environment.program(environment.compile(one["expression"])).evaluate(known)
for one in policy.get("variables", ()):
    if all(map(holds, policy.get("matchConditions", ()))):
        known["variables"][celpy.celtypes.StringType(one["name"])] = holds(one)
meant = all(map(holds, policy.get("matchConditions", ())))
print("admitted" if not meant or all(map(holds, policy["validations"])) else "refused")
"""
ACCOUNT = "system:serviceaccount:vgpu-system:vgpu-node"


@pytest.fixture(scope="module")
def library() -> Path:
    place = roots.CACHE / f"cel-{roots.key(PACKAGE, sys.version)}"
    with roots.making(place) as new:
        if new:
            pip = [sys.executable, "-m", "pip", "install", "-q", "--only-binary", ":all:", "--target", new, PACKAGE]
            subprocess.run(pip, check=True)
    return place


def answer(library: Path, name: str, **inputs: Any) -> str:
    objects = helm.objects(values={"admission": {"enabled": True}})
    kinds = {(one["kind"], one["metadata"]["name"]): one.get("spec") for one in objects}
    assert kinds["ValidatingAdmissionPolicyBinding", name] == {"policyName": name, "validationActions": ["Deny"]}
    given = json.dumps([kinds["ValidatingAdmissionPolicy", name], inputs])
    command, environment = [sys.executable, "-c", EVALUATE], {"PYTHONPATH": str(library)}
    done = subprocess.run(command, input=given, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("annotations", "variable", "kind", "expected"),
    [
        ({}, "PATH", "containers", "admitted"),
        ({"vgpu.io/cores": "30"}, "PATH", "initContainers", "admitted"),
        ({"vgpu.io/grant-cores": "1"}, "PATH", "containers", "refused"),
        ({"cdi.k8s.io/vgpu_share": "vgpu.io/share=grant"}, "PATH", "containers", "refused"),
        ({"cdi.k8s.io/other": "example.com/device=0"}, "PATH", "containers", "admitted"),
        ({}, "VGPU_GRANT_CORES", "containers", "refused"),
        ({}, "VGPU_GRANT_GPU", "initContainers", "refused"),
    ],
)
def test_a_pod_names_no_grant(
    library: Path, annotations: dict[str, str], variable: str, kind: str, expected: str
) -> None:
    bare, set_ = {"name": "bare"}, {"name": "set", "env": [{"name": variable, "value": "1"}]}
    spec = {"containers": [bare], kind: [bare, set_]}
    metadata = {"name": "p", **({"annotations": annotations} if annotations else {})}
    assert answer(library, "vgpu-pods", object={"metadata": metadata, "spec": spec}) == expected


@pytest.mark.parametrize(
    ("user", "node", "kind", "target", "expected"),
    [
        (ACCOUNT, "n1", "nodes", "n1", "admitted"),
        (ACCOUNT, "n1", "nodes", "n2", "refused"),
        (ACCOUNT, "n1", "pods", "n1", "admitted"),
        (ACCOUNT, "n1", "pods", "n2", "refused"),
        (ACCOUNT, "n1", "pods", "", "refused"),
        (ACCOUNT, "", "nodes", "n1", "refused"),
        ("somebody", "", "nodes", "n1", "admitted"),
    ],
)
def test_a_node_changes_itself_and_its_pods_only(
    library: Path, user: str, node: str, kind: str, target: str, expected: str
) -> None:
    extra = {"extra": {"authentication.kubernetes.io/node-name": [node]}} if node else {}
    request = {"userInfo": {"username": user, **extra}, "resource": {"resource": kind}}
    changed: dict[str, Any] = {"metadata": {"name": target or "p"}, "spec": {"nodeName": target} if target else {}}
    assert answer(library, "vgpu-own-node", object=changed, request=request) == expected
