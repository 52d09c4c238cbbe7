"""Requests from annotations: accepted values, and the error line for all others."""

from __future__ import annotations

import pytest

from vgpu.config import request
from vgpu.config.errors import VgpuError
from vgpu.config.request import Request, Wishes

GIB = 1 << 30
MIB = 1 << 20


def annotations(**values: str) -> dict[str, str]:
    return {"vgpu.io/" + name.replace("_", "-"): value for name, value in values.items()}


ACCEPTED = [
    (annotations(cores="30", memory="2Gi"), (1, 30, 2 * GIB, 30), "1 card, 30 cores and 2048 MiB"),
    (annotations(cores="1", memory="1"), (1, 1, MIB, 1), "1 card, 1 cores and 1 MiB"),
    (annotations(cores="99", memory="1Ti"), (1, 99, 1 << 40, 99), "1 card, 99 cores and 1048576 MiB"),
    (annotations(cores="30", memory="2Gi", gpus="2"), (2, 30, 2 * GIB, 30), "2 cards, 30 cores and 2048 MiB each"),
    (annotations(cores="30", memory="2Gi", core_limit="80"), (1, 30, 2 * GIB, 80), "1 card, 30 cores and 2048 MiB"),
    (annotations(cores="100"), (1, 100, 0, 100), "1 card, whole"),
    (annotations(cores="100", memory="40Gi"), (1, 100, 40 * GIB, 100), "1 card, whole"),
    (annotations(cores="300"), (3, 100, 0, 100), "3 cards, whole"),
    (annotations(cores="300", gpus="3"), (3, 100, 0, 100), "3 cards, whole"),
    (annotations(cores="100", gpus="3"), (3, 100, 0, 100), "3 cards, whole"),
    (annotations(gpus="4"), (4, 100, 0, 100), "4 cards, whole"),
    (annotations(cores="3200"), (32, 100, 0, 100), "32 cards, whole"),
    (annotations(cores="100", core_limit="50"), (1, 100, 0, 100), "1 card, whole"),
]


@pytest.mark.parametrize(("given", "amounts", "text"), ACCEPTED)
def test_accepts(given: dict[str, str], amounts: tuple[int, ...], text: str) -> None:
    assert request.is_standalone(given)
    made = request.from_annotations(given)
    assert (made.gpus, made.cores, made.memory, made.core_limit) == amounts
    assert made.exclusive == (made.cores == 100)
    assert made.describe() == text


REFUSED = [
    (
        annotations(cores="150", memory="1Gi"),
        "vgpu.io/cores: expected 1 to 99 for a share of one card, or a multiple of 100, found 150;",
    ),
    (
        annotations(cores="101"),
        "vgpu.io/cores: expected 1 to 99 for a share of one card, or a multiple of 100, found 101;",
    ),
    (annotations(cores="250", gpus="2"), "vgpu.io/cores: expected 1 to 99"),
    (annotations(cores="300", gpus="2"), "vgpu.io/cores: expected 200 for 2 whole cards, found 300"),
    (annotations(cores="0", memory="1Gi"), "vgpu.io/cores: expected a whole number from 1 to 3200, found 0"),
    (annotations(cores="-30", memory="1Gi"), "vgpu.io/cores: expected a whole number from 1 to 3200, found -30"),
    (annotations(cores="3300"), "vgpu.io/cores: expected a whole number from 1 to 3200, found 3300"),
    (annotations(cores="9" * 5000), "vgpu.io/cores: expected a whole number from 1 to 3200, found 999"),
    (annotations(cores="30%", memory="1Gi"), "vgpu.io/cores: expected a whole number"),
    (annotations(cores="30.0", memory="1Gi"), "vgpu.io/cores: expected a whole number"),
    (annotations(cores="", memory="1Gi"), "vgpu.io/cores: expected a whole number from 1 to 3200, found "),
    (annotations(cores=" 30", memory="1Gi"), "vgpu.io/cores: expected a whole number"),
    (annotations(cores="٣٠", memory="1Gi"), "vgpu.io/cores: expected a whole number"),
    (annotations(cores="1\n0", memory="1Gi"), "vgpu.io/cores: expected a whole number from 1 to 3200, found 1\\x0a0"),
    (annotations(gpus="0"), "vgpu.io/gpus: expected a whole number from 1 to 32, found 0"),
    (annotations(gpus="33"), "vgpu.io/gpus: expected a whole number from 1 to 32, found 33"),
    (annotations(gpus="-1"), "vgpu.io/gpus: expected a whole number from 1 to 32, found -1"),
    (
        annotations(cores="30"),
        "vgpu.io/memory: expected vgpu.io/memory beside vgpu.io/cores=30, found nothing; a share",
    ),
    (
        annotations(memory="1Gi"),
        "vgpu.io/cores: expected vgpu.io/cores beside vgpu.io/memory, found nothing; a share needs",
    ),
    (annotations(memory="1Gi", gpus="2"), "vgpu.io/cores: expected vgpu.io/cores beside vgpu.io/memory, found nothing"),
    (
        annotations(cores="30", memory="1Gi", core_limit="20"),
        "vgpu.io/core-limit: expected 30 (the share) to 100, found 20",
    ),
    (
        annotations(cores="30", memory="1Gi", core_limit="150"),
        "vgpu.io/core-limit: expected a whole number from 1 to 100",
    ),
    (annotations(cores="30", memory="0"), "vgpu.io/memory: expected a size such as 2Gi, 1.5Gi, 100Mi"),
    (annotations(cores="30", memory="-1Gi"), "vgpu.io/memory: expected a size such as"),
    (annotations(cores="30", memory="1.Gi"), "vgpu.io/memory: expected a size such as"),
    (annotations(cores="30", memory=""), "vgpu.io/memory: expected a size such as"),
    (annotations(cores="30", memory="Gi"), "vgpu.io/memory: expected a size such as"),
    (annotations(cores="30", memory="1 Gi"), "vgpu.io/memory: expected a size such as"),
    (annotations(cores="30", memory="1GG"), "vgpu.io/memory: expected a size such as"),
    (annotations(cores="30", memory="9" * 18 + "Ti"), "vgpu.io/memory: expected at most 1024 TiB, found 999"),
    (annotations(cores="30", memory="9" * 19), "vgpu.io/memory: expected a size such as"),
    (annotations(cores="30", memory="²Gi"), "vgpu.io/memory: expected a size such as"),
]


