"""Claims on a node over kills, rollouts, restarts and boots: none is lost, none is left over, no card is above 100.

The plugin is a process, killed with SIGKILL; kubelet and scheduler are the stand-ins that follow the recordings of real
ones (component/kubelet/test_dra_stand_in.py). Containers with claims are in test_dra_containerd.py.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import nodes
import pytest
from dra_kubelet import Pod
from dra_site import DraSite, running

from vgpu.node.service.claim_devices import PARTS

pytestmark = pytest.mark.root

SEED = int(os.environ.get("VGPU_SEED") or random.randrange(1 << 30))
WAITING = 4  #: pods that wait for room, at most
DISTURBANCES = ("kill", "rollout", "kubelet", "boot", "empty")


@pytest.fixture
def site(node: nodes.SimulatedNode) -> Iterator[DraSite]:
    with running(DraSite(node)) as made:
        yield made


@pytest.mark.timeout(7200)
def test_claims_over_kills_and_rollouts(site: DraSite, request: pytest.FixtureRequest) -> None:
    """By a seed. The full count is 1,000 claims, each of which is prepared before its last pod is deleted."""
    print(f"VGPU_SEED={SEED}")
    count, rate = (1000, 0.05) if request.config.getoption("--long") else (30, 0.15)
    deck: list[str] = []
    chance, made, pods, prepared = random.Random(SEED), 0, list[Pod](), set[str]()
    site.start()
    [attributes, *_] = [device["attributes"] for device in site.until(site.published)]
    known = [attributes[name] for name in ("architecture", "cudaDriverVersion", "driverVersion")]
    assert known == [{"string": "Ampere"}, {"version": "12.4.0"}, {"version": "550.54.15"}]
    while made < count or pods:
        run = [pod for pod in pods if pod.sandbox]
        waits = len(pods) - len(run) >= WAITING or made == count
        event = "delete" if waits else chance.choice(("claim", "claim", "claim", "pod", "delete", "delete", "delete"))
        if run and chance.random() < rate:
            deck = deck or chance.sample(DISTURBANCES, len(DISTURBANCES))
            disturb(site, chance, deck.pop())
        if event == "claim":
            part = chance.choice((None, None, None, *PARTS))
            claim = None if part else site.make_claim(f"c{made}", chance.choice((5, 10, 20, 30, 50, 100)))
            pods.append(site.part_pod(part, f"p{made}") if part else site.pod(claim))
            made += 1
        elif event == "pod" and (sharing := [pod for pod in pods if "gpu" in pod.claims]):
            pods.append(site.pod(chance.choice(sharing).claims["gpu"]))
        elif pods:
            site.until(lambda: any(pod.sandbox for pod in pods))
            run = [pod for pod in pods if pod.sandbox]
            prepared.update(site.records())
            pods.remove(gone := chance.choice(run))
            site.delete(gone)
        for _ in range(chance.randrange(10)):
            site.clock.step()
        if chance.random() < 0.2:
            site.settled()
    site.until(lambda: not site.kubelet.checkpoint and not site.waiting)
    site.settled()
    assert (site.records(), site.resolvable(), len(prepared)) == ({}, set(), count)


def disturb(site: DraSite, chance: random.Random, what: str) -> None:
    if what == "kill":
        site.kill(site.instances[-1])
        site.start()
    elif what == "rollout":
        old = site.instances[-1]
        site.start()
        site.kill(old, kindly=chance.random() < 0.5)
    elif what == "kubelet":
        site.kubelet.kill()
        site.kubelet.start()
    elif what == "empty":
        site.empty_cdi()
    else:
        site.kubelet.kill()
        site.kill(site.instances[-1])
        site.kubelet.reboot()
        site.new_boot()
        site.start()
        site.kubelet.start()
