"""Schedulers of other projects in a real cluster: their annotations, their binding, their locks, our answers.

The test acts as the scheduler: it writes the annotations of the project's scheduler, and binds the pod by the API
server's binding subresource. Everything else but the cards is real. The plugin has its manifest's account.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from cluster_site import Site
from daemons import wait_for
from pod_site import CORE, FORK, GPU, MEMORY
from real_kubelet import NODE

pytestmark = [pytest.mark.root, pytest.mark.long]

FORK_CORE, FORK_MEMORY = "nvidia.com/vcuda-core", "nvidia.com/vcuda-memory"
VOLCANO = "volcano.sh/vgpu-number"
VGPUS = {"resources.mode": "gpu", "resources.split_count": 10}


@dataclass(frozen=True)
class Way:
    """A scheduler's annotations with `{card}`, `{node}`, `{now}` and `{time}`. `lock` is the node's annotation."""

    settings: dict[str, Any]
    offered: dict[str, int]
    limits: dict[str, int]
    annotations: dict[str, str]
    held: tuple[int, int]
    answers: dict[str, str]
    labels: dict[str, str] = field(default_factory=dict)
    answered_labels: dict[str, str] = field(default_factory=dict)
    lock: tuple[str, str] = ("", "")
    registered: tuple[str, ...] = ()


HAMI = {
    "hami.io/vgpu-node": "{node}", "hami.io/vgpu-time": "{now}", "hami.io/bind-phase": "allocating",
    "hami.io/bind-time": "{now}", "hami.io/vgpu-devices-to-allocate": "{card},NVIDIA,3000,15:;",
    "hami.io/vgpu-devices-allocated": "{card},NVIDIA,3000,15:;",
}  # fmt: skip
HAMI_ANSWERS = {"hami.io/bind-phase": "success", "hami.io/vgpu-devices-to-allocate": ";"}
HAMI_LIMITS = {GPU: 1, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 15}
WAYS = {
    "vgpu": Way(
        {}, {CORE: 200, MEMORY: 314}, {CORE: 30, MEMORY: 4},
        {"vgpu.io/placement": "main={card}", "vgpu.io/placement-node": "{node}"}, (1024, 30),
        {"vgpu.io/assigned": "true"}, registered=("vgpu.io/node-cards",),
    ),
    "gpu-admission": Way(
        {}, {CORE: 200, MEMORY: 314}, {CORE: 30, MEMORY: 4},
        {
            "tencent.com/predicate-node": "{node}", "tencent.com/predicate-gpu-idx-0": "1",
            "tencent.com/gpu-assigned": "false", "tencent.com/predicate-time": "{now}",
        }, (1024, 30), {"tencent.com/gpu-assigned": "true"},
    ),
    "fork": Way(
        {**FORK, "kubernetes.register": ["nvidia"]}, {FORK_CORE: 200, FORK_MEMORY: 80768},
        {FORK_CORE: 30, FORK_MEMORY: 2048},
        {
            "nvidia.com/predicate-node": "{node}", "nvidia.com/predicate-gpu-idx-0": "1",
            "nvidia.com/gpu-assigned": "false",
        }, (2048, 30), {"nvidia.com/gpu-assigned": "true"},
        {"tydic.io/bind-phase": "allocating", "tydic.io/bind-time": "{now}000000000"},
        {"tydic.io/bind-phase": "success"}, ("tydic.io/node-lock", "{before}"),
        registered=("tydic.io/nvidia-device-register", "tydic.io/node-gpu-heartbeat"),
    ),
    "hami": Way(
        {**VGPUS, "kubernetes.register": ["hami"]}, {GPU: 20}, HAMI_LIMITS, HAMI, (3000, 15), HAMI_ANSWERS,
        lock=("hami.io/mutex.lock", "{before},default,placed"), registered=("hami.io/node-nvidia-register",),
    ),
    "hami-2.7": Way(
        {**VGPUS, "kubernetes.register": ["hami-2.7"]}, {GPU: 20}, HAMI_LIMITS, HAMI, (3000, 15), HAMI_ANSWERS,
        lock=("hami.io/mutex.lock", "{before},default,placed"),
        registered=("hami.io/node-nvidia-register", "hami.io/node-handshake"),
    ),
    "volcano": Way(
        {**VGPUS, "resources.gpu_name": VOLCANO, "kubernetes.register": ["volcano"]}, {VOLCANO: 20},
        {VOLCANO: 1, "volcano.sh/vgpu-memory": 2000, "volcano.sh/vgpu-cores": 20},
        {
            "volcano.sh/vgpu-node": "{node}", "volcano.sh/vgpu-time": "{now}", "volcano.sh/bind-phase": "allocating",
            "volcano.sh/bind-time": "{now}", "volcano.sh/vgpu-ids-new": "{card},NVIDIA,2000,20:",
            "volcano.sh/devices-to-allocate": "{card},NVIDIA,2000,20:;",
        }, (2000, 20), {"volcano.sh/bind-phase": "success", "volcano.sh/devices-to-allocate": ";"},
        lock=("volcano.sh/mutex.lock", "{before}"), registered=("volcano.sh/node-vgpu-register",),
    ),
    "vgpu-manager": Way(
        VGPUS, {GPU: 20}, {GPU: 1, "nvidia.com/vgpu-memory": 4096, "nvidia.com/vgpu-cores": 25},
        {"nvidia.com/predicate-node": "{node}", "nvidia.com/pre-allocated": "main[1_{card}_25_4096]"}, (4096, 25),
        {"nvidia.com/real-allocated": "main[1_{card}_25_4096]"},
        {"nvidia.com/assigned-phase": "allocating"}, {"nvidia.com/assigned-phase": "succeed"},
    ),
}  # fmt: skip


@pytest.fixture
def site(cluster: Site) -> Iterator[Site]:
    """Each test leaves no pods to the next."""
    yield cluster
    cluster.delete_all()


def place(site: Site, name: str, limits: dict[str, int], annotations: dict[str, str], labels: dict[str, str]) -> None:
    """Act as a scheduler: wait for the pod, write the chosen card, and bind the pod."""
    site.create(name, limits, schedulerName="stand-in")
    for kind, texts in (("annotate", annotations), ("label", labels)):
        if texts:
            site.cluster.kubectl(kind, "pod", name, *(f"{key}={value}" for key, value in texts.items()))
    site.cluster.bind(name)


def filled(texts: dict[str, str], card: str) -> dict[str, str]:
    now = int(time.time())
    before = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now - 2))
    values = {"{card}": card, "{node}": NODE, "{now}": str(now), "{before}": before}
    for mark, value in values.items():
        texts = {key: text.replace(mark, value) for key, text in texts.items()}
    return texts


@pytest.mark.parametrize("name", WAYS)
def test_a_pod_gets_the_card_that_its_scheduler_chose(site: Site, name: str) -> None:
    """It is the second card, which binpack would not choose. The API server has the answers and not the lock."""
    way = WAYS[name]
    site.configure(way.offered, **way.settings)
    card = site.cards[1]
    key, lock = way.lock
    if key:
        site.cluster.kubectl("annotate", "node", NODE, f"{key}={filled({key: lock}, card)[key]}")
    place(site, "placed", way.limits, filled(way.annotations, card), filled(way.labels, card))
    assert site.held("placed") == [(card, *way.held)]
    expected = filled(way.answers, card)
    wait_for(lambda: answered(site, expected, way.answered_labels), 60, lambda: site.what_happened("placed"))
    wait_for(lambda: key not in site.cluster.annotations("node", NODE), 60, site.plugin.text)
    assert set(way.registered) <= set(site.cluster.annotations("node", NODE))
    assert f"card0.total {way.held[0] << 20}" in site.wait_for_log("placed", "nvml_total")


def answered(site: Site, annotations: dict[str, str], labels: dict[str, str]) -> bool:
    found = site.cluster.find("pod", "placed")["metadata"]
    labelled = labels.items() <= found.get("labels", {}).items()
    return labelled and annotations.items() <= found["annotations"].items()
