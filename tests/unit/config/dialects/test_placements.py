"""Placement annotations: values of each scheduler, wrong values, and vgpu's own, written and read back."""

from __future__ import annotations

import random
import string

import pytest

from vgpu.config.dialects import placements
from vgpu.config.dialects.placements import Chosen
from vgpu.config.errors import VgpuError
from vgpu.config.pods import Pod

NODE = "gpu-node-1"
A = "GPU-8dcd427f-483b-b48f-d7e5-75fb19a52b76"
B = "GPU-ebe7c3f7-303d-558d-435e-99a160631fe4"
C = "GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448"
MIB = 1 << 20
Cards = dict[str, tuple[Chosen, ...]]


def pod(
    annotations: dict[str, str],
    containers: tuple[str, ...] = ("main", "side"),
    init: tuple[str, ...] = (),
    limits: dict[str, dict[str, int]] | None = None,
) -> Pod:
    return Pod("uid", "default", "p", NODE, list(init), list(containers), annotations, limits or {})


def cards_of(subject: Pod) -> Cards:
    """The cards of the one placement of `subject`."""
    (placement,) = placements.read(subject, ["all"])
    return placement.cards


# Values of their schedulers


def test_gpu_admission() -> None:
    subject = pod(
        {
            "tencent.com/predicate-time": "1594110000000000000",
            "tencent.com/predicate-node": NODE,
            "tencent.com/gpu-assigned": "false",
            "tencent.com/predicate-gpu-idx-0": "0",
            "tencent.com/predicate-gpu-idx-1": "1,3",
        },
        init=("setup",),
    )
    assert cards_of(subject) == {"main": (Chosen("", 0),), "side": (Chosen("", 1), Chosen("", 3))}


def test_its_fork() -> None:
    subject = pod(
        {
            "nvidia.com/predicate-time": "1700000000000000000",
            "nvidia.com/predicate-node": NODE,
            "nvidia.com/gpu-assigned": "false",
            "nvidia.com/predicate-gpu-idx-1": "2",
            "nvidia.com/vcuda-core-limit": "50",
            "nvidia.com/use-gputype": "A100",
        }
    )
    assert cards_of(subject) == {"side": (Chosen("", 2),)}


def hami(value: str) -> dict[str, str]:
    return {
        "hami.io/vgpu-node": NODE,
        "hami.io/vgpu-time": "1716199325",
        "hami.io/bind-phase": "allocating",
        "hami.io/bind-time": "1716199325",
        "hami.io/vgpu-devices-to-allocate": ";;;",  # a node's plugin consumes this one; the other is never erased
        "hami.io/vgpu-devices-allocated": value,
    }


def test_hami() -> None:
    value = f"{A},NVIDIA,3000,30:;;{B},NVIDIA,5000,0:{C},NVIDIA,5000,0:;"
    subject = pod(hami(value), containers=("main", "side"), init=("setup",))
    assert cards_of(subject) == {
        "setup": (Chosen(A, -1, 30, 3000 * MIB),),
        "side": (Chosen(B, -1, 0, 5000 * MIB), Chosen(C, -1, 0, 5000 * MIB)),
    }


def test_hami_names_a_mig_instance_by_its_uuid_alone() -> None:
    instance = A.replace("GPU", "MIG")
    value = f"{instance},NVIDIA,3000,30:;;"
    assert cards_of(pod(hami(value)))["main"] == (Chosen(instance, -1, 30, 3000 * MIB),)
    for other in (f"MIG-{A}/1/0", f"{A}[0-1]"):
        with pytest.raises(VgpuError, match=r"vgpu-devices-allocated: expected a card's UUID, GPU-\.\.\. or MIG-"):
            placements.read(pod(hami(value.replace(instance, other))), ["hami"])


def test_hami_before_it_knew_init_containers() -> None:
    assert cards_of(pod(hami(f";{A},NVIDIA,3000,30:;"), init=("setup",))) == {"side": (Chosen(A, -1, 30, 3000 * MIB),)}