@pytest.mark.parametrize(("given", "line"), REFUSED)
def test_refuses_with_the_key(given: dict[str, str], line: str) -> None:
    with pytest.raises(VgpuError) as caught:
        request.from_annotations(given)
    assert str(caught.value).startswith(line)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("3000", 3000 * MIB),
        ("1Ki", 1024),
        ("1M", 10**6),
        ("1Mi", MIB),
        ("1MiB", MIB),
        ("2GB", 2 * 10**9),
        ("1024Ti", 1 << 50),
        ("1.5Gi", 3 << 29),
        ("0.3k", 300),
    ],
)
def test_parse_size(text: str, size: int) -> None:
    assert request.parse_size(text, "x") == size


def test_annotations_without_an_amount_are_no_request() -> None:
    assert not request.is_standalone({})
    assert not request.is_standalone(annotations(core_limit="50", policy="spread"))


@pytest.mark.parametrize("key", ["vgpu.io/core-limit", "tencent.com/vcuda-core-limit", "nvidia.com/vcuda-core-limit"])
def test_core_limit_of_every_dialect(key: str) -> None:
    assert request.core_limit_from({key: "80"}, 30) == 80
    assert request.core_limit_from({}, 30) == 30
    with pytest.raises(VgpuError, match=f"^{key}: expected 30"):
        request.core_limit_from({key: "10"}, 30)


def wishes(made: Wishes) -> tuple[object, ...]:
    return (made.use_types, made.nouse_types, made.use_uuids, made.nouse_uuids, made.numa, made.policy)


WISHES = [
    ({}, ((), (), (), (), False, "")),
    ({"nvidia.com/use-gputype": "A100, h100,"}, (("a100", "h100"), (), (), (), False, "")),
    ({"vgpu.io/nouse-gputype": "T4"}, ((), ("t4",), (), (), False, "")),
    ({"nvidia.com/use-gpuuuid": "GPU-A,GPU-b"}, ((), (), ("GPU-A", "GPU-b"), (), False, "")),
    ({"nvidia.com/nouse-gpuuuid": "GPU-A"}, ((), (), (), ("GPU-A",), False, "")),
    ({"vgpu.io/use-gputype": "a", "nvidia.com/use-gputype": "b"}, (("a",), (), (), (), False, "")),
    ({"nvidia.com/numa-bind": "true"}, ((), (), (), (), True, "")),
    ({"nvidia.com/numa-bind": "yes"}, ((), (), (), (), False, "")),
    ({"hami.io/gpu-scheduler-policy": "spread"}, ((), (), (), (), False, "spread")),
    ({"vgpu.io/policy": "binpack", "hami.io/gpu-scheduler-policy": "spread"}, ((), (), (), (), False, "binpack")),
    ({"hami.io/gpu-scheduler-policy": "topology-aware"}, ((), (), (), (), False, "")),
]


@pytest.mark.parametrize(("given", "expected"), WISHES)
def test_wishes(given: dict[str, str], expected: tuple[object, ...]) -> None:
    assert wishes(request.wishes_from(given)) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, 1),
        ({"nvidia.com/priority": "0"}, 0),
        ({"nvidia.com/priority": "7", "vgpu.io/priority": "0"}, 0),
        ({"vgpu.io/priority": "1", "nvidia.com/priority": "0"}, 1),
    ],
)
def test_priority_is_low_by_default(given: dict[str, str], expected: int) -> None:
    assert request.wishes_from(given).priority == expected


@pytest.mark.parametrize("text", ["", "-1", "high", "1.0", "9" * 10])
def test_what_is_no_priority_is_refused(text: str) -> None:
    with pytest.raises(VgpuError, match=r"^nvidia\.com/priority: expected a whole number from 0"):
        request.wishes_from({"nvidia.com/priority": text})


@pytest.mark.parametrize("text", ["a," * 65, "a" * 5000])
def test_wishes_are_bounded(text: str) -> None:
    with pytest.raises(VgpuError, match=r"^nvidia\.com/use-gpuuuid: expected at most 64 items"):
        request.wishes_from({"nvidia.com/use-gpuuuid": text})


def test_a_share_is_its_own_limit_by_default() -> None:
    assert Request(1, 30, GIB).core_limit == 30
    assert Request(1, 30, GIB, 60).core_limit == 60


def test_a_request_fixed_on_cards_is_another_one() -> None:
    one = request.Request(2, 30, GIB, 50, request.Wishes(numa=True), (), ("GPU-1",), 0, {"GPU-1": GIB, "GPU-2": 1})
    other = one.fixed_on(("GPU-2", "GPU-1"))
    changed = {name for name in request.Request.__slots__ if getattr(one, name) != getattr(other, name)}
    assert (changed, one.fixed, other.fixed) == ({"fixed"}, (), ("GPU-2", "GPU-1"))
