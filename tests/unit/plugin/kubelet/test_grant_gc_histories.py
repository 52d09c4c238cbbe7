"""Garbage collection of grants over random histories of pods, kubelet, plugin and API server.

Two things must hold after every look: no pod that may start a container again has lost a grant, and no grant is left of
a pod whose device ids kubelet has given back, once kubelet has allocated for another pod.
"""

from __future__ import annotations

import copy
import random
import shutil
from pathlib import Path

import pytest
from grants_node import CORE, GRACE, MEMORY, Node, ids

from vgpu.config import grants, paths
from vgpu.config.errors import VgpuError
from vgpu.config.grants import Holder
from vgpu.plugin.kubelet import delete_grants

RESOURCES = {"cores": CORE, "memory": MEMORY}
UNITS = 100  #: ids of each resource
NETWORK = ("kube-system", "network-x7d9k")  #: a pod that is not static and asks for no card

#: (container, resource) -> (grant, lowest and highest id)
Devices = dict[tuple[str, str], tuple[str, int, int]]


class Pod:
    """A pod. `runs`: container -> its claim, while it runs; `prepared`: its init container has ended."""

    def __init__(self, uid: str, name: str, has_init: bool) -> None:
        self.uid = uid
        self.name = name
        self.inits = ["prepare"] if has_init else []
        self.over = False
        self.prepared = not has_init
        self.runs: dict[str, str] = {}


