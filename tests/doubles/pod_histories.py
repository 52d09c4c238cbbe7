"""Random histories of a node's pods: kubelet's books, containers, cgroups and reboots around a real ledger.

Belongs here: what kubelet does, and what the node has promised by the book of this model, which knows everything. It
gives a pod's units back when all of the pod's processes are gone, hands an init container's ids on to the pod's later
containers, and removes the pod's cgroup a moment later. Ids are either chosen well (one card) or arbitrarily.
"""

from __future__ import annotations

import random
import uuid as uuids
from pathlib import Path

from ledger_node import GIB, Node, redeem, uuid_of
from pod_cgroup_trees import CGROUPFS, SYSTEMD, V1, V2, PodCgroupTree

from vgpu.config import grants, ranges
from vgpu.config.grants import Holder
from vgpu.config.request import Request
from vgpu.hook.ledger.ledger import Ledger, Start
from vgpu.hook.placement import placement
from vgpu.hook.placement.placement import Commitment, NoFit

CARDS = 2
CORES, MEMORY = 10, 16  #: ids of each card: of 10 percent, of 1 GiB
UNIT = {"cores": 100 // CORES, "memory": GIB}

Ids = set[tuple[int, int]]  #: (card, number)


class Container:
    """A container of a pod's spec with what it has: ids, grants, cards and its process."""

    def __init__(self, name: str, init: bool, cores: int, memory: int) -> None:
        self.name = name
        self.init = init
        self.wants = {"cores": cores, "memory": memory} if cores < CORES else {"cores": cores}
        self.ids: dict[str, Ids] = {}
        self.grants: dict[str, str] = {}
        self.cards: list[str] = []
        self.pid = 0
        self.done = False
        self.moved = False  #: an init container whose pod went on to another card, without anything on its own

    def amount(self) -> tuple[int, int]:
        """Cores and bytes of each of its cards."""
        whole = self.wants["cores"] >= CORES
        return (100, 0) if whole else (self.wants["cores"] * 10, self.wants["memory"] * GIB)

    def request(self) -> Request:
        cores, memory = self.amount()
        return Request(max(self.wants["cores"] // CORES, 1), cores, memory)


class Pod:
    def __init__(self, noise: random.Random) -> None:
        self.uid = str(uuids.UUID(int=noise.getrandbits(128), version=4))
        sizes = [(noise.choice((1, 2, 3, 4, 6, 10, 10 * CARDS)), noise.randint(1, 8)) for _ in range(4)]
        inits = noise.choice((0, 0, 1, 1, 2))
        apps = noise.choice((1, 1, 2)) if sizes[2][0] < CORES else 1
        self.containers = [
            Container(f"i{at}" if at < inits else f"a{at}", at < inits, *sizes[at]) for at in range(inits + apps)
        ]
        self.sandbox = False
        self.deleted = False  #: by the API
        self.seen = False  #: a container of it has claimed in this boot

    def next(self) -> list[Container]:
        """The containers that kubelet would start now."""
        if not self.sandbox:
            return []
        waiting = [one for one in self.containers if one.init and not one.done]
        if waiting:
            return [] if waiting[0].pid else waiting[:1]
        return [one for one in self.containers if not one.init and not one.pid]

    def demand(self, leave_out: tuple[Container, ...] = (), firm: bool = True) -> dict[str, list[int]]:
        """[cores, bytes] by card that the pod's containers have or may come back to.

        An init container never runs beside those after it, so the larger counts. Where its pod has nothing else on its
        card, it is placed anew when it runs again; its part of the card is not `firm` from then on.
        """
        placed = [one for one in self.containers if one.cards and one not in leave_out]
        followed = [one for one in placed if one.init and self._is_followed(one)]
        rest = [one for one in placed if one not in followed]
        on_rest = _sum(rest)
        held: dict[str, list[int]] = {}
        for phase in (rest, *([one] for one in followed if not (firm and one.moved))):
            for card, (cores, memory) in _sum(phase).items():
                now = held.setdefault(card, [0, 0])
                now[:] = [max(now[0], cores), max(now[1], memory)]
        if any(one.pid for one in followed):
            return held
        return {card: amounts for card, amounts in held.items() if card in on_rest}

    def go_on(self, container: Container) -> None:
        """A container of the pod has started."""
        container.moved = False
        followed = [one for one in self.containers if one.init and one is not container and self._is_followed(one)]
        rest = _sum([one for one in self.containers if one not in followed])
        for one in followed:
            one.moved = one.moved or not set(one.cards) & set(rest)

    def _is_followed(self, init: Container) -> bool:
        later = self.containers[self.containers.index(init) + 1 :]
        return any(one.cards and init.ids[kind] & one.ids.get(kind, set()) for one in later for kind in init.ids)


def _sum(containers: list[Container]) -> dict[str, tuple[int, int]]:
    held: dict[str, tuple[int, int]] = {}
    for one in containers:
        for card in one.cards:
            before = held.get(card, (0, 0))
            held[card] = (before[0] + one.amount()[0], before[1] + one.amount()[1])
    return held


class History:
    """One node and its pods; `step` does something random. AssertionError when the ledger is wrong."""

    def __init__(self, path: Path, seed: int) -> None:
        self.noise = random.Random(seed)
        self.node = Node(path, CARDS)
        version, driver = self.noise.choice((V1, V2)), self.noise.choice((CGROUPFS, SYSTEMD))
        self.tree = PodCgroupTree(path / "cgroup", self.node.proc, version, driver)
        self.by_preference = self.noise.random() < 0.5
        self.pods: list[Pod] = []  #: in kubelet's books
        self.ended: list[Pod] = []  #: no longer there; kubelet is going to remove their cgroups
        self.gone: list[Pod] = []  #: their cgroups are removed
        self.lost: list[Pod] = []  #: they ended before they started in this boot, so only the plugin knows it
        self.kubelet = True
        self.api = True
        self.boots = 1
        self.pid = 100
        self.started = self.refused = self.waited = 0

    def step(self) -> None:
        actions = {
            self.admit: 10, self.start: 20, self.exit: 8, self.delete: 5, self.remove_cgroups: 2, self.lose_sandbox: 1,
            self.switch_kubelet: 1 if self.kubelet else 15, self.switch_api: 1 if self.api else 10, self.reboot: 1,
            self.collect: 1,
        }  # fmt: skip
        self.noise.choices(list(actions), list(actions.values()))[0]()
        self.check()

    # What kubelet does

    def admit(self) -> None:
        """Allocate for a new pod: ids of init containers are used again by later containers."""
        if not (self.kubelet and self.api):
            return
        pod = Pod(self.noise)
        reusable: dict[str, Ids] = {"cores": set(), "memory": set()}
        taken: dict[str, Ids] = {"cores": set(), "memory": set()}
        for container in pod.containers:
            for kind in self.noise.sample(sorted(container.wants), len(container.wants)):
                ids = self._choose(kind, container.wants[kind], reusable[kind], taken[kind])
                if ids is None:
                    return  # UnexpectedAdmissionError: kubelet forgets what it gave so far
                container.ids[kind] = ids
                taken[kind] |= ids
                reusable[kind] = reusable[kind] | ids if container.init else reusable[kind] - ids
        for container in pod.containers:
            for kind, ids in container.ids.items():
                devices = {
                    uuid_of(card): ranges.text(ranges.of(number for at, number in ids if at == card))
                    for card in sorted({card for card, _ in ids})
                }
                container.grants[kind] = self.node.grant(kind, len(ids) * UNIT[kind], devices)
        pod.sandbox = True
        self.pods.append(pod)
        self._make_sandbox(pod)

    def _choose(self, kind: str, count: int, reusable: Ids, taken: Ids) -> Ids | None:
        every = {(card, number) for card in range(CARDS) for number in range({"cores": CORES, "memory": MEMORY}[kind])}
        used = {one for pod in self.pods for container in pod.containers for one in container.ids.get(kind, ())}
        free = every - used - taken
        chosen = set(sorted(reusable)[:count])
        more = count - len(chosen)
        if more > len(free):
            return None
        if self.by_preference:
            room = {card: sum(at == card for at, _ in free) for card in range(CARDS)}
            order = sorted(free, key=lambda one: (room[one[0]] < more, room[one[0]], one))
        else:
            order = self.noise.sample(sorted(free), len(free))
        return chosen | set(order[:more])

    def start(self) -> None:
        """A container starts by the real ledger. A refusal must have a reason by the book."""
        ready = [(pod, one) for pod in self.pods for one in pod.next()]
        if not (self.kubelet and ready):
            return
        pod, container = self.noise.choice(ready)
        self.pid += 1
        self.node.live(self.pid)
        name = f"c{self.pid}"
        self.node.clock += 1
        start = Start(
            name, self.pid, 5, "/b", Holder(pod.uid, container.name), f"ns/{pod.uid[:8]}/{container.name}",
            self.node.clock, self.tree.container(pod.uid, name),
        )  # fmt: skip
        try:
            made = self._ledger().claim(start, redeem(container.grants))
        except NoFit as error:
            self.node.kill(self.pid)
            self.refused += 1
            self._check_refusal(pod, container, error)
            return
        assert made is not None
        container.pid, container.cards, pod.seen = self.pid, [card.uuid for card in made.cards], True
        pod.go_on(container)
        self.tree.put(pod.uid, name, self.pid)
        self.started += 1

    def _ledger(self) -> Ledger:
        now = [0.0]

        def sleep(seconds: float) -> None:
            now[0] += seconds
            self.waited += 1
            self.remove_cgroups()

        return Ledger(self.node.settings, self.node.cards, str(self.node.proc), lambda: now[0], sleep)

    def exit(self) -> None:
        """A container ends: an init container well or badly, any other by a crash."""
        running = [(pod, one) for pod in self.pods for one in pod.containers if one.pid]
        if running:
            pod, container = self.noise.choice(running)
            container.done = container.init and self.noise.random() < 0.6
            self._kill(pod, container)

    def _kill(self, pod: Pod, container: Container) -> None:
        name = f"c{container.pid}"
        self.node.kill(container.pid)
        self.tree.take(pod.uid, name)
        container.pid = 0
        if self.noise.random() < 0.7:  # else its claim is left behind
            self.node.ledger().release(name)

    def delete(self) -> None:
        """The API deletes a pod, or its job is done. kubelet hears of it if it can."""
        if self.pods:
            pod = self.noise.choice(self.pods)
            pod.deleted = True
            self._hear()

    def _hear(self) -> None:
        """kubelet ends the deleted pods that it hears of, and frees their units."""
        if not (self.kubelet and self.api):
            return
        for pod in [pod for pod in self.pods if pod.deleted]:
            self._end_sandbox(pod)
            self.pods.remove(pod)
            (self.ended if pod.seen else self.lost).append(pod)

    def _end_sandbox(self, pod: Pod) -> None:
        for container in pod.containers:
            if container.pid:
                self._kill(pod, container)
        self.tree.take(pod.uid, "pause")
        pod.sandbox = False

    def _make_sandbox(self, pod: Pod) -> None:
        self.pid += 1
        self.tree.put(pod.uid, "pause", self.pid)
        pod.sandbox = True
        for container in pod.containers:
            container.done = False

    def remove_cgroups(self) -> None:
        for pod in self.ended:
            self.tree.take(pod.uid)
        self.gone += self.ended
        self.ended = []

    def lose_sandbox(self) -> None:
        """A sandbox dies, and kubelet makes a new one, now or later: its init containers run again."""
        if self.pods:
            pod = self.noise.choice(self.pods)
            self._end_sandbox(pod)
        self._make_sandboxes()

    def _make_sandboxes(self) -> None:
        for pod in self.pods:
            if self.kubelet and not pod.sandbox and self.noise.random() < 0.5:
                self._make_sandbox(pod)

    def switch_kubelet(self) -> None:
        self.kubelet = not self.kubelet
        self._hear()
        self._make_sandboxes()

    def switch_api(self) -> None:
        self.api = not self.api
        self._hear()

    def reboot(self) -> None:
        """Nothing but the state survives. Pods that the API deleted meanwhile never come back."""
        self.boots += 1
        for pod in self.pods:
            pod.sandbox = pod.seen = False
            for container in pod.containers:
                container.pid, container.done = 0, False
        self.node.reboot()
        self.tree.mount()
        self.tree.boot(f"boot{self.boots}")
        self.kubelet = self.api = True
        self.lost += [*self.ended, *self.gone, *(pod for pod in self.pods if pod.deleted)]
        self.ended, self.gone = [], []
        self.pods = [pod for pod in self.pods if not pod.deleted]
        self._make_sandboxes()

    def collect(self) -> None:
        """The plugin's collector learns from kubelet which pods are no longer there."""
        if not self.kubelet:
            return
        there = {grant_id for pod in self.pods for one in pod.containers for grant_id in one.grants.values()}
        for grant in grants.read_all(self.node.settings.state_dir)[0]:
            if grant.id not in there:
                self.node.grant_file(grant.id).unlink()
        self.gone, self.lost = [], []

    # What must hold

    def check(self) -> None:
        """No card is promised beyond itself."""
        held = _total([pod.demand() for pod in self.pods])
        for index in range(CARDS):
            cores, memory = held.get(uuid_of(index), (0, 0))
            assert cores <= 100, f"card {index}: {cores} cores"
            assert memory <= MEMORY * GIB, f"card {index}: {memory / GIB} GiB"

    def _check_refusal(self, pod: Pod, container: Container, error: NoFit) -> None:
        """There is no room either for somebody who knows which pods kubelet has."""
        others = [one.demand(firm=False) for one in (*self.pods, *self.lost) if one is not pod]
        beside = (one for one in pod.containers if one is container or one.init or container.init)
        held = {
            card: Commitment(min(cores, 100), memory, cores >= 100, ["others"])
            for card, (cores, memory) in _total([*others, pod.demand(tuple(beside))]).items()
        }
        try:
            placement.place(container.request(), self.node.cards, held, self.node.ledger().policy)
        except NoFit:
            return
        book = {card: (found.cores, found.memory // GIB) for card, found in held.items()}
        raise AssertionError(f"refused: {error}; by the book {book}")


def _total(demands: list[dict[str, list[int]]]) -> dict[str, list[int]]:
    held: dict[str, list[int]] = {}
    for demand in demands:
        for card, (cores, memory) in demand.items():
            before = held.get(card, [0, 0])
            held[card] = [before[0] + cores, before[1] + memory]
    return held
