"""The messages between kube-scheduler and an extender: `k8s.io/kube-scheduler/extender/v1`, and pods as far as needed.

Belongs here: types and their coding. kube-scheduler since 1.17 writes field names with capitals, older ones wrote them
in lower case; both are read, and answers have capitals, since Go reads names without regard to case. Nodes are kept as
the bytes that came, because an answer to a scheduler that sent nodes repeats them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from vgpu.config.errors import VgpuError


class Meta(msgspec.Struct):
    name: str = ""
    namespace: str = ""
    uid: str = ""


class Named(msgspec.Struct):
    """A pod or node of which only its metadata is read."""

    metadata: Meta = msgspec.field(default_factory=Meta)


@dataclass
class ExtenderArgs:
    """`nodes` as they came, or `names`."""

    pod: Named
    nodes: list[msgspec.Raw] | None = None
    names: list[str] | None = None


@dataclass
class BindingArgs:
    name: str = ""
    namespace: str = ""
    uid: str = ""
    node: str = ""


@dataclass
class Victims:
    """A candidate's victims by uid."""

    uids: list[str]
    violations: int = 0


@dataclass
class PreemptionArgs:
    pod: Named
    victims: dict[str, Victims]


class FilterResult(msgspec.Struct, omit_defaults=True):
    """`NodeNames` or `Nodes` are the nodes that fit, in the form in which they were asked for."""

    Nodes: dict[str, Any] | None = None
    NodeNames: list[str] | None = None
    FailedNodes: dict[str, str] = {}
    FailedAndUnresolvableNodes: dict[str, str] = {}
    Error: str = ""


class HostPriority(msgspec.Struct):
    Host: str
    Score: int


_DECODERS: dict[Any, msgspec.json.Decoder[Any]] = {}


def filter_args(body: bytes) -> ExtenderArgs:
    """The arguments of filter, prioritize and the dry run; VgpuError for anything else."""
    found = _lowered(body)
    pod = _part(found, "pod", Named)
    nodes, names = _part(found, "nodes", dict[str, msgspec.Raw]), _part(found, "nodenames", list[str])
    if pod is None or (nodes is None and names is None):
        raise VgpuError("ExtenderArgs", expected="Pod, and Nodes or NodeNames", found=", ".join(sorted(found)) or "{}")
    items = _part(nodes, "items", list[msgspec.Raw]) or [] if nodes is not None else None
    return ExtenderArgs(pod, items, names)


def binding_args(body: bytes) -> BindingArgs:
    found = _lowered(body)
    parts = [_part(found, key, str) or "" for key in ("podname", "podnamespace", "poduid", "node")]
    if not parts[2] or not parts[3]:
        raise VgpuError("ExtenderBindingArgs", expected="PodUID and Node", found=", ".join(sorted(found)) or "{}")
    return BindingArgs(*parts)


def preemption_args(body: bytes) -> PreemptionArgs:
    """Victims come as whole pods, or only as uids where the extender is nodeCacheCapable."""
    found = _lowered(body)
    pod = _part(found, "pod", Named)
    whole = _part(found, "nodenametovictims", dict[str, Any]) or {}
    meta = _part(found, "nodenametometavictims", dict[str, Any]) or {}
    if pod is None:
        raise VgpuError("ExtenderPreemptionArgs", expected="Pod", found=", ".join(sorted(found)) or "{}")
    return PreemptionArgs(pod, {name: _victims(name, value) for name, value in {**whole, **meta}.items()})


def preemption_result(victims: dict[str, Victims]) -> bytes:
    nodes = {
        name: {"Pods": [{"UID": uid} for uid in one.uids], "NumPDBViolations": one.violations}
        for name, one in victims.items()
    }
    return encode({"NodeNameToMetaVictims": nodes})


def name_of(item: msgspec.Raw) -> str:
    """The name of a node as it came."""
    try:
        return _decoder(Named).decode(item).metadata.name  # type: ignore[no-any-return]
    except msgspec.MsgspecError as error:
        raise VgpuError("a node of ExtenderArgs", expected="an object with metadata.name", found=str(error)) from None


def encode(value: object) -> bytes:
    return msgspec.json.encode(value)


def decode(body: bytes, kind: Any, what: str) -> Any:
    """`body` as a `kind`; VgpuError names `what` and the wrong field."""
    try:
        return _decoder(kind).decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise VgpuError(what, expected="its JSON form", found=str(error)) from None


def _lowered(body: bytes) -> dict[str, msgspec.Raw]:
    """The parts of an object by names in lower case."""
    found = decode(body, dict[str, msgspec.Raw], "body")
    return {key.lower(): value for key, value in found.items()}


def _part(found: dict[str, msgspec.Raw], key: str, kind: Any) -> Any:
    value = bytes(found.get(key, b"null"))
    return None if value == b"null" else decode(value, kind, key)


def _victims(name: str, value: Any) -> Victims:
    fields = {key.lower(): item for key, item in value.items()} if isinstance(value, dict) else {}
    pods, violations = fields.get("pods") or [], fields.get("numpdbviolations", 0)
    if not isinstance(value, dict) or not isinstance(pods, list) or type(violations) is not int:
        raise VgpuError(f"victims on {name}", expected="Pods and NumPDBViolations", found=str(fields)[:200])
    return Victims([_uid(name, pod) for pod in pods], violations)


def _uid(node: str, pod: Any) -> str:
    meta = pod.get("metadata", pod) if isinstance(pod, dict) else None
    uid = {key.lower(): item for key, item in meta.items()}.get("uid") if isinstance(meta, dict) else None
    if not isinstance(uid, str) or not uid:
        raise VgpuError(f"a victim on {node}", expected="a pod with a uid", found=str(pod)[:200])
    return uid


def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    found = _DECODERS.get(kind)
    if found is None:
        found = _DECODERS[kind] = msgspec.json.Decoder(kind)
    return found