class History:
    """A node whose kubelet behaves as the device manager of 1.2x to 1.3x does; each operation is a method."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.node = Node(directory)
        self.pods: dict[str, Pod] = {}  # those that the API server has
        self.ghosts: list[str] = []  # claims of containers that outlived their pod
        self.owners: dict[str, str] = {}  # grant -> pod uid
        self.devices: dict[str, Devices] = {}  # kubelet's
        self.saved: dict[str, Devices] = {}  # its checkpoint
        self.known: set[str] = set()  # pods that kubelet has added
        self.heard = True  # kubelet has heard from all its sources
        self.hearing = 0.0  # since when kubelet hears of its pods
        self.up = True
        self.api = True
        self.number = 0
        self.trace: list[str] = []
        self.restart_plugin()

    # kubelet

    def listing(self, settings):
        """List: frees the ids of pods that are over, as kubelet does before it answers."""
        self.free()
        found = {("kube-system", "etcd-gpu-7"): {"main": {}}}
        if self.heard or self.known:
            found[NETWORK] = {}
        for uid in self.known & set(self.pods):
            main = {}
            for (container, resource), (_, low, high) in self.devices.get(uid, {}).items():
                if container == "main":
                    main[RESOURCES[resource]] = ids(low, high)
            found["default", self.pods[uid].name] = {"main": main}
        self.node.kubelet.pods = found
        return self.node.kubelet.ask(settings)

    def free(self) -> None:
        active = {uid for uid, pod in self.pods.items() if uid in self.known and not pod.over}
        if self.heard and self.up:
            self.devices = {uid: held for uid, held in self.devices.items() if uid in active}

    def save(self) -> None:
        self.saved = copy.deepcopy(self.devices)
        self.node.remembers(*(held[0] for devices in self.devices.values() for held in devices.values()))

    def room(self, resource: str, count: int) -> int:
        """The lowest id of the first `count` free ones; -1 where there are none."""
        taken = set()
        for devices in self.devices.values():
            for (_, of), (_, low, high) in devices.items():
                taken.update(range(low, high + 1) if of == resource else ())
        return next((low for low in range(UNITS - count + 1) if not taken.intersection(range(low, low + count))), -1)

    # Operations

    def create(self) -> None:
        if not (self.up and self.heard):
            return
        self.number += 1
        free = {f"web-{number}" for number in range(6)} - {pod.name for pod in self.pods.values()}
        if not free:
            return
        pod = Pod(f"u{self.number}-a", self.chance.choice(sorted(free)), self.chance.random() < 0.4)
        self.free()
        self.pods[pod.uid] = pod
        self.known.add(pod.uid)
        mine: Devices = self.devices.setdefault(pod.uid, {})
        for container in [*pod.inits, "main"]:
            for resource in self.chance.sample(sorted(RESOURCES), self.chance.choice((1, 2, 2))):
                count = self.chance.choice((10, 20, 30, 100))
                init = mine.get(("prepare", resource))
                low = init[1] if init and init[2] - init[1] + 1 >= count else self.room(resource, count)
                if low < 0:  # kubelet refuses the pod
                    pod.over = True
                    return
                grant = self.node.grant(low, low + count - 1, resource=resource)
                self.owners[grant] = pod.uid
                mine[container, resource] = grant, low, low + count - 1
        if self.chance.random() < 0.3:
            self.look()  # another plugin's Allocate takes its time
        self.save()
        self.node.grant_gc.look_at_checkpoint()
        self.look()
        self.nothing_is_left()

    def start(self) -> None:
        for pod in self.shuffled(self.pods.values()):
            container = "main" if pod.prepared else "prepare"
            held = self.devices.get(pod.uid, {})
            mine = [grant for (of, _), (grant, _, _) in held.items() if of == container]
            if not self.up or pod.over or pod.uid not in self.known or container in pod.runs or not mine:
                continue
            for grant_id in mine:
                grant = grants.read(self.node.settings.state_dir, grant_id)
                grant.holder, grant.name = Holder(pod.uid, container), f"default/{pod.name}/{container}"
                grants.write(self.node.settings.state_dir, grant)
            self.number += 1
            pod.runs[container] = f"c{self.number}"
            self.node.claim(pod.runs[container], *mine)
            return

    def crash(self) -> None:
        for pod in self.shuffled(self.pods.values()):
            for container in list(pod.runs):
                self.end_claim(pod.runs.pop(container))
                pod.prepared = pod.prepared or container == "prepare"
                return

    def finish(self) -> None:
        for pod in self.shuffled(self.pods.values()):
            if self.up and pod.uid in self.known and not pod.over:
                self.stop_containers(pod)
                pod.over = True
                self.tell(pod.uid)
                return

    def delete(self, by_force: bool = False) -> None:
        for pod in self.shuffled(self.pods.values()):
            if by_force:
                self.ghosts += pod.runs.values()
            elif self.up:
                self.stop_containers(pod)
            else:
                return  # the deletion waits for kubelet
            del self.pods[pod.uid]
            self.known.discard(pod.uid)
            self.tell(pod.uid)
            return

    def delete_by_force(self) -> None:
        self.delete(by_force=True)

    def end_ghost(self) -> None:
        if self.ghosts:
            self.end_claim(self.ghosts.pop())

    def stop_kubelet(self) -> None:
        self.up = False
        self.node.kubelet.error = VgpuError("kubelet", found="UNAVAILABLE")

    def start_kubelet(self) -> None:
        if not self.up:
            self.up, self.heard, self.known, self.hearing = True, False, set(), 0.0
            self.devices = copy.deepcopy(self.saved)
            self.node.kubelet.error, self.node.kubelet.life = None, self.node.kubelet.life + 1

    def hear(self) -> None:
        """kubelet adds its pods one by one, in some seconds."""
        if not self.up or self.heard:
            return
        self.hearing = self.hearing or self.node.now
        waiting = [uid for uid in self.pods if uid not in self.known]
        if waiting and self.node.now - self.hearing < GRACE / 2:
            self.known.add(self.chance.choice(waiting))
        else:
            self.known, self.heard = set(self.pods), True

    def restart_plugin(self) -> None:
        self.node.gone.clear()
        self.node.grant_gc = self.node.plugin()
        self.node.grant_gc.fetch = self.listing

    def reboot(self) -> None:
        for pod in self.pods.values():
            self.stop_containers(pod)
            pod.prepared = not pod.inits
        while self.ghosts:
            self.end_ghost()
        self.stop_kubelet()
        self.start_kubelet()
        self.restart_plugin()

    def lose_api(self) -> None:
        self.api = not self.api

    # Looks

    def look(self) -> None:
        if self.hearing and not self.heard and self.node.now - self.hearing > GRACE / 2:
            self.hear()
        for grant_id in self.node.grant_gc.round():
            pod = self.pods.get(self.owners[grant_id])
            assert pod is None or pod.over, f"a grant of {pod.uid} is gone: {self.trace}"
        for claim in self.ghosts:
            assert Path(paths.claim(self.node.settings.run_dir, claim)).exists()

    def nothing_is_left(self) -> None:
        """Claimed grants belong to pods that kubelet has, or to containers that live on."""
        living = {uid for uid, pod in self.pods.items() if not pod.over}
        at_work = delete_grants.living(self.node.settings)
        for grant in grants.read_all(self.node.settings.state_dir)[0]:
            if grant.holder and grant.id not in at_work:
                assert self.owners[grant.id] in living, f"{grant.name} of {grant.holder.pod_uid}: {self.trace}"

    # Parts

    def shuffled(self, found):
        return self.chance.sample(list(found), len(list(found)))

    def stop_containers(self, pod: Pod) -> None:
        for claim in pod.runs.values():
            self.end_claim(claim)
        pod.runs = {}

    def end_claim(self, claim: str) -> None:
        shutil.rmtree(paths.container(self.node.settings.run_dir, claim))

    def tell(self, uid: str) -> None:
        if self.api:
            self.node.gone.add(uid)

    def run(self, steps: int) -> None:
        often = [self.create, self.create, self.start, self.start, self.start, self.crash, self.finish, self.delete]
        seldom = [
            self.delete_by_force, self.end_ghost, self.stop_kubelet, self.start_kubelet, self.restart_plugin,
            self.reboot, self.lose_api,
        ]  # fmt: skip
        for _ in range(steps):
            operation = self.chance.choice(often if self.chance.random() < 0.8 else seldom)
            self.trace.append(operation.__name__)
            operation()
            if not self.up and self.chance.random() < 0.5:
                self.start_kubelet()
            if not self.heard and self.chance.random() < 0.7:
                self.hear()
            self.node.now += self.chance.choice((0.2, 1.0, 5.0, 10.0))
            self.look()


def run(directory: Path, seeds: range) -> int:
    deleted = 0
    for seed in seeds:
        place = directory / str(seed)
        place.mkdir()
        history = History(place, seed)
        history.run(60)
        deleted += len(history.owners) - len(history.node.left())
        shutil.rmtree(place)
    return deleted


def test_no_pod_loses_a_grant_and_none_is_left_of_a_pod_that_is_over(tmp_path: Path) -> None:
    assert run(tmp_path, range(4)) > 20


@pytest.mark.long
def test_many_histories(tmp_path: Path) -> None:
    assert run(tmp_path, range(100, 250)) > 1000
