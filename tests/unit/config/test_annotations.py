"""Names of annotations: which are unknown, which are misspelled, and which name is the nearest."""

from __future__ import annotations

import pytest

from vgpu.config import annotations, grants, request
from vgpu.config.dialects import placements, registration

DISTANCES = [
    ("", "", 0), ("cores", "", 5), ("cores", "cores", 0), ("core", "cores", 1), ("corse", "cores", 1),
    ("coers", "cores", 1), ("croes", "cores", 1), ("memroy", "memory", 1), ("core-limt", "core-limit", 1),
    ("limits", "gpus", 5),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other", "expected"), DISTANCES)
def test_distance(one: str, other: str, expected: int) -> None:
    assert annotations.distance(one, other) == annotations.distance(other, one) == expected


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("vgpu.io/core", "vgpu.io/cores"),
        ("vgpu.io/Cores", "vgpu.io/cores"),
        ("vgpu.io/core-limt", "vgpu.io/core-limit"),
        ("vgpu.io/corelimit", "vgpu.io/core-limit"),
        ("vgpu.io/core_limit", "vgpu.io/core-limit"),
        ("vgpu.io/mem", "vgpu.io/memory"),
        ("vgpu.io/gpu", "vgpu.io/gpus"),
        ("vgpu.io/prio", "vgpu.io/priority"),
        ("vgpu.io/use-gpuuid", "vgpu.io/use-gpuuuid"),
        ("vpgu.io/cores", "vgpu.io/cores"),
        ("nvidia.com/vcuda-core-limt", "nvidia.com/vcuda-core-limit"),
        ("tencent.com/vcuda-core-limits", "tencent.com/vcuda-core-limit"),
        ("hami.io/gpu-scheduler-polcy", "hami.io/gpu-scheduler-policy"),
        ("vgpu.io/something-else", ""),
        ("vgpu.io/", ""),
        ("vgpu.io/" + "x" * 5000, ""),
    ],
)
def test_nearest(key: str, near: str) -> None:
    assert annotations.nearest(key) == near


def test_every_annotation_that_is_read_is_known() -> None:
    read = {
        request.CORES, request.MEMORY, request.GPUS, *request.CORE_LIMITS, *request.PRIORITIES, *request.POLICIES,
        *(prefix + name for prefix in request.WISH_PREFIXES for name in request.WISHES),
        *grants.ANNOTATIONS.values(), placements.OWN, placements.OWN_NODE, registration.OWN,
    }  # fmt: skip
    assert annotations.misspelled(dict.fromkeys(read, "")) == []
    assert {key for key in read if key.startswith("vgpu.io/")} <= {*annotations.NAMES, *annotations.WRITTEN}


def test_other_projects_own_annotations_are_no_mistakes() -> None:
    foreign = ("nvidia.com/gpu.deploy.driver", "nvidia.com/vcuda-core", "nvidia.com/gpu", "x/y",
               "hami.io/vgpu-node", "hami.io/node-scheduler-policy", "tencent.com/predicate-node",
               "io.podman.annotations/x", "x")  # fmt: skip
    assert annotations.misspelled(dict.fromkeys(foreign, "")) == []


def test_misspelled() -> None:
    given = {"vgpu.io/core": "", "vgpu.io/cores": "", "nvidia.com/vcuda-core-limt": "", "a" * 5000: ""}
    assert annotations.unknown(given) == ["vgpu.io/core"]
    assert annotations.misspelled(given) == ["vgpu.io/core", "nvidia.com/vcuda-core-limt"]