def volcano(value: str) -> dict[str, str]:
    return {
        "volcano.sh/vgpu-node": NODE,
        "volcano.sh/vgpu-time": "1716199325",
        "volcano.sh/bind-phase": "allocating",
        "volcano.sh/devices-to-allocate": value,
        "volcano.sh/vgpu-ids-new": value,
    }


ASKS = {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 1024}


@pytest.mark.parametrize("asking", [("main", "side"), ()])
def test_volcano(asking: tuple[str, ...]) -> None:
    subject = pod(
        volcano(f"{A},NVIDIA,1024,50:;{B},NVIDIA,1024,50:"), init=("setup",), limits=dict.fromkeys(asking, ASKS)
    )
    assert cards_of(subject) == {"main": (Chosen(A, -1, 50, 1024 * MIB),), "side": (Chosen(B, -1, 50, 1024 * MIB),)}


def test_volcano_counts_only_containers_that_ask() -> None:
    subject = pod(volcano(f"{A},NVIDIA,1024,50:"), limits={"side": ASKS, "main": {"nvidia.com/other": 1}})
    assert cards_of(subject) == {"side": (Chosen(A, -1, 50, 1024 * MIB),)}


@pytest.mark.parametrize("key", ["nvidia.com/pre-allocated", "nvidia.com/real-allocated"])
def test_vgpu_manager(key: str) -> None:
    subject = pod({"nvidia.com/predicate-node": NODE, key: f"main[0_{A}_30_4096,1_{B}_30_4096];side[]"})
    assert cards_of(subject) == {"main": (Chosen(A, -1, 30, 4096 * MIB), Chosen(B, -1, 30, 4096 * MIB)), "side": ()}


def test_what_vgpu_managers_scheduler_wrote_comes_first() -> None:
    subject = pod({"nvidia.com/pre-allocated": f"main[0_{A}_30_1]", "nvidia.com/real-allocated": f"main[1_{B}_30_1]"})
    assert cards_of(subject) == {"main": (Chosen(A, -1, 30, MIB),)}


def test_our_own() -> None:
    value = f"setup={A};main={A}:30:4096,{B}:30:4096"
    subject = pod({"vgpu.io/placement": value, "vgpu.io/placement-node": NODE}, init=("setup",))
    assert cards_of(subject) == {
        "setup": (Chosen(A),),
        "main": (Chosen(A, -1, 30, 4096 * MIB), Chosen(B, -1, 30, 4096 * MIB)),
    }


def written(cards: Cards) -> str:
    """The annotation in its documented form: `main=GPU-...:30:4096,GPU-...;side=GPU-...`; cores, MiB optional."""

    def one(chosen: Chosen) -> str:
        amounts = chosen.cores or chosen.memory
        return f"{chosen.uuid}:{chosen.cores}:{chosen.memory // MIB}" if amounts else chosen.uuid

    return ";".join(f"{name}={','.join(map(one, chosen))}" for name, chosen in cards.items())


@pytest.mark.parametrize("seed", range(20))
def test_our_own_there_and_back(seed: int) -> None:
    dice = random.Random(seed)
    names = [f"c{at}-" + "".join(dice.choices(string.ascii_lowercase + "-", k=5)) + "x" for at in range(8)]
    cards: Cards = {}
    for name in dice.sample(names, dice.randint(1, 8)):
        cores = dice.choice([0, 1, 30, 100])
        memory = dice.choice([0, MIB, 80 << 30])
        chosen = [Chosen(f"GPU-{dice.getrandbits(128):032x}", -1, cores, memory) for _ in range(dice.randint(1, 8))]
        cards[name] = tuple(chosen)
    assert cards_of(pod({"vgpu.io/placement": written(cards)}, tuple(names))) == cards


