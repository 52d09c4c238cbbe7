"""vgpu's own labels of a node: their values, and that Kubernetes accepts them."""

from __future__ import annotations

import random
import re

import pytest
from cards import card, inventory

from vgpu.config.inventory import Inventory
from vgpu.plugin.apiserver.node_labels import label_value, wanted

GIB = 1 << 30
#: https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set
VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")


def node(*names: str) -> Inventory:
    return inventory([card(at, (40 - at) * GIB, uuid=f"GPU-{at}", name=name) for at, name in enumerate(names)])


A100 = {"vgpu.io/model": "NVIDIA-A100-SXM4-40GB", "vgpu.io/driver": "550.54.15", "vgpu.io/memory": "40960"}


@pytest.mark.parametrize(
    ("found", "reasons", "away", "labels"),
    [
        (None, {}, False, {"vgpu.io/ready": "false"}),
        (node(), {}, False, {"vgpu.io/ready": "false"}),
        (node("NVIDIA A100-SXM4-40GB"), {}, False, {"vgpu.io/ready": "true", **A100}),
        (node("NVIDIA A100-SXM4-40GB"), {"GPU-0": "lost"}, False, {"vgpu.io/ready": "false", **A100}),
        (node("NVIDIA A100-SXM4-40GB"), {}, True, {"vgpu.io/ready": "false", **A100}),
        (
            node("NVIDIA A100-SXM4-40GB", "Tesla T4"), {"GPU-0": "lost"}, False,
            {**A100, "vgpu.io/ready": "true", "vgpu.io/model": "mixed", "vgpu.io/memory": "39936"},
        ),
    ],
)  # fmt: skip
def test_the_labels(found: Inventory | None, reasons: dict[str, str], away: bool, labels: dict[str, str]) -> None:
    assert wanted(found, reasons, away) == labels


@pytest.mark.parametrize("seed", range(50))
def test_every_name_becomes_a_legal_value(seed: int) -> None:
    rng = random.Random(seed)
    text = "".join(rng.choice("aZ09 -_.()/\u00e9\u2122") for _ in range(rng.randrange(200)))
    assert VALUE.fullmatch(label_value(text)) and len(label_value(text)) <= 63
