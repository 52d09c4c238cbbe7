"""Reading objects of the API server."""

from __future__ import annotations

import pytest

from vgpu.config.settings import Settings
from vgpu.plugin.apiserver import pod_objects
from vgpu.plugin.apiserver.client import ApiError


def test_the_resources_that_make_a_pod_ours() -> None:
    names = pod_objects.card_resources(Settings({"resources.core_name": "a.b/cores", "resources.gpu_name": "a.b/gpu"}))
    assert {"a.b/cores", "a.b/gpu", "tencent.com/vcuda-memory", "nvidia.com/gpumem", "volcano.sh/vgpu-cores"} <= names
    assert "nvidia.com/gpu" not in names
    container = {"name": "c", "resources": {"limits": {"nvidia.com/mig-1g.5gb": "1"}}}
    pod = {"metadata": {"uid": "u", "namespace": "n", "name": "p"}, "spec": {"containers": [container]}}
    for strategy in ("single", "mixed"):
        found = pod_objects.parse(pod, pod_objects.card_resources(Settings({"resources.mig_strategy": strategy})))
        assert found is not None and found.requests_cards == (strategy == "mixed")


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ({"type": "ERROR", "object": {"code": 410}}, "gone"), ({"type": "ERROR", "object": {"code": 500}}, "refused"),
        ({"type": "ERROR"}, "refused"), ({"type": "ADDED"}, "garbage"), ({"type": [], "object": {}}, "garbage"),
        ({"type": "GONE", "object": {}}, "garbage"), ({}, "garbage"),
    ],
)  # fmt: skip
def test_events_that_end_a_watch(event: dict[str, object], kind: str) -> None:
    with pytest.raises(ApiError) as found:
        pod_objects.event_of(event, "/api/v1/pods")
    assert found.value.kind == kind


def test_an_event_has_a_type_and_an_object() -> None:
    assert pod_objects.event_of({"type": "DELETED", "object": {"a": 1}}, "/x") == ("DELETED", {"a": 1})


@pytest.mark.parametrize(
    ("status", "running"),
    [
        ({}, set()),
        ({"containerStatuses": [{"name": "a", "state": {"running": {"startedAt": "2026"}}}]}, {"a"}),
        ({"containerStatuses": [{"name": "a", "state": {"waiting": {}}}, {"name": "b", "state": {}}, 5]}, set()),
        ({"initContainerStatuses": [{"name": "i", "state": {"running": {"startedAt": "2026"}}}]}, {"i"}),
        ({"containerStatuses": "x", "initContainerStatuses": [{"name": "i", "state": {"terminated": {}}}]}, set()),
    ],
)
def test_the_containers_that_run(status: dict[str, object], running: set[str]) -> None:
    metadata = {"uid": "3f1c9a52-0b0e-4c53-9d3a-6f0f8f0f1a11", "namespace": "n", "name": "p"}
    made = pod_objects.parse({"metadata": metadata, "status": status}, frozenset())
    assert made is not None
    assert made.running == running