def test_where_containers_are_not_known_only_names_are_read() -> None:
    """A runtime passes annotations on without the pod's containers."""
    annotations = {**hami(f"{A},NVIDIA,1,1:;"), **volcano(""), "tencent.com/predicate-gpu-idx-0": "0"}
    subject = Pod("uid", "", "", NODE, [], [], {**annotations, "vgpu.io/placement": f"main={A}"}, {})
    assert cards_of(subject) == {"main": (Chosen(A),)}
    assert placements.by_index(annotations)
    assert not placements.by_index({"vgpu.io/placement": "", "nvidia.com/pre-allocated": ""})


def test_only_the_dialects_named_are_read() -> None:
    subject = pod({**hami("not read;"), "vgpu.io/placement": f"main={A}"})
    assert [item.dialect for item in placements.read(subject, ["vgpu", "tencent"])] == ["vgpu"]
    assert placements.read(subject, []) == []
    with pytest.raises(VgpuError, match="hami"):
        placements.read(subject, ["all"])


def test_pods_without_a_placement() -> None:
    empty = {"hami.io/vgpu-devices-allocated": "", "vgpu.io/placement": "", "nvidia.com/pre-allocated": ""}
    for others in ({}, empty, {"nvidia.com/use-gputype": "A100", "hami.io/vgpu-node": "elsewhere"}):
        assert placements.read(pod(others), ["all"]) == []


# Choices


def test_choices_of_one_container() -> None:
    subject = pod({**hami(f"{A},NVIDIA,3000,30:;;"), "tencent.com/predicate-gpu-idx-0": "0"})
    found = placements.choices(subject, "main", NODE, ["all"])
    assert [(choice.key, choice.cards) for choice in found] == [
        ("tencent.com/predicate-gpu-idx-0", (Chosen("", 0),)),
        ("hami.io/vgpu-devices-allocated", (Chosen(A, -1, 30, 3000 * MIB),)),
    ]
    assert placements.choices(subject, "side", NODE, ["all"]) == []


@pytest.mark.parametrize(
    "annotations",
    [
        {"tencent.com/predicate-gpu-idx-0": "0", "tencent.com/predicate-node": "other"},
        {"nvidia.com/predicate-gpu-idx-0": "0", "nvidia.com/predicate-node": "other"},
        {**hami(f"{A},NVIDIA,3000,30:;;"), "hami.io/vgpu-node": "other"},
        {**volcano(f"{A},NVIDIA,3000,30:;"), "volcano.sh/vgpu-node": "other"},
        {"nvidia.com/pre-allocated": f"main[0_{A}_1_1]", "nvidia.com/predicate-node": "other"},
        {"vgpu.io/placement": f"main={A}", "vgpu.io/placement-node": "other"},
    ],
    ids=lambda annotations: next(iter(annotations)),
)
@pytest.mark.parametrize("container", ["main", "side"])
def test_a_placement_on_another_node_is_refused(annotations: dict[str, str], container: str) -> None:
    with pytest.raises(VgpuError, match=rf"node: expected this node, {NODE}, .*, found other; delete the pod"):
        placements.choices(pod(annotations), container, NODE, ["all"])


# Wrong values

GARBAGE = [
    " ", "\n", "\0", "x", "0,", ",0", "-1", "+1", "1e1", "٣", "³", "0x1", "32", "99999999999999999999", "0;1", "0 1",
    "[]", "{}", ";;;;;;", ":::", ",,,", "=", "main=", "=x", "main=GPU-", "main[", "main]", "main[]]", "[0_x_1_1]",
    "\ud800",
]  # fmt: skip
TEXTS = [
    "hami.io/vgpu-devices-allocated", "volcano.sh/vgpu-ids-new", "nvidia.com/pre-allocated", "vgpu.io/placement",
    "tencent.com/predicate-gpu-idx-0", "nvidia.com/predicate-gpu-idx-1",
]  # fmt: skip


