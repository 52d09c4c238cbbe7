"""The complaints about a pod's annotations: what is refused, what nothing reads, and core limits without effect."""

from __future__ import annotations

import pytest

from vgpu.config.pods import Pod
from vgpu.config.settings import Settings
from vgpu.plugin.apiserver import pod_complaints, scheduler_protocols
from vgpu.plugin.apiserver.pod_complaints import Complaint, InForce

NODE = "gpu-node-1"
A = "GPU-8dcd427f-483b-b48f-d7e5-75fb19a52b76"
SHARE = {"main": {"tencent.com/vcuda-core": 40, "tencent.com/vcuda-memory": 8}}


def found(
    annotations: dict[str, str],
    limits: dict[str, dict[str, int]] = SHARE,
    in_force: InForce | None = None,
    dialect: str = "all",
) -> list[Complaint]:
    pod = Pod("u1", "default", "p", NODE, [], list(limits), annotations, limits)
    enabled = scheduler_protocols.enabled([dialect])
    return pod_complaints.complaints(pod, NODE, enabled, Settings({}), in_force or {})


@pytest.mark.parametrize(
    "annotations",
    [
        {},
        {"vgpu.io/core-limit": "80", "vgpu.io/priority": "0", "vgpu.io/use-gputype": "T4", "vgpu.io/numa-bind": "true"},
        {"tencent.com/vcuda-core-limit": "40"},
        {"nvidia.com/vcuda-core-limit": "100", "vgpu.io/core-limit": "100"},
        {"vgpu.io/policy": "spread", "hami.io/gpu-scheduler-policy": "topology-aware"},
        {"vgpu.io/placement": f"main={A}", "vgpu.io/placement-node": NODE, "vgpu.io/assigned": "true"},
        {"vgpu.io/grant-cores": "0" * 32},
        {"tencent.com/predicate-time": "1", "tencent.com/gpu-assigned": "true", "nvidia.com/gpu.deploy.driver": "x"},
        {"other.io/core-limit": "5", "nvidia.com/mig.config": "all-disabled"},
    ],
)
def test_what_is_read_or_not_ours_gets_no_complaint(annotations: dict[str, str]) -> None:
    assert found(annotations) == []


@pytest.mark.parametrize(
    ("annotations", "text"),
    [
        ({"vgpu.io/core_limit": "80"}, "unknown and ignored: did you mean vgpu.io/core-limit?"),
        ({"vgpu.io/corelimit": "80"}, "unknown and ignored: did you mean vgpu.io/core-limit?"),
        ({"vgpu.io/xyz": "80"}, "vgpu.io/xyz is unknown and ignored"),
        ({"vgpu.io/cores": "50"}, "a pod's amounts come from the limits in its spec"),
        ({"tencent.com/vcuda-core-limits": "50"}, "unknown and ignored: did you mean tencent.com/vcuda-core-limit?"),
        ({"nvidia.com/use-gpu-type": "T4"}, "unknown and ignored: did you mean nvidia.com/use-gputype?"),
        ({"tencent.com/vcuda-core-limit": "50", "vgpu.io/core-limit": "60"}, "ignored: vgpu.io/core-limit counts"),
        ({"nvidia.com/use-gputype": "T4", "vgpu.io/use-gputype": "A100"}, "ignored: vgpu.io/use-gputype counts"),
        ({"vgpu.io/policy": "densest"}, "expected binpack or spread, found densest"),
        ({"vgpu.io/numa-bind": "yes"}, "expected true or false, found yes"),
    ],
)
def test_what_nothing_reads_is_ignored(annotations: dict[str, str], text: str) -> None:
    ((reason, message),) = found(annotations)
    assert reason == "AnnotationIgnored"
    assert text in message


@pytest.mark.parametrize(
    ("annotations", "reason", "text"),
    [
        ({"vgpu.io/core-limit": "a lot"}, "AnnotationRefused", "vgpu.io/core-limit: expected a whole number"),
        ({"nvidia.com/priority": "-1"}, "AnnotationRefused", "nvidia.com/priority: expected a whole number"),
        ({"vgpu.io/placement": "main"}, "PlacementRefused", "annotation vgpu.io/placement: expected"),
    ],
)
def test_what_fails_the_start_is_refused(annotations: dict[str, str], reason: str, text: str) -> None:
    ((found_reason, message),) = found(annotations)
    assert found_reason == reason
    assert text in message


