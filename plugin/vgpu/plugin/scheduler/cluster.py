"""The cluster as the watches show it, and the decisions that they do not show yet.

Belongs here: nodes, pods and assumed decisions, and from them what each card owes. Not here: requests of the scheduler
(vgpu.plugin.scheduler.service) and the watches themselves. The caller holds `guard` for every call.

On a node, in this order: what the node says that containers without a pod, or of pods that nobody else knows, hold;
assumed decisions; pods with a placement in their annotations, as far as the cards have the room; the other pods, by
what the node says, else by placing their specs one after the other. A pod that is bound to no node takes nothing,
whatever its annotations say, nor does one that is being deleted and whose end the node has confirmed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

from vgpu.config.dialects import placements, registration
from vgpu.config.dialects.placements import Chosen
from vgpu.config.errors import VgpuError
from vgpu.hook.placement.placement import NoFit, place
from vgpu.plugin.scheduler import node_cards
from vgpu.plugin.scheduler.decide import Decision, State, amount, decide, request_of
from vgpu.plugin.scheduler.demand import INIT, SIDECAR, Demand, PodSpec
from vgpu.plugin.scheduler.node_cards import FREE, Held, Holdings, NodeCards, Usage

SAYS_NOTHING = 180.0  #: seconds without a new holdings annotation, after which the pods' specs count
CONFIRMS = 1.5  #: seconds from the end of a pod's object, within which its node says so unless a process lives on


@dataclass(frozen=True)
class Assumed:
    """A decision that no watch has confirmed; `since` is the clock's time."""

    uid: str
    namespace: str
    node: str
    used: Usage
    since: float


class _Node:
    __slots__ = ("annotation", "cards", "holdings", "labels", "left", "said", "since")

    def __init__(self, cards: NodeCards, labels: dict[str, str], annotation: str) -> None:
        self.cards = cards
        self.labels = labels
        self.annotation = annotation
        self.holdings: Holdings | None = None
        self.said = ""  #: the annotation of the holdings, whose time changes every minute
        self.since = 0.0  #: when it changed
        self.left: frozenset[str] = frozenset()  #: uids of pods that it named before, and names no longer


