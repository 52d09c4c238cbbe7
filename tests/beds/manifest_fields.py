"""Whether all fields of an object exist in Kubernetes and have its types, strictly, as the API server reads them.

Belongs here: the comparison with the models of the package kubernetes. What an object says is its test's.
"""

from __future__ import annotations

from typing import Any

from kubernetes.client import models

QUANTITIES = {"V1ResourceRequirements.limits", "V1ResourceRequirements.requests"}  # numbers or texts
PLAIN = {"str": str, "int": int, "bool": bool, "bytes": str}  # bytes are written as base64


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
