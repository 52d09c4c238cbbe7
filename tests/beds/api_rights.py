"""Rights at the API server: what objects grant to a service account, and what its pods have asked for.

Belongs here: comparing the two. Roles are of one namespace, cluster roles of all. Names of resources are not compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

Object = dict[str, Any]
Right = tuple[str, str, str]  #: verb, <group>/<resource>[/<subresource>], and a namespace or "" for all


def granted(objects: Sequence[Object], account: str, namespace: str) -> set[Right]:
    """The rights that bindings among `objects` give by roles among them."""
    subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    bound = [one for one in objects if subject in one.get("subjects", ())]
    return {right for binding in bound for right in _rights(objects, binding)}


def _rights(objects: Sequence[Object], binding: Object) -> Iterator[Right]:
    where, of = binding["metadata"].get("namespace", ""), binding["roleRef"]
    for role in objects:
        if (role["kind"], role["metadata"]["name"]) != (of["kind"], of["name"]):
            continue
        if role["kind"] == "Role" and role["metadata"]["namespace"] != where:
            continue
        for rule in role["rules"]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    yield from ((verb, f"{group}/{resource}", where) for verb in rule["verbs"])


def refused(requests: Sequence[Object]) -> set[Right]:
    """The rights that were asked for in vain."""
    return {_asked(one) for one in requests if not _allowed(one)}


def unused(rights: set[Right], requests: Sequence[Object]) -> set[Right]:
    """Those of `rights` that nobody has asked for."""
    used = {_asked(one) for one in requests if _allowed(one)}
    everywhere = {(verb, resource, "") for verb, resource, _ in used}
    return rights - used - everywhere


def _allowed(request: Object) -> bool:
    return bool(request["annotations"]["authorization.k8s.io/decision"] == "allow")


def _asked(request: Object) -> Right:
    of = request["objectRef"]
    names = [of.get("apiGroup", ""), of["resource"], *([of["subresource"]] if "subresource" in of else [])]
    return request["verb"], "/".join(names), of.get("namespace", "")
