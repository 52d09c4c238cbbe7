"""The kinds of the Prometheus operator as custom resources of an API server, with the operator's own fields.

Belongs here: the schemas, out of models that somebody has generated of the operator's definitions and published on
PyPI. What of them only the models' own package needs is replaced, so nothing of it is installed.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from typing import Any

import pydantic
import roots

PACKAGE = "cloudcoil-models-prometheus-operator==0.80.1.0"
HASH = "sha256:a139a60cc0114caace847a34275d7a7cd899ec2dad4120504d8e1cf6a8de0270"
MODELS = "cloudcoil/models/prometheus_operator/v1.py"
GROUP = "monitoring.coreos.com"
KINDS = ("PodMonitor", "ServiceMonitor", "PrometheusRule")
BUILDERS = (
    "BaseBuilder", "BaseModelBuilder", "BuilderContextBase", "GenericListBuilder", "ListBuilderContext", "Never",
    "Self",
)  # fmt: skip
KEPT = ("type", "enum", "pattern", "minLength", "minimum", "maximum", "required")


def definitions() -> list[dict[str, Any]]:
    """The CustomResourceDefinitions of KINDS."""
    models = _models()
    return [_definition(kind, getattr(models, kind).model_json_schema(by_alias=True)) for kind in KINDS]


def _definition(kind: str, schema: dict[str, Any]) -> dict[str, Any]:
    names = {"kind": kind, "plural": f"{kind.lower()}s", "singular": kind.lower(), "listKind": f"{kind}List"}
    validation = {
        "type": "object", "required": ["spec"],
        "properties": {"spec": structural(schema["properties"]["spec"], schema["$defs"])},
    }  # fmt: skip
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": validation}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names['plural']}.{GROUP}"},
        "spec": {"group": GROUP, "names": names, "scope": "Namespaced", "versions": [version]},
    }  # fmt: skip


def structural(schema: Any, parts: dict[str, Any]) -> dict[str, Any]:
    """The schema as an API server takes it: without references, and with one type at each place."""
    if "$ref" in schema:
        return structural(parts[schema["$ref"].rpartition("/")[2]], parts)
    choices = [one for one in schema.get("anyOf", ()) if one.get("type") != "null"]
    if len(choices) == 1:
        return structural(choices[0], parts)
    if choices:
        return {"x-kubernetes-int-or-string": True}
    found = {key: schema[key] for key in KEPT if key in schema}
    if "properties" in schema:
        found["properties"] = {name: structural(part, parts) for name, part in schema["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            found[key] = structural(schema[key], parts)
    return found if "type" in found else {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def _models() -> Any:
    place = roots.CACHE / f"operator-{roots.key(PACKAGE, HASH)}"
    with roots.making(place) as new:
        if new:
            with roots.wheels({PACKAGE: HASH}) as (wheel,):
                wheel.extract(MODELS, new)
    model, builder = pydantic.BaseModel, type("Builder", (), {"__class_getitem__": classmethod(lambda own, _: own)})
    replaced = {
        "cloudcoil": {"apimachinery": types.SimpleNamespace(ObjectMeta=dict, ListMeta=dict)},
        "cloudcoil.pydantic": {"BaseModel": model, **dict.fromkeys(BUILDERS, builder)},
        "cloudcoil.resources": {"Resource": model},
    }
    for name, content in replaced.items():
        made = types.ModuleType(name)
        vars(made).update(content)
        sys.modules[name] = made
    spec = importlib.util.spec_from_file_location("operator_models", place / MODELS)
    assert spec is not None and spec.loader is not None
    found = sys.modules["operator_models"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found
