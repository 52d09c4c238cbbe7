"""Very many Allocate calls on the real plugin, which is killed at random points: nothing grows, no grant is lost.

Starts and stops in such numbers are in test_load.py, those with kubelet and runc together in test_plugin_load.py.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import daemons
import grpc
import nodes
import pytest
from attack_records import Attack, attack
from kubelet_api import message
from kubelet_devices import DeviceManager
from plugin_process import Plugin
from pod_site import CORE, plugin_settings, short_directory

from vgpu.config import paths

pytestmark = pytest.mark.root

SETTLED = 500  #: calls of one life of the plugin before its size counts


class Churn:
    """A plugin with a kubelet that only takes its registrations. `allocate` calls it as kubelet does."""

    def __init__(self, directory: Path, sockets: Path) -> None:
        self.sockets = sockets
        self.node = nodes.SimulatedNode(directory / "node", "t4x1", **plugin_settings(sockets))
        self.node.take_inventory()
        self.kubelet = DeviceManager(sockets / "device-plugins", set).start()
        self.plugin = Plugin(self.node)

    def start(self) -> None:
        """A life of the plugin; it serves when kubelet has its cards."""
        self.plugin.start()
        daemons.wait_for(lambda: self.kubelet.allocatable().get(CORE), 60)
        self.devices = sorted(self.kubelet.healthy[CORE])

    def kill(self) -> None:
        self.plugin.kill()
        daemons.wait_for(lambda: not self.kubelet.allocatable().get(CORE), 60)

    def allocate(self, dice: random.Random) -> str:
        """One call; the id of its grant."""
        ids = dice.sample(self.devices, dice.randint(1, 20))
        one = message("v1beta1.ContainerAllocateRequest")(devices_ids=ids)
        request = message("v1beta1.AllocateRequest")(container_requests=[one])
        answer = self.kubelet.endpoints[CORE].call("Allocate", request, "AllocateResponse")
        return str(answer.container_responses[0].annotations["vgpu.io/grant-cores"])

    def grants(self) -> set[str]:
        return {grant.id for grant in self.node.grants()}

    def size(self) -> tuple[int, int]:
        """Resident bytes and open files of the plugin."""
        return self.plugin.resident(), len(os.listdir(f"/proc/{self.plugin.pid}/fd"))

    def end(self) -> None:
        self.plugin.kill()
        self.kubelet.stop()


@pytest.fixture
def churn(tmp_path: Path) -> Iterator[Churn]:
    sockets = short_directory()
    made = Churn(tmp_path, sockets)
    yield made
    made.end()
    shutil.rmtree(sockets)


def one_life(churn: Churn, dice: random.Random, calls: int) -> None:
    """`calls` calls; each grant is on disk when its answer comes, and its pod ends at once. Then the plugin is killed
    while a call is under way."""
    churn.start()
    kept = churn.grants()
    before = (0, 0)
    for number in range(calls):
        path = Path(paths.grant(churn.node.settings.state_dir, churn.allocate(dice)))
        assert path.exists(), "a grant is on disk before kubelet gets its id"
        path.unlink()
        if number == SETTLED:
            before = churn.size()
    if before[0]:
        memory, files = churn.size()
        assert files <= before[1] + 2, f"open files grew from {before[1]} to {files}"
        assert memory <= before[0] + (16 << 20), f"memory grew from {before[0]} to {memory} bytes"
    assert churn.grants() <= kept
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(churn.allocate, dice)
        time.sleep(dice.random() / 200)
        churn.kill()
        forget(churn, under_way)


def forget(churn: Churn, call: Future[str]) -> None:
    """The end of the pod whose Allocate call the kill met. Without an answer kubelet knows no grant of it."""
    try:
        Path(paths.grant(churn.node.settings.state_dir, call.result(60))).unlink()
    except grpc.RpcError:
        for id in churn.grants():  # written, but its answer was lost: the collector removes it after its grace
            Path(paths.grant(churn.node.settings.state_dir, id)).unlink()


@attack("Allocate calls, in lives of the plugin of at most 5,000, each ended by kill -9 during a call", "the node")
def test_allocate_calls_with_kills(churn: Churn, attack: Attack) -> None:
    calls = attack.rounds(100_000, 400)
    dice = random.Random(attack.from_percent)
    lives = max(2, calls // 5000)
    for _ in range(lives):
        one_life(churn, dice, calls // lives)
    assert churn.grants() == set()
    attack.held(
        calls // lives * lives, "no growth of memory, open files or records; each grant on disk before its answer"
    )