def test_a_placement_of_a_dialect_that_is_not_read() -> None:
    annotations = {"tencent.com/predicate-gpu-idx-0": "0", "tencent.com/predicate-node": NODE}
    assert found(annotations) == []
    ((reason, text),) = found(annotations, dialect="hami")
    assert reason == "AnnotationIgnored"
    assert "tencent.com/predicate-gpu-idx-" in text
    assert "kubernetes.dialects does not name tencent" in text


def test_a_core_limit_below_the_cores_names_what_is_in_force() -> None:
    limits = {**SHARE, "side": {"tencent.com/vcuda-core": 10}, "other": {}}
    assert found({"tencent.com/vcuda-core-limit": "20"}, limits) == [
        (
            "CoreLimitIgnored",
            "annotation tencent.com/vcuda-core-limit: 20 is below the 40 cores of container main, whose limit is 40",
        )
    ]


def test_whole_cards_have_no_core_limit() -> None:
    limit = {"vgpu.io/core-limit": "50"}
    ((reason, text),) = found(limit, {"main": {"tencent.com/vcuda-core": 200}, "other": {}})
    assert reason == "CoreLimitIgnored"
    assert text == "annotation vgpu.io/core-limit is ignored: whole cards have no core limit"
    assert found(limit, {"main": {"tencent.com/vcuda-core": 200}, "share": {"tencent.com/vcuda-core": 30}}) == []
    assert found({"vgpu.io/core-limit": "100"}, {"main": {"tencent.com/vcuda-core": 100}}) == [], "it has that"


def test_a_core_limit_that_the_start_did_not_know() -> None:
    limit = {"vgpu.io/core-limit": "80"}
    assert found(limit, in_force={"main": (40, 80)}) == []
    assert found(limit, in_force={"main": (40, 60)}) == [], "the administrator has set another one"
    ((reason, text),) = found(limit, in_force={"main": (40, 40)})
    assert reason == "CoreLimitNotInForce"
    assert "80 is not in force for container main, whose limit is 40" in text


def test_a_share_of_vgpus_is_known_once_it_is_claimed() -> None:
    limits = {"main": {"nvidia.com/gpu": 1}}
    assert found({"vgpu.io/core-limit": "20"}, limits) == []
    ((reason, text),) = found({"vgpu.io/core-limit": "20"}, limits, {"main": (30, 30)})
    assert reason == "CoreLimitIgnored"
    assert "below the 30 cores" in text


TWO = {"main": {"tencent.com/vcuda-core": 30, "tencent.com/vcuda-memory": 4}, "side": {"nvidia.com/gpu": 1},
       "mig": {"nvidia.com/mig-1g.5gb": 1}}  # fmt: skip
BOTH = {"main", "side"}


@pytest.mark.parametrize(
    ("running", "served", "settings", "expected"),
    [
        (BOTH, set(), {}, ["main"]),
        (BOTH, {"main"}, {}, []),
        (BOTH, {""}, {}, []),  # a runtime that names no containers
        (BOTH, {"side"}, {}, ["main"]),
        ({"side"}, set(), {}, []),  # an image is pulled; and another plugin's resource
        (set(), set(), {}, []),
        (BOTH, set(), {"resources.mode": "gpu"}, ["side"]),
        ({"mig"}, set(), {}, []),
        ({"mig"}, set(), {"resources.mig_strategy": "mixed"}, ["mig"]),
        (BOTH, set(), {"resources.core_name": "x.io/core", "resources.memory_name": "x.io/memory"}, []),
    ],
)
def test_a_container_that_runs_without_the_hook(
    running: set[str], served: set[str], settings: dict[str, object], expected: list[str]
) -> None:
    pod = Pod("u1", "default", "p", NODE, [], list(TWO), {}, TWO)
    made = list(pod_complaints.without_hook(pod, running, served, Settings(settings)))
    assert [complaint.text.split()[1] for complaint in made] == expected
    assert {complaint.reason for complaint in made} <= {"HookNotCalled"}
