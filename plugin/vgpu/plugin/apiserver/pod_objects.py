"""Pods as the API server returns them: the values that the hook's record and the schedulers' answers need.

Belongs here: JSON objects -> values. A malformed object becomes None and never raises an exception, because something
other than an API server may answer at the address; a malformed event of a watch is an ApiError, which ends the watch.
Pure: watching and patching belong to other modules.
"""

from __future__ import annotations

from vgpu.config import paths
from vgpu.config.dialects import resources
from vgpu.config.pods import Pod
from vgpu.config.request import MIG_RESOURCE
from vgpu.config.settings import Settings
from vgpu.node.service.quantities import quantity
from vgpu.plugin.apiserver.client import ApiError, Object

PREFIXES = ("vgpu.io/", "tencent.com/", "nvidia.com/", "hami.io/", "volcano.sh/")  #: annotations kept in the record
MAX_KEPT = 64 << 10  #: characters of one annotation in the record
ENDED = ("Succeeded", "Failed")


class PodObject:
    """A pod as the API server last returned it. `requests_cards`: its limits name a resource of cards.

    `running` are the names of its containers that run, `claims` those of its resource claims.
    """

    __slots__ = ("annotations", "claims", "labels", "phase", "pod", "requests_cards", "running", "version")

    def __init__(
        self,
        pod: Pod,
        phase: str,
        annotations: dict[str, str],
        labels: dict[str, str],
        requests_cards: bool,
        version: str,
        running: frozenset[str] = frozenset(),
        claims: frozenset[str] = frozenset(),
    ) -> None:
        self.claims = claims
        self.pod = pod
        self.phase = phase
        self.annotations = annotations
        self.labels = labels
        self.requests_cards = requests_cards
        self.version = version
        self.running = running

    @property
    def ended(self) -> bool:
        return self.phase in ENDED

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.pod.namespace}/pods/{self.pod.name}"


def card_resources(settings: Settings) -> frozenset[str]:
    """The resources by which a pod requests cards: the advertised ones, and those that dialects count with them.

    MIG instances are there by their family.
    """
    own = {settings.text(f"resources.{name}") for name in ("core_name", "memory_name", "gpu_name")}
    if settings.text("resources.mig_strategy") == "mixed":
        own.add(MIG_RESOURCE)
    return frozenset({*own, *resources.MEMORY, *resources.PERCENT, *resources.CORES})


def parse(value: object, names: frozenset[str]) -> PodObject | None:
    """The pod in `value`; None for anything else."""
    metadata, spec, status = _object(value, "metadata"), _object(value, "spec"), _object(value, "status")
    uid, namespace, name = (_text(metadata, key) for key in ("uid", "namespace", "name"))
    if not paths.is_pod_uid(uid) or not _plain(namespace) or not _plain(name):
        return None
    init, apps = _containers(spec, "initContainers"), _containers(spec, "containers")
    annotations = _texts(metadata, "annotations")
    limits = {container: amounts for container, amounts in {**init, **apps}.items() if amounts}
    kept = {key: text for key, text in annotations.items() if key.startswith(PREFIXES) and len(text) <= MAX_KEPT}
    pod = Pod(uid, namespace, name, _text(spec, "nodeName"), list(init), list(apps), kept, limits)
    requests_cards = any(names.intersection(map(resources.family, amounts)) for amounts in limits.values())
    labels = _texts(metadata, "labels")
    return PodObject(
        pod, _text(status, "phase"), annotations, labels, requests_cards, _text(metadata, "resourceVersion"),
        _running(status), _claims(spec, status),
    )  # fmt: skip


def _containers(spec: dict[str, object], key: str) -> dict[str, dict[str, int]]:
    """Container -> its limits of extended resources, in the order of the spec."""
    listed = spec.get(key)
    found = {}
    for item in listed if isinstance(listed, list) else []:
        name = _text(item, "name")
        limits = _object(_object(item, "resources"), "limits")
        amounts = {resource: quantity(text) for resource, text in limits.items() if "/" in resource}
        found[name] = {resource: amount for resource, amount in amounts.items() if amount is not None}
    return found


def _running(status: dict[str, object]) -> frozenset[str]:
    listed = [status.get(key) for key in ("initContainerStatuses", "containerStatuses")]
    items = [item for one in listed if isinstance(one, list) for item in one]
    return frozenset(_text(item, "name") for item in items if _object(_object(item, "state"), "running"))


def _claims(spec: dict[str, object], status: dict[str, object]) -> frozenset[str]:
    """The names of the resource claims: named by the pod, made from its templates, or for its extended resources."""
    lists = [
        spec.get("resourceClaims"),
        status.get("resourceClaimStatuses"),
        [status.get("extendedResourceClaimStatus")],
    ]
    items = [item for one in lists if isinstance(one, list) for item in one]
    return frozenset(name for item in items if _plain(name := _text(item, "resourceClaimName")))


def event_of(event: Object, path: str) -> tuple[str, Object]:
    """(type, object) of one event of the watch of `path`; ApiError for the server's errors and for anything else."""
    kind, value = event.get("type"), event.get("object")
    if kind == "ERROR":
        code = value.get("code") if isinstance(value, dict) else None
        raise ApiError("gone" if code == 410 else "refused", f"watch of {path}: error {code}")
    if kind not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK") or not isinstance(value, dict):
        raise ApiError("garbage", f"watch of {path}: expected an event")
    return str(kind), value


def version_of(value: object) -> str:
    """The resourceVersion of a list or an object."""
    return _text(_object(value, "metadata"), "resourceVersion")


def labels_of(value: object) -> dict[str, str]:
    return _texts(_object(value, "metadata"), "labels")


def annotations_of(value: object) -> dict[str, str]:
    return _texts(_object(value, "metadata"), "annotations")


def _object(value: object, key: str) -> dict[str, object]:
    inner = value.get(key) if isinstance(value, dict) else None
    return inner if isinstance(inner, dict) else {}


def _text(value: object, key: str) -> str:
    inner = value.get(key) if isinstance(value, dict) else None
    return inner if isinstance(inner, str) else ""


def _texts(value: object, key: str) -> dict[str, str]:
    return {name: text for name, text in _object(value, key).items() if isinstance(text, str)}


def _plain(text: str) -> bool:
    """Whether `text` is a name of Kubernetes, and so may be part of a path of the API."""
    return 0 < len(text) <= 253 and all(c.isascii() and (c.isalnum() or c in "-.") for c in text) and text != ".."