class Cluster:
    """`assume_life`: seconds after which an assumed decision that was not confirmed is dropped.

    `arrived` is notified when a pod or a change of a node has come.
    """

    def __init__(self, assume_life: float = 300.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.guard = threading.RLock()
        self.assume_life = assume_life
        self.clock = clock
        self.pods: dict[str, PodSpec] = {}
        self.others: dict[str, tuple[str, str]] = {}  #: uid -> namespace and name of pods that ask for no card
        self.assumed: dict[str, Assumed] = {}
        self.revision = 0  #: grows with every change of a node
        self.changed: dict[str, int] = {}  #: node -> the revision of its last change, in this order
        self._nodes: dict[str, _Node] = {}
        self._on: dict[str, set[str]] = {}  # node -> uids of the pods bound to it
        self._of: dict[str, set[str]] = {}  # namespace -> uids of pods that are bound or assumed
        self._held: dict[str, State] = {}
        self._shares: dict[str, dict[str, Usage]] = {}  # node -> uid -> what the pod takes
        self._ended: dict[str, tuple[str, float]] = {}  # uid of a pod that was bound -> node, time of its object's end
        self.arrived = threading.Condition(self.guard)

    # What the watches bring

    def put_node(self, value: Any, now: float) -> None:
        name = str(value["metadata"]["name"])
        annotations, labels = node_cards.annotations_of(value), node_cards.labels_of(value)
        old = self._nodes.get(name)
        annotation = annotations.get(registration.OWN, "")
        if old is None or old.annotation != annotation or old.labels != labels or not annotation:
            node = _Node(node_cards.read_cards(name, annotations), labels, annotation)
        else:
            node = old
        before = old.holdings if old is not None else None
        said = annotations.get(registration.HOLDINGS, "")
        if old is None or said != old.said:
            left = (old.left | before.pods.keys()) & self._on.get(name, set()) if old and before else frozenset()
            node.holdings, node.said, node.since = node_cards.read_holdings(annotations, node.cards), said, now
            says = node.holdings
            node.left = frozenset(left - says.pods.keys()) if says is not None and not says.sums else frozenset()
        elif node is not old:
            node.holdings, node.said, node.since, node.left = old.holdings, said, old.since, old.left
        self._nodes[name] = node
        if node is not old or node.holdings != before:
            self._touch(name)

    def remove_node(self, name: str) -> None:
        self._nodes.pop(name, None)
        self._touch(name)

    def put_pod(self, pod: PodSpec) -> None:
        """A pod as the watch shows it. A pod that is bound confirms the assumption, or belies it."""
        if pod.ended:
            self.remove_pod(pod.uid)
            self.arrived.notify_all()
            return
        before = self.pods.get(pod.uid)
        self.pods[pod.uid] = pod
        if before is not None and before.node and before.node != pod.node:
            self._leave(before)
        if pod.node:
            self.forget(pod.uid)
            self._on.setdefault(pod.node, set()).add(pod.uid)
            self._of.setdefault(pod.namespace, set()).add(pod.uid)
            same = before is not None and (before.node, before.deleted) == (pod.node, pod.deleted)
            if before is None or not same or before.pod.annotations != pod.pod.annotations:
                self._touch(pod.node)
        self.arrived.notify_all()

    def put_other(self, uid: str, namespace: str, name: str) -> None:
        """A pod that asks for no card."""
        self.others[uid] = (namespace, name)
        self.arrived.notify_all()

    def remove_pod(self, uid: str) -> None:
        self.forget(uid)
        self.others.pop(uid, None)
        pod = self.pods.pop(uid, None)
        if pod is not None and pod.node:
            self._ended[uid] = (pod.node, self.clock())
            self._leave(pod)

    def replace_pods(self, found: list[PodSpec], others: dict[str, tuple[str, str]]) -> None:
        """Take over a list of all pods."""
        present = {pod.uid for pod in found}
        self.others = others
        for uid in [uid for uid in self.pods if uid not in present]:
            self.remove_pod(uid)
        for pod in found:
            self.put_pod(pod)

    def replace_nodes(self, found: list[Any], now: float) -> None:
        present = {str(value["metadata"]["name"]) for value in found}
        for name in [name for name in self._nodes if name not in present]:
            self.remove_node(name)
        for value in found:
            self.put_node(value, now)

    def _leave(self, pod: PodSpec) -> None:
        self._on.get(pod.node, set()).discard(pod.uid)
        self._of.get(pod.namespace, set()).discard(pod.uid)
        self._touch(pod.node)

    # Decisions

    def assume(self, pod: PodSpec, node: str, decision: Decision, now: float) -> Assumed:
        """Count `decision` from now on."""
        self.forget(pod.uid)
        cards = self._nodes[node].cards.cards
        used = {cards[at].uuid: one for at, one in enumerate(decision.used) if one != FREE}
        found = self.assumed[pod.uid] = Assumed(pod.uid, pod.namespace, node, used, now)
        self._of.setdefault(pod.namespace, set()).add(pod.uid)
        self._touch(node)
        return found

    def forget(self, uid: str) -> None:
        """Drop an assumption."""
        found = self.assumed.pop(uid, None)
        if found is not None:
            pod = self.pods.get(uid)
            if pod is None or not pod.node:
                self._of.get(found.namespace, set()).discard(uid)
            self._touch(found.node)

    def expire(self, now: float) -> list[str]:
        """Drop the assumptions that no watch has confirmed in time, and holdings that are no longer renewed."""
        late = [one.uid for one in self.assumed.values() if now - one.since > self.assume_life]
        for uid in late:
            self.forget(uid)
        for name, node in self._nodes.items():
            if node.holdings is not None and node.holdings.pods and now - node.since > SAYS_NOTHING:
                node.holdings, node.left = Holdings({}, node.holdings.other, {}), frozenset()
                self._touch(name)
        return late

    # Questions

    def names(self) -> Iterator[str]:
        return iter(self._nodes)

    def cards(self, name: str) -> NodeCards | None:
        node = self._nodes.get(name)
        return node.cards if node is not None else None

    def labels(self, name: str) -> dict[str, str]:
        node = self._nodes.get(name)
        return node.labels if node is not None else {}

    def pods_on(self, name: str) -> list[PodSpec]:
        """The pods bound to the node, oldest first."""
        found = [self.pods[uid] for uid in self._on.get(name, ()) if uid in self.pods]
        return sorted(found, key=lambda pod: (pod.created, pod.uid))

    def held(self, name: str) -> State:
        """What each healthy card of the node owes."""
        found = self._held.get(name)
        if found is None:
            found, self._shares[name] = self._count(name, frozenset())
            self._held[name] = found
        return found

    def held_without(self, name: str, uids: frozenset[str]) -> State:
        """As `held`, were these pods away, and had the others that wait for room taken it."""
        state = self.held(name)
        return self._count(name, uids)[0] if uids else state

    def unconfirmed(self, names: Collection[str]) -> tuple[dict[str, frozenset[str]], float]:
        """(node -> pods that have just ended and that it still says to hold cards, seconds for which that may last)."""
        now = self.clock()
        found: dict[str, frozenset[str]] = {}
        self._ended = {uid: one for uid, one in self._ended.items() if now - one[1] < CONFIRMS}
        last = now - CONFIRMS
        for uid, (name, since) in self._ended.items():
            node = self._nodes.get(name)
            if node is not None and node.holdings is not None and uid in node.holdings.pods and name in names:
                found[name] = found.get(name, frozenset()) | {uid}
                last = max(last, since)
        return found, last + CONFIRMS - now

    def share_of(self, name: str, uid: str) -> Usage:
        """What a pod takes on its node, by card; {} where it has no place there."""
        self.held(name)
        return self._shares[name].get(uid, {})

    def of_namespace(self, namespace: str) -> list[tuple[str, str]]:
        """(uid, node) of the namespace's pods that are bound or assumed."""
        found = []
        for uid in self._of.get(namespace, ()):
            one = self.assumed.get(uid)
            found.append((uid, one.node if one is not None else self.pods[uid].node))
        return found

    def since(self, revision: int) -> list[str]:
        """The nodes that changed after `revision`."""
        found = []
        for name in reversed(self.changed):
            if self.changed[name] <= revision:
                break
            found.append(name)
        return found

    def _touch(self, name: str) -> None:
        self.revision += 1
        self.changed.pop(name, None)
        self.changed[name] = self.revision
        self._held.pop(name, None)

    # What a node's cards owe

    def _count(self, name: str, without: frozenset[str]) -> tuple[State, dict[str, Usage]]:
        node = self._nodes.get(name)
        if node is None:
            return (), {}
        count = _Count(node.cards)
        over = {pod.uid for pod in self.pods_on(name) if pod.deleted and pod.uid in node.left}
        bound = [pod for pod in self.pods_on(name) if pod.uid not in without | over]
        holdings = node.holdings or Holdings({}, {}, {})
        present = {pod.uid for pod in bound} | without
        count.add("", holdings.other)
        for uid, used in holdings.pods.items():
            if uid not in present and uid not in self.assumed:
                count.add("", used)
        for one in self.assumed.values() if self.assumed else ():
            if one.node == name and one.uid not in present:
                count.add(one.uid, one.used)
        bound.sort(key=lambda pod: pod.uid not in holdings.pods)  # those that have their cards go first
        waiting = [pod for pod in bound if not count.add_placed(pod, holdings.pods.get(pod.uid))]
        for pod in waiting:
            count.add_unplaced(pod, holdings.pods.get(pod.uid))
        sums = dict(holdings.sums)
        for uid in without if sums else ():
            for uuid, share in self._shares[name].get(uid, {}).items():
                sums[uuid] = sums.get(uuid, FREE).minus(share)
        state = tuple([one.at_least(sums.get(card.uuid, FREE)) for one, card in zip(count.state, node.cards.cards)])
        return state, count.shares


class _Count:
    """Adds up what one node's cards owe; `shares` is what each pod takes."""

    def __init__(self, node: NodeCards) -> None:
        self.node = node
        self.state: State = (FREE,) * len(node.cards)
        self.shares: dict[str, Usage] = {}

    def add(self, uid: str, used: Usage) -> None:
        if not used:
            return
        state = list(self.state)
        for uuid, one in used.items():
            at = self.node.place_of.get(uuid)
            if at is not None:
                state[at] = state[at].plus(one)
        self.state = tuple(state)
        if uid:
            self.shares[uid] = used

    def add_placed(self, pod: PodSpec, held: Usage | None) -> bool:
        """Add a pod whose annotations place all its containers; False where they do not, or where there is no room."""
        chosen = _placement(pod, self.node)
        if chosen is None or pod.demand is None:
            return False
        used = _usage_of(pod.demand, self.node, chosen, self.state)
        if used is None:
            return False
        self.add(pod.uid, _larger(used, held or {}))
        return True

    def add_unplaced(self, pod: PodSpec, held: Usage | None) -> None:
        """Add a pod by what the node says that it holds, and by its spec."""
        used: Usage = {}
        if pod.demand is not None and not _is_whole(pod.demand, held or {}):
            try:
                decision = decide(pod.demand, self.node, self.state)
                used = {card.uuid: one for card, one in zip(self.node.cards, decision.used) if one != FREE}
            except (NoFit, VgpuError):
                used = {}  # kubelet has admitted it, but its start fails until there is room
        self.add(pod.uid, _larger(used, held or {}))


def _is_whole(demand: Demand, held: Usage) -> bool:
    """Whether `held` is all that the running containers of the pod ask for."""
    asked = sum(part.cores * part.gpus for part in demand.parts if part.kind != INIT)
    return bool(held) and sum(one.cores for one in held.values()) >= asked > 0


def _larger(one: Usage, other: Usage) -> Usage:
    return {uuid: one.get(uuid, FREE).at_least(other.get(uuid, FREE)) for uuid in {**one, **other}}


def _placement(pod: PodSpec, node: NodeCards) -> dict[str, tuple[str, ...]] | None:
    """Container -> uuids, from the first placement for this node in the annotations that names all its containers."""
    try:
        found = placements.read(pod.pod, (placements.ALL,)) if pod.demand is not None else []
    except VgpuError:
        return None
    for placement in found:
        if placement.node in ("", node.name):
            chosen = {name: _uuids(cards, node) for name, cards in placement.cards.items()}
            if pod.demand is not None and all(chosen.get(part.name) for part in pod.demand.parts):
                return chosen
    return None


def _uuids(cards: tuple[Chosen, ...], node: NodeCards) -> tuple[str, ...]:
    by_index = {card.index: card.uuid for card in node.cards}
    return tuple([one.uuid or by_index.get(one.index, "") for one in cards])


def _usage_of(demand: Demand, node: NodeCards, chosen: dict[str, tuple[str, ...]], state: State) -> Usage | None:
    """What the pod takes on these cards at its peak; None where place() refuses a container there."""
    wishes, known = demand.to_wishes(), node.place_of
    commitments = {card.uuid: one.commitment() for card, one in zip(node.cards, state) if one != FREE}
    started: Usage = {}
    running: Usage = {}
    peak: Usage = {}
    for part in demand.parts:
        request, uuids = request_of(part, node, wishes), chosen[part.name]
        healthy = [uuid for uuid in uuids if uuid in known]
        if len(healthy) == len(uuids):
            try:
                place(request.fixed_on(uuids), node.cards, commitments, node.policy)
            except (NoFit, VgpuError):
                return None
        own = {uuid: amount(request, uuid) for uuid in healthy}
        if part.kind == INIT:
            peak = _larger(peak, _added(started, own))
            continue
        running = _added(running, own)
        if part.kind == SIDECAR:
            started = _added(started, own)
    used = _larger(peak, running)
    return (
        used if all(_has_room(node, known[uuid], state, one) for uuid, one in used.items() if uuid in known) else None
    )


def _has_room(node: NodeCards, at: int, state: State, one: Held) -> bool:
    """Whether the card takes what all containers of a pod take of it together."""
    after = state[at].plus(one)
    if one.whole:
        return state[at] == FREE
    return after.cores <= node.policy.cores() and after.memory <= node.policy.memory(node.cards[at])


def _added(one: Usage, other: Usage) -> Usage:
    return {uuid: one.get(uuid, FREE).plus(other.get(uuid, FREE)) for uuid in {**one, **other}}