@pytest.mark.parametrize("key", TEXTS)
@pytest.mark.parametrize("value", GARBAGE)
def test_garbage_names_its_annotation(key: str, value: str) -> None:
    if key == "hami.io/vgpu-devices-allocated" and value == ":::":
        value = ":,:;"
    with pytest.raises(VgpuError) as caught:
        placements.read(pod({key: value}), ["all"])
    assert key in str(caught.value)
    assert "expected" in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("key", TEXTS)
def test_absurd_lengths_are_refused_unread(key: str) -> None:
    value = f"main={A}," * 100_000
    with pytest.raises(VgpuError, match=f"{key}: expected at most 32768 characters, found {len(value)}"):
        placements.read(pod({key: value}), ["all"])


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("hami.io/vgpu-devices-allocated", f"{A},NVIDIA,1,1:;", "2 parts"),
        ("hami.io/vgpu-devices-allocated", f"{A},NVIDIA,1,1:;;;", "2 parts"),
        ("hami.io/vgpu-devices-allocated", f"{A},MLU,1,1:;;", "UUID,NVIDIA,MiB,cores"),
        ("hami.io/vgpu-devices-allocated", f"{A},NVIDIA,1:;;", "UUID,NVIDIA,MiB,cores"),
        ("hami.io/vgpu-devices-allocated", f"{A},NVIDIA,1,1,1:;;", "UUID,NVIDIA,MiB,cores"),
        ("hami.io/vgpu-devices-allocated", f"{A},NVIDIA,1,101:;;", "0 to 100 cores"),
        ("hami.io/vgpu-devices-allocated", f"{A},NVIDIA,-1,1:;;", "MiB"),
        ("hami.io/vgpu-devices-allocated", f"{A},NVIDIA,{1 << 31},1:;;", "MiB"),
        ("hami.io/vgpu-devices-allocated", f"{A}[0-1],NVIDIA,1,1:;;", "a card's UUID"),
        ("hami.io/vgpu-devices-allocated", f"../../{A},NVIDIA,1,1:;;", "a card's UUID"),
        ("hami.io/vgpu-devices-allocated", f"{A},NVIDIA,1,1:" * 33 + ";;", "at most 32 cards"),
        ("volcano.sh/vgpu-ids-new", f"{A},NVIDIA,1,1:;;;", "2 parts"),
        ("tencent.com/predicate-gpu-idx-2", "0", "a container's number, 0 to 1"),
        ("tencent.com/predicate-gpu-idx-", "0", "a container's number"),
        ("tencent.com/predicate-gpu-idx-x", "0", "a container's number"),
        ("tencent.com/predicate-gpu-idx-0", ",".join(["0"] * 33), "at most 32 cards"),
        ("vgpu.io/placement", f"other={A}", "for each container once"),
        ("vgpu.io/placement", f"main={A};main={B}", "for each container once"),
        ("vgpu.io/placement", f"main={A}:30", "<UUID>:<cores>:<MiB>"),
        ("vgpu.io/placement", f"main={A}:30:4:5", "<UUID>:<cores>:<MiB>"),
        ("vgpu.io/placement", f"main={A}:300:4", "0 to 100 cores"),
        ("vgpu.io/placement", "main=GPU-" + "0" * 61, "a card's UUID"),
        ("nvidia.com/pre-allocated", f"other[0_{A}_1_1]", "for each container once"),
        ("nvidia.com/pre-allocated", f"main[0_{A}_1_1];main[0_{A}_1_1]", "for each container once"),
        ("nvidia.com/pre-allocated", f"main[0_{A}_1]", "<index>_<UUID>_<cores>_<MiB>"),
    ],
)
def test_the_error_names_the_fault(key: str, value: str, expected: str) -> None:
    with pytest.raises(VgpuError) as caught:
        placements.read(pod({key: value}), ["all"])
    assert key in caught.value.what
    assert expected in caught.value.expected
    assert caught.value.do.startswith("delete the pod")
