"""Kubernetes 1.36's own Go types of resource.k8s.io/v1: definitions of custom resources, and a strict decoder.

Belongs here: what data/kubernetes/resource.go says of the types (kubernetes_go.py). Nothing of a schema is written by
hand.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

import kubernetes_go


def definitions(dropped: Collection[str] = ()) -> list[dict[str, Any]]:
    """A CustomResourceDefinition for each kind. Without the fields whose paths end as one of `dropped`."""
    found = json.loads(kubernetes_go.run("resource", "definitions"))
    return [_without(one, tuple(f".{end}" for end in dropped)) for one in found]


def _without(schema: Any, ends: tuple[str, ...], path: str = "") -> Any:
    """The path of a field has no `properties` and no `items`."""
    if isinstance(schema, list):
        return [_without(one, ends, path) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {}
    for key, one in schema.items():
        inner = path if key in ("properties", "items", "additionalProperties") else f"{path}.{key}"
        if not inner.endswith(ends or "\0"):
            found[key] = _without(one, ends, inner)
    return found


def errors(objects: Sequence[Any]) -> list[str]:
    """For each object what a server with strict validation of fields says; "" for nothing."""
    lines = "".join(f"{json.dumps(one)}\n" for one in objects)
    return kubernetes_go.run("resource", "decode", given=lines).splitlines()
